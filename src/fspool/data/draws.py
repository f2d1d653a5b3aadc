"""Random numbers that are a pure function of (seed, step, purpose).

A draw does not depend on what was drawn before, in which group a run is trained, or on which
device: so many runs at once see what each would see alone, and a run that was stopped goes on as if
it had not been. Integers are hashed by splitmix64's finaliser (Steele et al., 2014).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def seed_of(seed: int, purpose: str) -> int:
    """A seed for a torch generator, for what is drawn once in a run, such as initial weights."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def bits(
    seeds: Sequence[int], steps: range, purpose: str, shape: tuple[int, ...], device="cpu"
) -> Tensor:
    """64 random bits for each entry, int64, ``(steps, seeds, *shape)``."""
    entries = torch.arange(torch.Size(shape).numel(), device=device)
    stream = streams(seeds, steps, purpose, device)
    return _mix(stream[..., None] + _mix(entries + 1)).unflatten(-1, shape)


def streams(seeds: Sequence[int], steps: range, purpose: str, device="cpu") -> Tensor:
    """What the bits of an entry are hashed from, besides its number: int64, ``(steps, seeds)``."""
    runs = torch.tensor([seed_of(seed, purpose) for seed in seeds], device=device)
    times = torch.arange(steps.start, steps.stop, steps.step, device=device)
    return _mix(runs + _mix(times + 1)[:, None])


def uniform(seeds, steps, purpose, shape, device="cpu") -> Tensor:
    """Uniform in [0, 1), float64, ``(steps, seeds, *shape)``."""
    return _shift(bits(seeds, steps, purpose, shape, device), 11).double() * 2.0**-53


def normal(seeds, steps, purpose, shape, device="cpu") -> Tensor:
    """Standard normal, float64, ``(steps, seeds, *shape)``: two of each two (Box and Muller)."""
    *front, last = shape
    pairs = uniform(seeds, steps, purpose, (*front, (last + 1) // 2, 2), device)
    radius, angle = (-2 * torch.log1p(-pairs[..., 0])).sqrt(), 2 * torch.pi * pairs[..., 1]
    both = torch.stack((radius * angle.cos(), radius * angle.sin()), -1)
    return both.flatten(-2)[..., :last]


def permutations(seeds, steps, purpose, shape, device="cpu") -> Tensor:
    """Random permutations of the last axis of shape, int64, ``(steps, seeds, *shape)``."""
    return bits(seeds, steps, purpose, shape, device).argsort(-1)


@lru_cache(maxsize=2)
def epoch_order(
    seeds: tuple[int, ...], epoch: int, purpose: str, count: int, device: torch.device
) -> Tensor:
    """All of so many examples in the order of an epoch, ``(seeds, count)``."""
    return permutations(seeds, range(epoch, epoch + 1), purpose, (count,), device)[0]


def _mix(x: Tensor) -> Tensor:
    """Every bit of the input changes every bit of the output; int64 wraps around."""
    x = x * -7046029254386353131  # 0x9E3779B97F4A7C15
    x = (x ^ _shift(x, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    x = (x ^ _shift(x, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return x ^ _shift(x, 31)


def _shift(x: Tensor, count: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift copies the sign."""
    return (x >> count) & ((1 << (64 - count)) - 1)
