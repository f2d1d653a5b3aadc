"""Sets of two or four blocks, which one program holds: beside one another, as if they were more
features, each block is sorted, and then they are merged. What larger sets share with them, too.

Sorted keys are kept twice: by row, as x in sorted order, and column by column for the search of
ranks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .lists import in_list, listed
from .piecewise import load_weights
from .sets import ANY, LISTS, Sets, find, index, is_element, origin, start
from .sorting import LOWEST, key_of, sort_blocks, value_of

BLOCK = 5, 5  # log2 of the rows of a thread and of their groups: a block of 1024
WHOLE = {1: 8, 2: 4}  # log2 of the blocks that registers hold, and features
WARPS, REGISTERS = 16, 128
SPARE = tl.constexpr(12)  # rows more than a set has in the second copy, for aligned columns
MANY = tl.constexpr(64)  # pairs of equal neighbours in a sorted column
NUMBERED = tl.constexpr(1 << 15)  # rows of which one key holds rank and number


@triton.jit
def key_of_large(x, row, rows):
    """Numbers of 16 bits take their row along, as in a tile, where it has no more bits."""
    key = key_of(x.to(tl.float32), row)
    if x.dtype.primitive_bitwidth == 16:
        key = tl.where(rows <= 65536, key_of(x, row), key)
    return key


@triton.jit
def value_of_large(key, rows, dtype: tl.constexpr):
    x = value_of(key, tl.float32)
    if dtype.primitive_bitwidth == 16:
        x = tl.where(rows <= 65536, value_of(key, dtype).to(tl.float32), x)
    return x


@triton.jit
def columns_of(first, number, d, dim, size, WIDE: tl.constexpr):
    """Where the columns of a set begin in the second copy, and how long they are."""
    long = (size // 4 + 2) * 4
    begin = (first + SPARE * number) * dim // 4 * 4
    return begin + index(d, WIDE) * long, long


@triton.jit
def _blocks_of(first, LOG: tl.constexpr, LOGQ: tl.constexpr, BD: tl.constexpr):
    """Of a tile of blocks beside one another the features and the rows."""
    column = tl.arange(0, BD << LOGQ)[None, :]
    return first + column % BD, (column // BD << LOG) + tl.arange(0, 1 << LOG)[:, None]


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
    feature,
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    LOGQ: tl.constexpr,
    BD: tl.constexpr,
):
    ROWS: tl.constexpr = 1 << (LOGR + LOGC + LOGQ)
    d, row = _blocks_of(feature, LOGR + LOGC, LOGQ, BD)
    feature += tl.arange(0, BD)[None, :]
    packed, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    inside = d < dim
    x_ptr += origin(g, b, packed, stride_g, stride_b, stride_n)
    element = is_element(row, first, rows, mask_ptr) & inside
    x = tl.load(x_ptr + index(row, WIDE) * stride_n + d * stride_d, mask=element, other=0.0)
    key = tl.where(element, key_of_large(x, row, rows), LOWEST)
    key = sort_blocks(key, LOGR, LOGC, LOGQ, BD)
    number = g * batch + b
    valid = (row < size) & inside
    value = value_of_large(key, rows, x_ptr.dtype.element_ty)
    at = key_ptr + first * dim + d + index(row, WIDE) * dim
    tl.store(at, value.to(tl.int32, bitcast=True), mask=valid)
    if w_ptr is not None:
        weight = load_weights(w_ptr + g * knots * dim, row, size, d, valid, knots, dim)
        total = tl.sum(tl.where(valid, weight * value, 0.0), axis=0)
        total = tl.sum(tl.reshape(total, (1 << LOGQ, BD)), axis=0)
        tl.store(y_ptr + number * dim + feature, total[None, :], mask=feature < dim)
    if column_ptr is not None:
        columns, long = columns_of(first, number, d, dim, size, WIDE)
        tl.store(column_ptr + columns + row, key, mask=inside & (row < long))
        beyond = ROWS + tl.arange(0, 16)[:, None]
        lowest = tl.zeros((16, BD << LOGQ), tl.int32) + LOWEST
        tl.store(column_ptr + columns + beyond, lowest, mask=inside & (beyond < long))
        tl.debug_barrier()
        following = tl.load(column_ptr + columns + row + 1, mask=inside & (row + 1 < size), other=0)
        equal = ((following == key) & (row + 1 < size) & inside).to(tl.int32)
        pairs = tl.sum(tl.reshape(tl.sum(equal, axis=0), (1 << LOGQ, BD)), axis=0)
        tl.store(pair_ptr + number * dim + feature, pairs[None, :], mask=feature < dim)


@triton.jit(do_not_specialize=(*ANY, *LISTS))
def sort_whole(
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
    LOGQ: tl.constexpr,
    BD: tl.constexpr,
):
    """As _sort, for sets that registers hold."""
    tensors = x_ptr, w_ptr, y_ptr, key_ptr, column_ptr, pair_ptr
    sets = offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length, dim
    strides = stride_g, stride_b, stride_n, stride_d
    if count_ptr is None:
        g, b, d = start(dim, BD)
        _sort_set(*tensors, *sets, *strides, knots, g, b, d, WIDE, LOGR, LOGC, LOGQ, BD)
    else:
        g = tl.program_id(1).to(tl.int64)
        tiles = in_list(count_ptr, g, dim, BD)
        for i in tl.range(tl.program_id(0), tiles, tl.num_programs(0), disable_licm=True):
            b, d = listed(i, number_ptr, g, batch, dim, BD)
            _sort_set(*tensors, *sets, *strides, knots, g, b, d, WIDE, LOGR, LOGC, LOGQ, BD)


@triton.jit
def _sort_set_again(
    rank_ptr,
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
    feature,
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    LOGQ: tl.constexpr,
    BD: tl.constexpr,
):
    d, row = _blocks_of(feature, LOGR + LOGC, LOGQ, BD)
    _, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    pairs = tl.load(pair_ptr + (g * batch + b) * dim + d, mask=d < dim, other=0)
    many = pairs > MANY
    rank_ptr += first * dim + d
    if tl.max(many.to(tl.int32)) > 0:
        element = is_element(row, first, rows, mask_ptr) & many
        rank = tl.load(rank_ptr + index(row, WIDE) * dim, mask=element, other=0).to(tl.int32)
        key = tl.where(element, -(rank * NUMBERED + row), LOWEST)
        key = sort_blocks(key, LOGR, LOGC, LOGQ, BD)
        to = rank_ptr + index(-key & (NUMBERED - 1), WIDE) * dim
        tl.store(to, row.to(rank_ptr.dtype.element_ty), mask=(row < size) & many)


@triton.jit(do_not_specialize=(*ANY[:-1], *LISTS))
def sort_whole_again(
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
    WIDE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    LOGQ: tl.constexpr,
    BD: tl.constexpr,
):
    """As _sort_again, for the sets of sort_whole."""
    sets = offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length, dim
    if count_ptr is None:
        g, b, d = start(dim, BD)
        _sort_set_again(rank_ptr, pair_ptr, *sets, g, b, d, WIDE, LOGR, LOGC, LOGQ, BD)
    else:
        g = tl.program_id(1).to(tl.int64)
        tiles = in_list(count_ptr, g, dim, BD)
        for i in tl.range(tl.program_id(0), tiles, tl.num_programs(0), disable_licm=True):
            b, d = listed(i, number_ptr, g, batch, dim, BD)
            _sort_set_again(rank_ptr, pair_ptr, *sets, g, b, d, WIDE, LOGR, LOGC, LOGQ, BD)


def tiles(sets: Sets, top: int) -> list[tuple[int, int]]:
    """log2 of the blocks of the tiles that sets of these lengths may need, and their features."""
    fitting = [log for log in WHOLE if 1 << (top + log - 1) < sets.longest]
    if not (sets.packed or sets.varied):  # all have one length
        fitting = fitting[-1:] if sets.longest <= 1 << (top + max(WHOLE)) else []
    return [(log, WHOLE[log]) for log in fitting]
