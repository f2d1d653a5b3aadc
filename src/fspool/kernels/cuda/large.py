"""Sets that are too large for one tile: sorted in blocks, which are then merged.

Two or four blocks are merged in registers (:mod:`.blocks`). Of larger sets they are merged in
pairs, in the memory that keeps x in sorted order. Pairs of blocks follow the network of Batcher's
odd-even merge sort: it moves the larger half of a pair always to the earlier block, so that a last
block that is not full needs no special care.

Ranks are found by a search in a second copy of the sorted keys, in which every column lies by
itself: the last steps of the search are then in one piece of memory, and read at once. Equal
elements all find the rank of their first one. A few are put in order by looking at earlier rows;
columns that have many are sorted once more, by rank and row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import blocks
from .blocks import (
    MANY,
    NUMBERED,
    SPARE,
    columns_of,
    key_of_large,
    sort_whole,
    sort_whole_again,
    value_of_large,
)
from .lists import Lists, in_list, listed
from .piecewise import load_weights
from .sets import ANY, LISTS, Sets, find, index, is_element, is_wide, origin, program, strides
from .sorting import LOWEST, count_larger, merge_tile, sort_tile

LOGR, LOGC = 6, 5  # of sets that are merged in memory: two blocks
ROWS = 512  # that are written at once
SORT = 8, 8, None  # features, warps, registers
SAMPLES = 9  # log2, of which count_larger needs more than 5
RANK = 4, 256, 4, 4, 128  # features, rows, programs a set, warps, registers
CHUNK = tl.constexpr(8)  # keys that are read at once


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


@triton.jit
def _merge_blocks(
    key_ptr,
    rows,
    dim,
    inside,
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BD: tl.constexpr,
):
    """Two blocks of each tile are in order; merge 2 and 2, 4 and 4, ..."""
    count = tl.cdiv(rows, 1 << (LOGR + LOGC - 1))
    p = 2
    while p < count:
        k = p
        while k > 0:
            for i in range(k % p, count - k):
                if (((i - k % p) // k) % 2 == 0) & (i // (2 * p) == (i + k) // (2 * p)):
                    _exchange_blocks(key_ptr, i, i + k, rows, dim, inside, WIDE, LOGR, LOGC, BD)
            k //= 2
        p *= 2


@triton.jit
def _sort_set(
    x_ptr,
    w_ptr,
    y_ptr,
    key_ptr,
    column_ptr,
    pair_ptr,
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
    knots,
    g,
    b,
    d,
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    TILE: tl.constexpr = 1 << (LOGR + LOGC)
    packed, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    inside = d < dim
    x_ptr += origin(g, b, packed, stride_g, stride_b, stride_n)
    key_ptr += first * dim + d
    for r in range(0, rows, TILE):
        row = r + tl.arange(0, TILE)[:, None]
        element = is_element(row, first, rows, mask_ptr) & inside
        x = tl.load(x_ptr + index(row, WIDE) * stride_n + d * stride_d, mask=element, other=0.0)
        key = sort_tile(tl.where(element, key_of_large(x, row, rows), LOWEST), LOGR, LOGC, BD)
        tl.store(key_ptr + index(row, WIDE) * dim, key, mask=(row < rows) & inside)
    tl.debug_barrier()
    _merge_blocks(key_ptr, rows, dim, inside, WIDE, LOGR, LOGC, BD)
    number = g * batch + b
    columns, long = columns_of(first, number, d, dim, size, WIDE)
    total = tl.zeros((BR, BD), tl.float64)
    equal = tl.zeros((BR, BD), tl.int32)
    for r in range(0, long, BR):
        row = r + tl.arange(0, BR)[:, None]
        valid = (row < size) & inside
        at = key_ptr + index(row, WIDE) * dim
        key = tl.load(at, mask=valid, other=LOWEST)
        if column_ptr is not None:
            tl.store(column_ptr + columns + row, key, mask=inside & (row < long))
            following = tl.load(at + dim, mask=(row + 1 < size) & inside, other=LOWEST)
            equal += (valid & (following == key)).to(tl.int32)
            tl.debug_barrier()  # before others turn their keys into numbers
        x = value_of_large(key, rows, x_ptr.dtype.element_ty)
        tl.store(at, x.to(tl.int32, bitcast=True), mask=valid)
        if w_ptr is not None:
            weight = load_weights(w_ptr + g * knots * dim, row, size, d, valid, knots, dim)
            total += tl.where(valid, weight * x, 0.0)
    if w_ptr is not None:
        y = tl.sum(total, axis=0)[None, :].to(tl.float32)
        tl.store(y_ptr + number * dim + d, y, mask=inside)
    if column_ptr is not None:
        pairs = tl.sum(equal, axis=0)[None, :]
        tl.store(pair_ptr + number * dim + d, pairs, mask=inside)


@triton.jit(do_not_specialize=(*ANY, *LISTS))
def _sort(
    x_ptr,
    w_ptr,
    y_ptr,
    key_ptr,
    column_ptr,
    pair_ptr,
    count_ptr,
    number_ptr,
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
    knots,
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """Some features of each set; for the ranks also the second copy, and how many neighbours are
    equal."""
    tensors = x_ptr, w_ptr, y_ptr, key_ptr, column_ptr, pair_ptr
    sets = offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length, dim
    strides = stride_g, stride_b, stride_n, stride_d
    if count_ptr is None:
        g, b, d = program(dim, BD)
        _sort_set(*tensors, *sets, *strides, knots, g, b, d, WIDE, LOGR, LOGC, BR, BD)
    else:
        g = tl.program_id(1).to(tl.int64)
        tiles = in_list(count_ptr, g, dim, BD)
        for i in tl.range(tl.program_id(0), tiles, tl.num_programs(0), disable_licm=True):
            b, d = listed(i, number_ptr, g, batch, dim, BD)
            d += tl.arange(0, BD)[None, :]
            _sort_set(*tensors, *sets, *strides, knots, g, b, d, WIDE, LOGR, LOGC, BR, BD)


@triton.jit
def _rank_rows(
    x_ptr,
    column_ptr,
    rank_ptr,
    pair_ptr,
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
    g,
    b,
    share,
    d,
    WIDE: tl.constexpr,
    LOG: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    packed, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    inside = d < dim
    x_ptr += origin(g, b, packed, stride_g, stride_b, stride_n)
    rank_ptr += first * dim + d
    number = g * batch + b
    columns, _ = columns_of(first, number, d, dim, size, WIDE)
    columns = column_ptr + columns
    pair_ptr += number * dim + d
    fours = 1  # a sample of every 4 * fours
    while ((4 * fours) << LOG) < size:
        fours *= 2
    sample = tl.arange(0, 1 << LOG)[:, None] * (4 * fours)
    samples = tl.load(columns + sample, mask=(sample < size) & inside, other=LOWEST)
    t = tl.arange(0, CHUNK)[None, None, :]
    owned = rows if offsets_ptr is not None else length
    for r in range(share * BR, owned, split * BR):
        row = r + tl.arange(0, BR)[:, None]
        element = is_element(row, first, rows, mask_ptr) & inside
        x = tl.load(x_ptr + index(row, WIDE) * stride_n + d * stride_d, mask=element, other=0.0)
        key = key_of_large(x, row, rows)
        low = tl.maximum(count_larger(samples, key, LOG, BD) - 1, 0) * fours  # in fours too
        half = fours // 2
        while 4 * half >= CHUNK:
            at = (low + half) * 4
            seen = tl.load(columns + at, mask=(at < size) & inside, other=LOWEST)
            low = tl.where(seen > key, low + half, low)
            half //= 2
        rank = low * 4  # so that the compiler sees that a chunk is aligned
        chunk = columns[:, :, None] + (rank[:, :, None] + t)
        chunk = tl.load(chunk, mask=inside[:, :, None], other=LOWEST)
        larger = tl.sum((chunk > key[:, :, None]).to(tl.int32), axis=2)
        equal = tl.sum((chunk == key[:, :, None]).to(tl.int32), axis=2)
        rank += larger
        # Equal elements have the rank of their first; those of earlier rows have to go first.
        beyond = element & (larger >= CHUNK - 1) & (rank + 1 < size)  # the next is in no chunk
        follows = tl.load(columns + rank + 1, mask=beyond, other=LOWEST) == key
        follows = element & (follows | (equal > 1))
        if tl.max(follows.to(tl.int32)) > 0:  # what only this needs would take registers of all
            follows &= (tl.load(pair_ptr, mask=inside, other=0) <= MANY) | (rows > NUMBERED)
            tied = _highest(tl.where(follows, key, LOWEST))
            while tl.max(tied) > LOWEST:
                before = tl.zeros((1, BD), tl.int32)
                for i in range(0, r, BR):
                    other = i + tl.arange(0, BR)[:, None]
                    valid = is_element(other, first, rows, mask_ptr) & inside
                    where = x_ptr + index(other, WIDE) * stride_n + d * stride_d
                    earlier = key_of_large(tl.load(where, mask=valid, other=0.0), other, rows)
                    before += tl.sum((valid & (earlier == tied)).to(tl.int32), axis=0)[None, :]
                group = (element & (key == tied)).to(tl.int32)
                rank += group * (before + tl.cumsum(group, axis=0) - group)
                tied = _highest(tl.where(follows & (key < tied), key, LOWEST))
        if offsets_ptr is None and mask_ptr is None:  # padding comes last, by position
            rank = tl.where(element, rank, row)
            element = (row < length) & inside
        to = rank_ptr + index(row, WIDE) * dim
        tl.store(to, rank.to(rank_ptr.dtype.element_ty), mask=element)


@triton.jit(do_not_specialize=(*ANY[:-1], *LISTS, "split"))
def _rank(
    x_ptr,
    column_ptr,
    rank_ptr,
    pair_ptr,
    count_ptr,
    number_ptr,
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
    LOG: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """How many are larger: among some samples in registers, then in memory among few."""
    tensors = x_ptr, column_ptr, rank_ptr, pair_ptr
    sets = offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length, dim
    strides = stride_g, stride_b, stride_n, stride_d
    if count_ptr is None:
        g, i, d = program(dim, BD)
        b, s = i // split, i % split
        _rank_rows(*tensors, *sets, *strides, split, g, b, s, d, WIDE, LOG, BR, BD)
    else:
        g = tl.program_id(1).to(tl.int64)
        tiles = in_list(count_ptr, g, dim, BD) * split
        for i in tl.range(tl.program_id(0), tiles, tl.num_programs(0), disable_licm=True):
            b, d = listed(i // split, number_ptr, g, batch, dim, BD)
            d += tl.arange(0, BD)[None, :]
            _rank_rows(*tensors, *sets, *strides, split, g, b, i % split, d, WIDE, LOG, BR, BD)


@triton.jit
def _sort_set_again(
    rank_ptr,
    key_ptr,
    pair_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    g,
    b,
    d,
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    TILE: tl.constexpr = 1 << (LOGR + LOGC)
    _, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    pairs = tl.load(pair_ptr + (g * batch + b) * dim + d, mask=d < dim, other=0)
    many = (pairs > MANY) & (rows <= NUMBERED)
    rank_ptr += first * dim + d
    key_ptr += first * dim + d
    if tl.max(many.to(tl.int32)) > 0:
        for r in range(0, rows, TILE):
            row = r + tl.arange(0, TILE)[:, None]
            element = is_element(row, first, rows, mask_ptr) & many
            rank = tl.load(rank_ptr + index(row, WIDE) * dim, mask=element, other=0).to(tl.int32)
            key = sort_tile(tl.where(element, -(rank * NUMBERED + row), LOWEST), LOGR, LOGC, BD)
            tl.store(key_ptr + index(row, WIDE) * dim, key, mask=(row < rows) & many)
        tl.debug_barrier()
        _merge_blocks(key_ptr, rows, dim, many, WIDE, LOGR, LOGC, BD)
        for r in range(0, size, BR):
            rank = r + tl.arange(0, BR)[:, None]
            valid = (rank < size) & many
            key = tl.load(key_ptr + index(rank, WIDE) * dim, mask=valid, other=0)
            row = -key & (NUMBERED - 1)
            ranks = (rank + d * 0).to(rank_ptr.dtype.element_ty)
            tl.store(rank_ptr + index(row, WIDE) * dim, ranks, mask=valid)


@triton.jit(do_not_specialize=(*ANY[:-1], *LISTS))
def _sort_again(
    rank_ptr,
    key_ptr,
    pair_ptr,
    count_ptr,
    number_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """Columns of many equal elements, whose ranks are those of their first, by rank and row."""
    tensors = rank_ptr, key_ptr, pair_ptr
    sets = offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length, dim
    if count_ptr is None:
        g, b, d = program(dim, BD)
        _sort_set_again(*tensors, *sets, g, b, d, WIDE, LOGR, LOGC, BR, BD)
    else:
        g = tl.program_id(1).to(tl.int64)
        tiles = in_list(count_ptr, g, dim, BD)
        for i in tl.range(tl.program_id(0), tiles, tl.num_programs(0), disable_licm=True):
            b, d = listed(i, number_ptr, g, batch, dim, BD)
            d += tl.arange(0, BD)[None, :]
            _sort_set_again(*tensors, *sets, g, b, d, WIDE, LOGR, LOGC, BR, BD)


@triton.jit
def _highest(x):
    return tl.max(x, axis=0)[None, :]


def sort(
    x: Tensor, sets: Sets, weight, y, ranks, ordered: Tensor, top: int, lists: Lists | None
) -> None:
    """Sets of more than 2^top rows: x in sorted order, and where asked for y and ranks."""
    knots = 1 if weight is None else weight.shape[1]
    wide = is_wide(x, ordered)
    columns = pairs = None
    if ranks is not None:
        size = ordered.numel() + SPARE.value * sets.replicas * sets.batch * sets.dim
        columns = torch.empty(size, dtype=torch.int32, device=x.device)
        pairs = columns.new_empty(sets.replicas, sets.batch, sets.dim)
    memory = x, weight, y, ordered.view(torch.int32), columns, pairs
    tiles = blocks.tiles(sets, top)
    most = top + max((log for log, _ in tiles), default=0)
    more = sets.longest > 1 << most or sets.promised  # a promise may be broken

    def some(log: int, features: int, warps: int) -> tuple:
        """Grid, and the list that has these sets."""
        if lists is None:
            return sets.grid(sets.batch, features), None, None
        return lists.grid(features, warps, 1 << (log - 1)), *lists.of(log)

    whole = {"num_warps": blocks.WARPS, "maxnreg": blocks.REGISTERS}
    for log, features in tiles:
        grid, *these = some(top + log, features, blocks.WARPS)
        sort_whole[grid](
            *(*memory, *these, *sets.args, *strides(x), knots),
            *(wide, *blocks.BLOCK, log, features),
            **whole,
        )
    features, warps, registers = SORT
    tile = wide, LOGR, LOGC, ROWS, features
    if more:
        grid, *these = some(most + 1, features, warps)
        _sort[grid](
            *(*memory, *these, *sets.args, *strides(x), knots, *tile),
            num_warps=warps,
            maxnreg=registers,
        )
    if ranks is None:
        return
    width, rows, split, rank_warps, rank_registers = RANK
    grid, these = sets.grid(sets.batch * split, width), (None, None)
    if lists is not None:
        grid, these = lists.grid(width, rank_warps, 1 << top, split), lists.all()
    _rank[grid](
        *(x, columns, ranks, pairs, *these, *sets.args, *strides(x), split),
        *(wide, SAMPLES, rows, width),
        num_warps=rank_warps,
        maxnreg=rank_registers,
    )
    for log, features in tiles:
        grid, *these = some(top + log, features, blocks.WARPS)
        sort_whole_again[grid](
            *(ranks, pairs, *these, *sets.args, wide, *blocks.BLOCK, log, features), **whole
        )
    if more:
        grid, *these = some(most + 1, SORT[0], warps)
        _sort_again[grid](
            *(ranks, columns, pairs, *these, *sets.args, *tile),
            num_warps=warps,
            maxnreg=registers,
        )
