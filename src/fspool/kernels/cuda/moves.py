"""Rows to the places of their ranks, and back."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import power_of_2
from .pull import FEATURES, ROWS, SMALL, WARPS, split_rows
from .rest import clear_rest
from .sets import ANY, Sets, find, index, is_element, is_wide, near, origin, program, strides


@triton.jit(do_not_specialize=(*ANY, "split"))
def _move(
    x_ptr,
    rank_ptr,
    out_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    stride_g,
    stride_b,
    stride_n,
    stride_d,
    split,
    WIDE: tl.constexpr,
    BACK: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """Every ``split``-th block of rows of a set. What no element moves to becomes zero."""
    g, pid, d = program(dim, BD)
    b = pid // split
    packed, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    x_ptr += origin(g, b, packed, stride_g, stride_b, stride_n)
    out_ptr += first * dim
    owned = rows if offsets_ptr is not None else length
    r = (pid % split) * BR
    while r < owned:
        row = r + tl.arange(0, BR)[:, None]
        at = index(row, WIDE) * dim + d
        stored = (row < owned) & (d < dim)
        element = is_element(row, first, rows, mask_ptr) & stored
        rank = tl.load(rank_ptr + first * dim + at, mask=element, other=0).to(tl.int32)
        element &= (rank >= 0) & (rank < size)  # wrong sizes must not lead outside the memory
        source = rank if BACK else row
        x = tl.load(x_ptr + index(source, WIDE) * stride_n + d * stride_d, mask=element, other=0.0)
        if BACK:
            tl.store(out_ptr + at, x, mask=stored)
        else:
            tl.store(out_ptr + index(rank, WIDE) * dim + d, x, mask=element)
            tl.store(out_ptr + at, tl.zeros_like(x), mask=stored & (row >= size))
        r += split * BR


def _launch(x: Tensor, ranks: Tensor, sets: Sets, back: bool) -> Tensor:
    x, ranks = near(x), ranks.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        rows, warps = ROWS, WARPS
        if sets.length <= SMALL:
            rows, warps = max(8, power_of_2(sets.length)), 1
        split = split_rows(sets, rows)
        with torch.cuda.device_of(x):
            _move[sets.grid(sets.batch * split, FEATURES)](
                *(x, ranks, out, *sets.args, *strides(x), split),
                *(is_wide(x, ranks), back, rows, FEATURES),
                num_warps=warps,
            )
    return out


def scatter(x: Tensor, ranks: Tensor, sets: Sets) -> Tensor:
    """x by rank; zeros after the elements of a set."""
    return _launch(x, ranks, sets, back=False)


# --------------------------------------------------------------------------------------------------
# The operators of ../by_rank.py


def to_ranks(x: Tensor, ranks: Tensor, mask, lengths, offsets) -> Tensor:
    sets = Sets(ranks.shape, mask, lengths, offsets)
    return clear_rest(scatter(x, ranks, sets), sets)


def from_ranks(v: Tensor, ranks: Tensor, mask, lengths, offsets) -> Tensor:
    sets = Sets(ranks.shape, mask, lengths, offsets)
    return clear_rest(_launch(v, ranks, sets, back=True), sets)
