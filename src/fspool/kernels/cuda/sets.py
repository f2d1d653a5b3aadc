"""Where the sets of a batch lie, for kernels: padded, masked or packed, in one form.

A set is numbered s = replica * batch + b. It owns ``rows`` rows, of which ``size`` are elements:
fewer with a mask, whose elements may lie anywhere; otherwise the elements come first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Integers that change from call to call: a kernel must not be compiled for each of their values.
ANY = ("batch", "length", "knots", "stride_g", "stride_b")


class Sets:
    """What every kernel is told of the sets: its arguments ``*sets.args``."""

    def __init__(self, shape: torch.Size, mask, lengths, offsets) -> None:
        self.replicas, self.dim = shape[0], shape[-1]
        self.batch = shape[1] if offsets is None else offsets.shape[0] - 1
        self.length = shape[-2]  # of a padded set, or of all packed ones together
        if mask is not None:
            mask = mask.expand(shape[:3]).contiguous()
            lengths = mask.sum(-1)
        elif lengths is not None:
            lengths = lengths.expand(shape[:2]).contiguous()
        self.mask = mask
        self.packed, self.varied = offsets is not None, mask is None and lengths is not None
        self.args = (offsets, lengths, mask, self.batch, self.length, self.dim)
        self.count = self.replicas * self.batch


def strides(x: Tensor) -> tuple[int, int, int, int]:
    """Of replica, set, row and feature. Packed rows lie as if the sets had no axis of their own."""
    return x.stride() if x.ndim == 4 else (x.stride(0), 0, x.stride(1), x.stride(2))


def is_wide(*tensors: Tensor) -> bool:
    """Does memory inside of one set have to be counted in 64 bits?"""
    return any((t.shape[-2] - 1) * abs(t.stride(-2)) >= 1 << 30 for t in tensors)


@triton.jit
def index(row, WIDE: tl.constexpr):
    """Rows of a set, to be multiplied with a stride."""
    return row.to(tl.int64) if WIDE else row


@triton.jit
def find(s, offsets_ptr, sizes_ptr, mask_ptr, batch, length):
    """Replica, number in it, first packed row, first row of all, rows and elements of set s.

    Lengths and offsets are not checked on CUDA; wrong ones must not lead outside the memory.
    """
    g = (s // batch).to(tl.int64)
    b = (s % batch).to(tl.int64)
    if offsets_ptr is not None:
        packed = tl.minimum(tl.maximum(tl.load(offsets_ptr + b).to(tl.int64), 0), length)
        end = tl.minimum(tl.load(offsets_ptr + b + 1).to(tl.int64), length)
        rows = tl.maximum(end - packed, 0).to(tl.int32)
        size = rows
        first = g * length + packed
    else:
        packed = b * 0
        first = (g * batch + b) * length
        rows = length
        size = length
        if sizes_ptr is not None:
            size = tl.minimum(tl.maximum(tl.load(sizes_ptr + s).to(tl.int32), 0), length)
            if mask_ptr is None:
                rows = size
    return g, b, packed, first, rows, size


@triton.jit
def is_element(row, first, rows, mask_ptr):
    """Which rows of a set are elements."""
    inside = row < rows
    if mask_ptr is not None:
        inside = inside & (tl.load(mask_ptr + first + row, mask=inside, other=0) != 0)
    return inside
