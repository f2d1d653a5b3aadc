"""Whole numbers on the host. Triton's own functions pass through its compiler: 2 microseconds each,
and a step of a small pool asks for ten of them."""

from __future__ import annotations


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The smallest one that is at least n."""
    return 1 << max(n - 1, 0).bit_length()
