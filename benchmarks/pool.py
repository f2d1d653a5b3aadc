"""The hard pool: full sets, and sets of very different sizes, padded and packed."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Generator, Tensor

from fspool.functional import fspool
from fspool.sets import to_packed, to_padded

from .baselines import fixed_pool, plain_pool, sum_pool
from .case import KNOTS, Case, Inputs, Variant

FULL = {
    "cpu": [(640, 512, 10), (256, 256, 128), (128, 64, 512)],
    "cuda": [
        (640, 512, 10),
        (4096, 256, 32),
        (1024, 256, 128),
        (128, 64, 512),
        (512, 256, 1024),
        (64, 256, 4096),
    ],
}
MIXED = {"cpu": [(256, 256, 128)], "cuda": [(1024, 256, 1024)]}


def cases(device: str) -> list[Case]:
    compiles = device == "cuda"  # the CPU has no time to build C++ for every shape
    return [full(shape, compiles) for shape in FULL[device]] + [
        mixed(shape, compiles) for shape in MIXED[device]
    ]


def full(shape: tuple[int, int, int], compiles: bool = False) -> Case:
    """Every set has N elements. The package and the plain form both get ``sizes`` all the same."""
    variants = (
        Variant("fspool", package),
        Variant("plain", plain),
        Variant("fixed", fixed),
        *([Variant("compiled", compiled)] if compiles else []),
        Variant("sum", full_sum),
    )
    return Case("pool", shape, make, variants, reference, tolerance=1e-6)


def mixed(shape: tuple[int, int, int], compiles: bool = False) -> Case:
    """Sizes from 1 to N, log-uniform: packed sets against the same sets padded."""
    variants = (
        Variant("fspool", package, "packed"),
        Variant("fspool", package, "padded"),
        Variant("plain", plain, "padded"),
        *([Variant("compiled", compiled, "padded")] if compiles else []),
        Variant("sum", any_sum, "packed"),
        Variant("sum", any_sum, "padded"),
    )
    return Case("pool", shape, make, variants, reference, tolerance=1e-6)


def make(shape: tuple[int, int, int], layout: str, generator: Generator) -> Inputs:
    batch, dim, length = shape
    x, weight, y = (
        torch.randn(size, generator=generator, device=generator.device)
        for size in ((batch, length, dim), (dim, KNOTS), (batch, dim))
    )
    sizes = torch.full((batch,), length, device=generator.device)
    if layout != "full":
        sizes = log_uniform(batch, length, generator)
    if layout == "packed":
        x, offsets = to_packed(x, sizes=sizes)
        return Inputs({"x": x, "weight": weight}, {"offsets": offsets}, (y,))
    return Inputs({"x": x, "weight": weight}, {"sizes": sizes}, (y,))


def log_uniform(batch: int, length: int, generator: Generator) -> Tensor:
    """Sizes from 1 to ``length``: as many from 1 to 3 as from 10 to 30."""
    options = {"dtype": torch.float64, "device": generator.device}
    uniform = torch.rand(batch, generator=generator, **options)
    return (uniform * math.log(length + 1)).exp().long().clamp(1, length)


def package(x: Tensor, weight: Tensor, **sets: Tensor) -> tuple[Tensor]:
    return (fspool(x, weight, **sets),)


def plain(x: Tensor, weight: Tensor, sizes: Tensor) -> tuple[Tensor]:
    return (plain_pool(x, weight, sizes),)


def fixed(x: Tensor, weight: Tensor, sizes: Tensor) -> tuple[Tensor]:
    return (fixed_pool(x, weight),)


def compiled(x: Tensor, weight: Tensor, sizes: Tensor) -> tuple[Tensor]:
    return (_compiled_pool()(x, weight, sizes),)


@cache
def _compiled_pool():
    """Every shape on its own: what ``torch.compile`` does best."""
    return torch.compile(plain_pool, dynamic=False)


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
