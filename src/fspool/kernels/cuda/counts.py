"""Whole numbers on the host. Triton's own functions pass through its compiler: 2 microseconds each,
and a step of a small pool asks for ten of them."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The smallest one that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


MOST = 65_535  # as far as the second number of a program goes


def replicas(count: int) -> int:
    """Programs of each, as the second number of a grid."""
    if count > MOST:
        raise ValueError(f"x has {count} replicas; expected at most {MOST} on CUDA, so split them.")
    return count
