"""The hard pool: full sets, and sets of very different sizes, padded and packed."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from fspool.functional import fspool
from fspool.sets import to_packed, to_padded

from .baselines import fixed_pool, plain_pool, sum_pool
from .case import KNOTS, Case, Inputs, Variant

FULL = [(640, 512, 10), (256, 256, 128), (128, 64, 512)]
MIXED = [(256, 256, 128)]


def cases() -> list[Case]:
    return [full(shape) for shape in FULL] + [mixed(shape) for shape in MIXED]


def full(shape: tuple[int, int, int]) -> Case:
    """Every set has N elements. The package and the plain form both get ``sizes`` all the same."""
    variants = (
        Variant("fspool", package),
        Variant("plain", plain),
        Variant("fixed", fixed),
        Variant("sum", full_sum),
    )
    return Case("pool", shape, make, variants, reference, tolerance=1e-6)


def mixed(shape: tuple[int, int, int]) -> Case:
    """Sizes from 1 to N, log-uniform: packed sets against the same sets padded."""
    variants = (
        Variant("fspool", package, "packed"),
        Variant("fspool", package, "padded"),
        Variant("plain", plain, "padded"),
        Variant("sum", any_sum, "packed"),
        Variant("sum", any_sum, "padded"),
    )
    return Case("pool", shape, make, variants, reference, tolerance=1e-6)


def make(shape: tuple[int, int, int], layout: str, generator: Generator) -> Inputs:
    batch, dim, length = shape
    x = torch.randn(batch, length, dim, generator=generator)
    weight = torch.randn(dim, KNOTS, generator=generator)
    upstream = (torch.randn(batch, dim, generator=generator),)
    sizes = torch.full((batch,), length)
    if layout != "full":
        sizes = log_uniform(batch, length, generator)
    if layout == "packed":
        x, offsets = to_packed(x, sizes=sizes)
        return Inputs({"x": x, "weight": weight}, {"offsets": offsets}, upstream)
    return Inputs({"x": x, "weight": weight}, {"sizes": sizes}, upstream)


def log_uniform(batch: int, length: int, generator: Generator) -> Tensor:
    """Sizes from 1 to ``length``: as many from 1 to 3 as from 10 to 30."""
    uniform = torch.rand(batch, generator=generator, dtype=torch.float64)
    return (uniform * math.log(length + 1)).exp().long().clamp(1, length)


def package(x: Tensor, weight: Tensor, **sets: Tensor) -> tuple[Tensor]:
    return (fspool(x, weight, **sets),)


def plain(x: Tensor, weight: Tensor, sizes: Tensor) -> tuple[Tensor]:
    return (plain_pool(x, weight, sizes),)


def fixed(x: Tensor, weight: Tensor, sizes: Tensor) -> tuple[Tensor]:
    return (fixed_pool(x, weight),)


def full_sum(x: Tensor, weight: Tensor, sizes: Tensor) -> tuple[Tensor]:
    return (sum_pool(x),)


def any_sum(x: Tensor, weight: Tensor, **sets: Tensor) -> tuple[Tensor]:
    return (sum_pool(x, **sets),)


def reference(
    x: Tensor, weight: Tensor, sizes: Tensor | None = None, offsets: Tensor | None = None
) -> tuple[Tensor]:
    """The plain form; stable, since float32 inputs have ties, whose gradients go by position."""
    if offsets is not None:
        x, sizes = to_padded(x, offsets)
    return (plain_pool(x, weight, sizes, stable=True),)
