"""Where the sets of a batch lie, for kernels: padded, masked or packed, in one form.

A set owns ``rows`` rows, of which ``size`` are elements: fewer with a mask, whose elements may lie
anywhere; otherwise the elements come first. A program's second number is its replica.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..shapes import LARGEST_TILE
from .counts import cdiv, replicas

# Integers that change from call to call: a kernel must not be compiled for each of their values.
ANY = ("apart", "batch", "length", "knots")
LISTS = ("count_ptr", "number_ptr")  # as aligned as it happens


class Sets:
    """What every kernel is told of the sets: its arguments ``*sets.args``."""

    def __init__(self, shape: torch.Size, mask, lengths, offsets, longest=None) -> None:
        self.shape = shape  # of x
        self.replicas, self.dim = replicas(shape[0]), shape[-1]
        self.batch = shape[1] if offsets is None else offsets.shape[-1] - 1
        self.length = shape[-2]  # of a padded set, or of all packed ones together
        self.promised = longest is not None and longest < self.length
        self.longest = longest if self.promised else self.length
        if min(self.length, LARGEST_TILE) * self.dim >= 1 << 31:
            raise ValueError(
                f"x has {self.dim} features of {self.length} rows; expected fewer than 2^31 "
                f"numbers in {LARGEST_TILE} rows on CUDA, so split the features."
            )
        if mask is not None:
            mask = mask.expand(shape[:3]).contiguous()
            lengths = mask.sum(-1)
        elif lengths is not None:
            lengths = lengths.expand(shape[:2]).contiguous()
        self.mask = mask
        self.packed, self.varied = offsets is not None, mask is None and lengths is not None
        if offsets is not None:
            offsets = offsets.contiguous()
        self.own = offsets is not None and offsets.ndim == 2  # for every replica
        apart = self.batch + 1 if self.own else 0  # how far, the offsets of two replicas
        self.args = (offsets, apart, lengths, mask, self.batch, self.length, self.dim)

    def grid(self, programs: int, features: int) -> tuple[int, int]:
        """For kernels that call ``program``: programs of a replica's sets, times those of x."""
        return programs * cdiv(self.dim, features), self.replicas


def strides(x: Tensor) -> tuple[int, int, int, int]:
    """Of replica, set, row and feature. Packed rows lie as if the sets had no axis of their own."""
    return x.stride() if x.ndim == 4 else (x.stride(0), 0, x.stride(1), x.stride(2))


def near(x: Tensor) -> Tensor:
    """x, or a copy where rows of a tile or features lie so far apart that 32 bits may not do."""
    far = max(LARGEST_TILE * x.stride(-2), x.shape[-1] * x.stride(-1)) >= 1 << 30
    return x.contiguous() if far else x


def is_wide(*tensors: Tensor | None) -> bool:
    """Does memory inside of one set have to be counted in 64 bits?"""
    given = (t for t in tensors if t is not None)
    return any((t.shape[-2] - 1) * abs(t.stride(-2)) >= 1 << 30 for t in given)


@triton.jit
def index(row, WIDE: tl.constexpr):
    """Rows of a set, to be multiplied with a stride."""
    return row.to(tl.int64) if WIDE else row


@triton.jit
def find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length):
    """First packed row, first row of all, rows and elements of set b of replica g.

    Lengths and offsets are not checked on CUDA; wrong ones must not lead outside the memory.
    """
    if offsets_ptr is not None:
        offsets_ptr += g * apart
        packed = tl.minimum(tl.maximum(tl.load(offsets_ptr + b).to(tl.int64), 0), length)
        end = tl.minimum(tl.load(offsets_ptr + b + 1).to(tl.int64), length)
        rows = tl.maximum(end - packed, 0).to(tl.int32)
        size = rows
        first = g * length + packed
    else:
        packed = g * 0
        first = (g * batch + b) * length
        rows = length
        size = length
        if sizes_ptr is not None:
            size = tl.load(sizes_ptr + g * batch + b).to(tl.int32)
            size = tl.minimum(tl.maximum(size, 0), length)
            if mask_ptr is None:
                rows = size
    return packed, first, rows, size


@triton.jit
def origin(g, b, packed, stride_g, stride_b, stride_n):
    """Where x of a set begins. g and packed have 64 bits, and b gets them here."""
    return g * stride_g + (g * 0 + b) * stride_b + packed * stride_n


@triton.jit
def start(dim, BD: tl.constexpr):
    """Replica (64 bits, for what is multiplied with it), program of its sets, first feature."""
    blocks = tl.cdiv(dim, BD)
    pid = tl.program_id(0)
    return tl.program_id(1).to(tl.int64), pid // blocks, (pid % blocks) * BD


@triton.jit
def program(dim, BD: tl.constexpr):
    """The same, with all features of the tile."""
    g, b, first = start(dim, BD)
    return g, b, first + tl.arange(0, BD)[None, :]


@triton.jit
def is_element(row, first, rows, mask_ptr):
    """Which rows of a set are elements."""
    inside = row < rows
    if mask_ptr is not None:
        inside = inside & (tl.load(mask_ptr + first + row, mask=inside, other=0) != 0)
    return inside
