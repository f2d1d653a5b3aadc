"""The Chamfer loss of two sets of points, against all differences of pairs."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fspool import losses

from .baselines import dense_chamfer
from .case import Case, Inputs, Variant

SHAPES = {  # B, channels, N
    "cpu": [(32, 2, 342), (8, 3, 1024)],
    "cuda": [(32, 2, 342), (64, 3, 1024), (16, 3, 4096)],
}


def cases(device: str) -> list[Case]:
    return [full(shape) for shape in SHAPES[device]]


def full(shape: tuple[int, int, int]) -> Case:
    """Two full sets of N points each."""
    variants = (Variant("fspool", package), Variant("dense", dense))
    return Case("chamfer", shape, make, variants, dense, tolerance=1e-6)


def make(shape: tuple[int, int, int], layout: str, generator: Generator) -> Inputs:
    """The same points on every device: where two points are almost equally near, float32 and
    float64 may choose differently, which would look like a wrong gradient."""
    batch, channels, length = shape
    own = torch.Generator().manual_seed(generator.initial_seed())

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=own).to(generator.device)

    leaves = {name: normal(batch, length, channels) for name in ("a", "b")}
    return Inputs(leaves, {}, (normal(batch),))


def package(a: Tensor, b: Tensor) -> tuple[Tensor]:
    return (losses.chamfer(a, b),)


def dense(a: Tensor, b: Tensor) -> tuple[Tensor]:
    return (dense_chamfer(a, b),)
