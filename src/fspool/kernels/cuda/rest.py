"""Rows after the last set of a replica, which no program of a set gets to see: zeros."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import cdiv
from .sets import Sets

BLOCK = 4096  # numbers of a program


@triton.jit(do_not_specialize=("batch", "length"))
def _clear(out_ptr, offsets_ptr, batch, length, dim, BLOCK: tl.constexpr):
    """Most programs have only rows of sets, and leave at once."""
    g = tl.program_id(1).to(tl.int64)
    end = tl.load(offsets_ptr + g * (batch + 1) + batch).to(tl.int64)
    start = tl.minimum(tl.maximum(end, 0), length) * dim
    stop = length.to(tl.int64) * dim
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    zeros = tl.zeros((BLOCK,), out_ptr.dtype.element_ty)
    tl.store(out_ptr + g * stop + at, zeros, mask=(at >= start) & (at < stop))


def clear_rest(out: Tensor, sets: Sets) -> Tensor:
    """Zeros in the rows of no set; out (G, T, D) is contiguous, and what it returns."""
    if sets.own and out.numel():
        with torch.cuda.device_of(out):
            _clear[cdiv(sets.length * sets.dim, BLOCK), sets.replicas](
                *(out, sets.args[0], sets.batch, sets.length, sets.dim, BLOCK), num_warps=4
            )
    return out
