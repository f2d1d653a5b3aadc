"""Shapes and types that every implementation of an operator agrees on."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layouts import Packed, Padded, Sets

LARGEST_TILE = 1024  # rows that a CUDA kernel sorts in registers; more are sorted in memory


def rank_dtype(shape: tuple[int, ...], offsets: Tensor | None) -> torch.dtype:
    """The smallest integers that hold every rank; packed sets may have any size."""
    if offsets is not None:
        return torch.int32
    length = shape[2]
    return torch.uint8 if length <= 256 else torch.int16 if length <= 32768 else torch.int32


def pooled_shape(x: Tensor, offsets: Tensor | None) -> tuple[int, int, int]:
    batch = x.shape[1] if offsets is None else offsets.shape[-1] - 1
    return x.shape[0], batch, x.shape[-1]


def rows_shape(z: Tensor, rows: int, offsets: Tensor | None) -> tuple[int, ...]:
    """Of x and its ranks, where the pooled z has this shape."""
    groups, batch, dim = z.shape
    return (groups, batch, rows, dim) if offsets is None else (groups, rows, dim)


def layout_of(shape: tuple[int, ...], device: torch.device, mask, lengths, offsets) -> Sets:
    """The sets of an x of this shape, as the definitions know them."""
    if offsets is None:
        return Padded(tuple(shape[:3]), device, mask, lengths)
    return Packed((shape[0], offsets.shape[-1] - 1, shape[1]), device, offsets)


def no_ranks(x: Tensor, offsets: Tensor | None) -> Tensor:
    shape = (x.shape[0], *[0] * (x.ndim - 2), x.shape[-1])
    return torch.empty(shape, dtype=rank_dtype(x.shape, offsets), device=x.device)


def no_rows(x: Tensor) -> Tensor:
    """In place of x in sorted order, where nobody asked for it or nobody keeps it."""
    shape = (x.shape[0], *[0] * (x.ndim - 2), x.shape[-1])
    return torch.empty(shape, dtype=sorted_dtype(x), device=x.device)


def sorted_dtype(x: Tensor) -> torch.dtype:
    """Of x in sorted order. Large sets are sorted there, and 16 bits would not do for that."""
    large = x.dtype.itemsize == 2 and (
        x.ndim == 3 or x.shape[-2] > LARGEST_TILE
    )  # packed: any size
    return torch.float32 if large else x.dtype
