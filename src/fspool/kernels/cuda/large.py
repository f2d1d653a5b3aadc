"""Sets that are too large for one tile: sorted in blocks, which are then merged in pairs.

All happens in the memory that keeps x in sorted order. Pairs of blocks follow the network of
Batcher's odd-even merge sort: it moves the larger half of a pair always to the earlier block, so
that a last block that is not full needs no special care.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .piecewise import load_weights
from .sets import ANY, Sets, find, index, is_element, is_wide, origin, program, strides
from .sorting import LOWEST, count_larger, key_of, merge_tile, sort_tile, value_of

LOGR, LOGC = 6, 5  # log2 of the rows of a thread and of their groups: two blocks of 1024
SAMPLES = 9  # log2, of which count_larger needs more than 5
RANK = 8, 128, 8, 4  # features, rows, programs a set, warps


@triton.jit
def _exchange_blocks(
    key_ptr,
    i,
    j,
    rows,
    dim,
    inside,
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BD: tl.constexpr,
):
    """The larger half of blocks i < j to i, the smaller one to j, both in descending order."""
    HALF: tl.constexpr = 1 << (LOGR + LOGC - 1)
    t = tl.arange(0, 2 * HALF)[:, None]
    row = tl.where(t < HALF, i * HALF + t, j * HALF + 2 * HALF - 1 - t)  # falls, then rises
    key = tl.load(key_ptr + index(row, WIDE) * dim, mask=(row < rows) & inside, other=LOWEST)
    key = merge_tile(key, LOGC, LOGR, 1 << LOGR, 1 << LOGC, BD)
    row = tl.where(t < HALF, i * HALF + t, (j - 1) * HALF + t)
    tl.debug_barrier()  # all have read before anybody writes
    tl.store(key_ptr + index(row, WIDE) * dim, key, mask=(row < rows) & inside)
    tl.debug_barrier()


@triton.jit(do_not_specialize=(*ANY, "above"))
def _sort(
    x_ptr,
    w_ptr,
    y_ptr,
    key_ptr,
    offsets_ptr,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    stride_g,
    stride_b,
    stride_n,
    stride_d,
    knots,
    above,
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """Some features of a set of more than ``above`` rows."""
    TILE: tl.constexpr = 1 << (LOGR + LOGC)
    HALF: tl.constexpr = TILE // 2
    g, b, d = program(dim, BD)
    packed, first, rows, size = find(g, b, offsets_ptr, sizes_ptr, mask_ptr, batch, length)
    if rows <= above:
        return
    inside = d < dim
    x_ptr += origin(g, b, packed, stride_g, stride_b, stride_n)
    key_ptr += first * dim + d
    for r in range(0, rows, TILE):
        row = r + tl.arange(0, TILE)[:, None]
        element = is_element(row, first, rows, mask_ptr) & inside
        x = tl.load(x_ptr + index(row, WIDE) * stride_n + d * stride_d, mask=element, other=0.0)
        key = sort_tile(tl.where(element, key_of(x.to(tl.float32), row), LOWEST), LOGR, LOGC, BD)
        tl.store(key_ptr + index(row, WIDE) * dim, key, mask=(row < rows) & inside)
    tl.debug_barrier()
    # Two blocks of each tile are in order; merge 2 and 2, 4 and 4, ...
    count = tl.cdiv(rows, HALF)
    p = 2
    while p < count:
        k = p
        while k > 0:
            for i in range(k % p, count - k):
                if (((i - k % p) // k) % 2 == 0) & (i // (2 * p) == (i + k) // (2 * p)):
                    _exchange_blocks(key_ptr, i, i + k, rows, dim, inside, WIDE, LOGR, LOGC, BD)
            k //= 2
        p *= 2
    total = tl.zeros((BR, BD), tl.float32)
    for r in range(0, size, BR):
        row = r + tl.arange(0, BR)[:, None]
        valid = (row < size) & inside
        at = key_ptr + index(row, WIDE) * dim
        x = value_of(tl.load(at, mask=valid, other=0), tl.float32)
        tl.store(at, x.to(tl.int32, bitcast=True), mask=valid)
        if w_ptr is not None:
            weight = load_weights(w_ptr + g * knots * dim, row, size, d, valid, knots, dim)
            total += tl.where(valid, weight * x, 0.0)
    if w_ptr is not None:
        y = tl.sum(total, axis=0)[None, :]
        tl.store(y_ptr + (g * batch + b) * dim + d, y, mask=inside)


@triton.jit(do_not_specialize=(*ANY, "above", "split"))
def _rank(
    x_ptr,
    sorted_ptr,
    rank_ptr,
    offsets_ptr,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    stride_g,
    stride_b,
    stride_n,
    stride_d,
    above,
    split,
    WIDE: tl.constexpr,
    LOG: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """How many are larger: among some samples in registers, then step by step in memory."""
    g, pid, d = program(dim, BD)
    start, b = (pid % split) * BR, pid // split
    packed, first, rows, size = find(g, b, offsets_ptr, sizes_ptr, mask_ptr, batch, length)
    if rows <= above:
        return
    inside = d < dim
    x_ptr += origin(g, b, packed, stride_g, stride_b, stride_n)
    rank_ptr += first * dim + d
    sorted_ptr += first * dim + d
    step = 1
    while (step << LOG) < size:
        step *= 2
    sample = tl.arange(0, 1 << LOG)[:, None] * step
    held = (sample < size) & inside
    samples = tl.load(sorted_ptr + index(sample, WIDE) * dim, mask=held, other=0.0)
    samples = tl.where(held, key_of(samples, sample), LOWEST)
    owned = rows if offsets_ptr is not None else length
    for r in range(start, owned, split * BR):
        row = r + tl.arange(0, BR)[:, None]
        element = is_element(row, first, rows, mask_ptr) & inside
        x = tl.load(x_ptr + index(row, WIDE) * stride_n + d * stride_d, mask=element, other=0.0)
        key = key_of(x.to(tl.float32), row)
        count = count_larger(samples, key, LOG, BD)
        rank = tl.maximum(count - 1, 0) * step
        half = step // 2
        while half > 0:
            larger = _at(sorted_ptr, rank + half, size, dim, element, WIDE) > key
            rank = tl.where(larger, rank + half, rank)
            half //= 2
        rank = tl.where(count > 0, rank + 1, 0)
        # Equal elements have the rank of their first; those of earlier rows have to go first.
        tied = element & (_at(sorted_ptr, rank + 1, size, dim, element, WIDE) == key)
        equal = _highest(tl.where(tied, key, LOWEST))
        while tl.max(equal) > LOWEST:
            before = tl.zeros((1, BD), tl.int32)
            for i in range(0, r, BR):
                other = i + tl.arange(0, BR)[:, None]
                valid = is_element(other, first, rows, mask_ptr) & inside
                where = x_ptr + index(other, WIDE) * stride_n + d * stride_d
                earlier = key_of(tl.load(where, mask=valid, other=0.0).to(tl.float32), other)
                before += tl.sum((valid & (earlier == equal)).to(tl.int32), axis=0)[None, :]
            group = (element & (key == equal)).to(tl.int32)
            rank += group * (before + tl.cumsum(group, axis=0) - group)
            equal = _highest(tl.where(tied & (key < equal), key, LOWEST))
        if offsets_ptr is None and mask_ptr is None:  # padding comes last, by position
            rank = tl.where(element, rank, row)
            element = (row < length) & inside
        at = rank_ptr + index(row, WIDE) * dim
        tl.store(at, rank.to(rank_ptr.dtype.element_ty), mask=element)


@triton.jit
def _highest(x):
    return tl.max(x, axis=0)[None, :]


@triton.jit
def _at(sorted_ptr, rank, size, dim, element, WIDE: tl.constexpr):
    """The keys at some ranks; the lowest beyond the last."""
    inside = element & (rank < size)
    x = tl.load(sorted_ptr + index(rank, WIDE) * dim, mask=inside, other=0.0)
    return tl.where(inside, key_of(x, rank), LOWEST)


def sort(x: Tensor, sets: Sets, weight, y, ranks, ordered: Tensor, above: int) -> None:
    """Sets of more than ``above`` rows: x in sorted order, and where asked for y and ranks."""
    knots = 1 if weight is None else weight.shape[1]
    wide = is_wide(x, ordered)
    features = 16
    _sort[sets.grid(sets.batch, features)](
        *(x, weight, y, ordered.view(torch.int32), *sets.args, *strides(x), knots, above),
        *(wide, LOGR, LOGC, 64, features),
        num_warps=16,
    )
    if ranks is not None:
        features, rows, split, warps = RANK
        _rank[sets.grid(sets.batch * split, features)](
            *(x, ordered, ranks, *sets.args, *strides(x), above, split),
            *(wide, SAMPLES, rows, features),
            num_warps=warps,
        )
