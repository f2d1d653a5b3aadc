"""The relaxed pool and unpool of full sets, and of padded ones of very different sizes, against
dense permutation matrices."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from fspool.functional import fspool, fsunpool

from .baselines import dense_pool_unpool, sum_pool
from .case import KNOTS, Case, Inputs, Variant
from .pool import log_uniform

TEMPERATURE = 1.0


def cases(device: str) -> list[Case]:
    if device == "cpu":  # at N = 4096 the dense matrices of float32 would need some 8 GB each
        return [
            full((16, 32, 342), checked=8),
            mixed((32, 32, 342), checked=8),
            full((4, 32, 4096), dense=False, checked=1),
        ]
    return [
        full((16, 32, 342)),
        full((16, 32, 1024), checked=8),
        full((4, 32, 16384), dense=False, checked=1),
    ]


def full(shape: tuple[int, int, int], dense: bool = True, checked: int | None = None) -> Case:
    variants = [Variant("fspool", package), Variant("dense", dense_pool_unpool)]
    variants = tuple(variants[: 1 + dense]) + (Variant("sum", sum_and_repeat),)
    return Case("relaxed_sort", shape, make, variants, dense_pool_unpool, 1e-5, checked)


def mixed(shape: tuple[int, int, int], checked: int | None = None) -> Case:
    """Sizes from 1 to N, log-uniform, padded."""
    variants = (
        Variant("fspool", package, "padded"),
        Variant("dense", dense_pool_unpool, "padded"),
        Variant("sum", sum_and_repeat, "padded"),
    )
    return Case("relaxed_sort", shape, make, variants, dense_pool_unpool, 1e-5, checked)


def make(shape: tuple[int, int, int], layout: str, generator: Generator) -> Inputs:
    batch, dim, length = shape

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=generator.device)

    leaves = {
        "x": normal(batch, length, dim),
        "weight": normal(dim, KNOTS),
        "z": normal(batch, dim),
        "weight_unpool": normal(dim, KNOTS),
    }
    upstream = tuple(normal(*leaves[name].shape) for name in ("z", "x"))
    sets = {} if layout == "full" else {"sizes": log_uniform(batch, length, generator)}
    return Inputs(leaves, sets, upstream)


def package(
    x: Tensor, weight: Tensor, z: Tensor, weight_unpool: Tensor, **sets: Tensor
) -> tuple[Tensor, Tensor]:
    y, order = fspool(x, weight, temperature=TEMPERATURE, return_order=True, **sets)
    return y, fsunpool(z, weight_unpool, order)


def sum_and_repeat(
    x: Tensor, z: Tensor, sizes: Tensor | None = None, **_: Tensor
) -> tuple[Tensor, Tensor]:
    """What a model without an order would do: sum the set, give every element the same vector."""
    return sum_pool(x, sizes), z.unsqueeze(1).repeat(1, x.shape[1], 1)
