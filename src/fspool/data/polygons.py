"""Rotating polygons: the n corners of a regular polygon, as a set (section 6.1 of the paper).

Every set is made afresh, centre 0 and radius 1, turned by a random angle, its corners in random
order. One number describes it, and yet most decoders for sets cannot learn it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import draws


def polygons(angle: Tensor, n: int) -> Tensor:
    """The polygon with n corners at every angle (...), in radians: ``(..., n, 2)``."""
    corners = torch.arange(n, device=angle.device, dtype=angle.dtype) * (2 * torch.pi / n)
    return _on_circle(angle.unsqueeze(-1) + corners)


def random_polygons(
    seeds: Sequence[int],
    steps: range,
    *,
    n: int,
    batch: int,
    purpose: str = "train",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """A batch of polygons for every step of every seed: ``(steps, seeds, batch, n, 2)``."""
    turn = draws.uniform(seeds, steps, f"{purpose}/angle", (batch, 1), device)
    corner = draws.permutations(seeds, steps, f"{purpose}/order", (batch, n), device)
    return _on_circle(2 * torch.pi * (turn + corner / n)).to(dtype)


def _on_circle(angle: Tensor) -> Tensor:
    return torch.stack((angle.sin(), angle.cos()), -1)
