"""Hard FSPool on CUDA: each column of a set is sorted, weighted and summed in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..shapes import (
    LARGEST_TILE,
    layout_of,
    no_ranks,
    no_rows,
    pooled_shape,
    rank_dtype,
    rows_shape,
    sorted_dtype,
)
from . import blocks, large
from .counts import cdiv
from .lists import Lists, in_list, listed
from .moves import scatter
from .piecewise import FEW, load_weights
from .pull import SMALL, is_of_small, sum_knots, sum_ranked, unpool_rows
from .rest import clear_rest
from .sets import ANY, LISTS, Sets, find, is_element, near, origin, program, strides
from .sorting import (
    LOWEST,
    count_larger,
    key_of,
    one_group,
    rank_again,
    sort_tile,
    take_places,
    tie_key,
    value_of,
)

# log2 of the rows that a tile has: rows of a thread, groups of rows, features, warps, and registers
# of a thread where fewer than the compiler would take let more programs run at once.
TILES = {
    3: (3, 0, 32, 1, None),
    4: (4, 0, 32, 1, 96),
    5: (5, 0, 32, 1, 168),
    6: (4, 2, 32, 4, 80),
    7: (5, 2, 32, 4, 128),
    8: (5, 3, 32, 8, 128),
    9: (4, 5, 8, 8, 128),
    10: (5, 5, 16, 16, None),
}
# For padded sets of different lengths, by the largest: few, as each is a launch, near most sets.
MIXED = {7: (5, 7), 8: (6, 8), 9: (7, 8, 9), 10: (5, 6, 8, 9, 10)}
SMALLEST = 5  # of packed sets, which have them all from there on: few sets are looked at again
LISTED = 8  # from which on sets are looked for beforehand: few of so large programs run at once
TIES = 2  # log2 of the groups of rows up to which a tile ranks equal numbers itself
TOP = LARGEST_TILE
LOOKED_AT = 32  # places at which one program looks for ties
HUGE = 1 << 14  # rows of a padded set from which on a sort by the whole device is faster


@triton.jit
def _refuse(y_ptr, rank_ptr, sorted_ptr, at, first, rows, d, dim, BN: tl.constexpr):
    """NaN for a set that has more rows than was promised, and ranks that lead nowhere else."""
    tl.store(y_ptr + at, float("nan"), mask=d < dim)
    for r in range(0, rows, BN):
        row = r + tl.arange(0, BN)[:, None]
        place = (first + row) * dim + d
        inside = (row < rows) & (d < dim)
        if rank_ptr is not None:
            tl.store(rank_ptr + place, row.to(rank_ptr.dtype.element_ty), mask=inside)
        if sorted_ptr is not None:
            tl.store(sorted_ptr + place, float("nan"), mask=inside)


@triton.jit
def _give_sorted(
    w_ptr, y_ptr, sorted_ptr, largest_first, row, size, d, inside, knots, dim, dtype: tl.constexpr
):
    """The numbers of a set in sorted order, and their weighted sum, where they are asked for."""
    if w_ptr is not None or sorted_ptr is not None:
        ranked = value_of(largest_first, dtype)
        if sorted_ptr is not None:
            tl.store(sorted_ptr + (row * dim + d), ranked, mask=inside)
        if w_ptr is not None:
            weight = load_weights(w_ptr, row, size, d, inside, knots, dim)
            y = tl.sum(tl.where(inside, weight * ranked.to(tl.float32), 0.0), axis=0)[None, :]
            tl.store(y_ptr, y, mask=d < dim)


@triton.jit
def _first_ties(rank, size, inside, element, BD: tl.constexpr):
    """Equal numbers that are one group of a column in order, and which columns have still ties."""
    total = size * (size - 1) // 2  # of the ranks of a column without ties
    counted = tl.where(element, rank, 0)
    tied = (inside & (tl.sum(counted, axis=0)[None, :] < total)).to(tl.int32)
    if _agreed(tl.sum(tied) > BD // 4):  # fewer are left to _break_ties
        rank, tied = one_group(tl.where(element, rank, -1), size, inside)
    return rank, tied


@triton.jit
def _agreed(yes):
    """What a program agrees on, by an instruction that has one result for all threads of a warp.

    The compiler sees that they stay together, and makes shuffles for no other case.
    """
    return tl.max(tl.zeros((32,), tl.int32) + yes.to(tl.int32)) > 0


@triton.jit
def _pool_set(
    x_ptr,
    w_ptr,
    y_ptr,
    rank_ptr,
    tie_ptr,
    sorted_ptr,
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
    FILL: tl.constexpr,
    AGAIN: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BD: tl.constexpr,
):
    """Some features of a set that the tile has room for.

    Packed sets are often graphs, where most columns have ties. Large ones sort such a tile in a
    second turn by rank and row, with the code of the first: there are no registers for two sorts.
    """
    BN: tl.constexpr = 1 << (LOGR + LOGC)
    packed, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    row = tl.arange(0, BN)[:, None]
    element = is_element(row, first, rows, mask_ptr) & (d < dim)
    x_ptr += origin(g, b, packed, stride_g, stride_b, stride_n)
    x = tl.load(x_ptr + row * stride_n + d * stride_d, mask=element, other=0.0)
    key = tl.where(element, key_of(x, row), LOWEST)
    if w_ptr is not None:
        w_ptr += g * knots * dim
        y_ptr += (g * batch + b) * dim + d
    if sorted_ptr is not None:
        sorted_ptr += first * dim
    if rank_ptr is not None:
        rank_ptr += first * dim
    if tie_ptr is not None:
        tie_ptr += (g * batch + b) * dim + d
    if (offsets_ptr is not None) & (tie_ptr is not None):
        turn = 0
        while turn >= 0:
            largest_first = sort_tile(key, LOGR, LOGC, BD)
            # The same number of rows once more, so that the compiler makes what depends on it here
            # again: all turns long there are no registers for addresses and weights.
            _, _, same, _ = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
            row_again = row + (same - rows)
            valid = (row_again < size) & (d < dim)
            if turn == 0:
                _give_sorted(
                    *(w_ptr, y_ptr, sorted_ptr, largest_first, row_again, size, d, valid),
                    *(knots, dim, x.dtype),
                )
            rank = count_larger(largest_first, key, LOGR + LOGC, BD)
            rank, tied = _first_ties(rank, size, d < dim, valid, BD)
            tl.store(tie_ptr, tied, mask=d < dim)
            turn = tl.where(_agreed(tl.sum(tied) > BD // 4), turn + 1, -1)
            key = tie_key(rank, row_again, valid, LOGR + LOGC)
        rank = -key >> (LOGR + LOGC)
        tl.store(rank_ptr + (row * dim + d), rank.to(rank_ptr.dtype.element_ty), mask=element)
    else:
        largest_first = sort_tile(key, LOGR, LOGC, BD)
        inside = (row < size) & (d < dim)
        _give_sorted(
            *(w_ptr, y_ptr, sorted_ptr, largest_first, row, size, d, inside, knots, dim, x.dtype)
        )
        if rank_ptr is not None:
            rank = count_larger(largest_first, key, LOGR + LOGC, BD)
            if x.dtype.primitive_bitwidth > 16:  # smaller keys know their rows
                if AGAIN:  # a warp has one sum for all features sooner than one for each
                    total = size * (size - 1) // 2 * tl.sum((d < dim).to(tl.int32))
                    if tl.sum(tl.where(element, rank, 0)) < total:
                        if LOGC == 0:
                            rank = take_places(rank, LOGR, BD)
                        else:
                            rank = rank_again(rank, row, element, LOGR, LOGC, BD)
                else:
                    rank, tied = _first_ties(rank, size, d < dim, element, BD)
                    tl.store(tie_ptr, tied, mask=d < dim)
            if offsets_ptr is None and mask_ptr is None:  # padding comes last, by position
                rank = tl.where(element, rank, row)
                element = (row < length) & (d < dim)
            at = row * dim + d
            tl.store(rank_ptr + at, rank.to(rank_ptr.dtype.element_ty), mask=element)
            if FILL:
                for r in range(BN, length, BN):
                    last = (r + row + d * 0).to(rank_ptr.dtype.element_ty)
                    tl.store(rank_ptr + r * dim + at, last, mask=(r + row < length) & (d < dim))


@triton.jit(do_not_specialize=(*ANY, *LISTS, "above"))
def _pool(
    x_ptr,
    w_ptr,
    y_ptr,
    rank_ptr,
    tie_ptr,
    sorted_ptr,
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
    above,
    FILL: tl.constexpr,
    AGAIN: tl.constexpr,
    LAST: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BD: tl.constexpr,
):
    """The sets of a list; or without one those of more than ``above`` rows, and at most those of
    the tile. The last tile refuses larger ones."""
    BN: tl.constexpr = 1 << (LOGR + LOGC)
    tensors = x_ptr, w_ptr, y_ptr, rank_ptr, tie_ptr, sorted_ptr
    sets = offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length
    strides = stride_g, stride_b, stride_n, stride_d
    if count_ptr is None:
        g, b, d = program(dim, BD)
        _, first, rows, _ = find(g, b, *sets)
        if (rows <= above) | (rows > BN):
            if LAST:
                if rows > BN:
                    at = (g * batch + b) * dim + d
                    _refuse(y_ptr, rank_ptr, sorted_ptr, at, first, rows, d, dim, BN)
            return
        _pool_set(*tensors, *sets, dim, *strides, knots, g, b, d, FILL, AGAIN, LOGR, LOGC, BD)
    else:
        g = tl.program_id(1).to(tl.int64)
        tiles = in_list(count_ptr, g, dim, BD)
        for i in tl.range(tl.program_id(0), tiles, tl.num_programs(0), disable_licm=True):
            b, d = listed(i, number_ptr, g, batch, dim, BD)
            d += tl.arange(0, BD)[None, :]
            _, first, rows, _ = find(g, b, *sets)
            if rows <= BN:
                _pool_set(
                    *tensors, *sets, dim, *strides, knots, g, b, d, FILL, AGAIN, LOGR, LOGC, BD
                )
            elif LAST:
                at = (g * batch + b) * dim + d
                _refuse(y_ptr, rank_ptr, sorted_ptr, at, first, rows, d, dim, BN)


@triton.jit(do_not_specialize=(*ANY, "above"))
def _break_ties(
    rank_ptr,
    tie_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    above,
    SHARE: tl.constexpr,
    LOGR: tl.constexpr,
    LOGC: tl.constexpr,
    BD: tl.constexpr,
):
    """Equal elements, which all have the rank of their first one, in the order of their rows.

    Columns of one warp that have ties are sorted again, by rank and row. A program looks for them
    at some places, since most have none.
    """
    BN: tl.constexpr = 1 << (LOGR + LOGC)
    g = tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(dim, BD)
    tile = tl.program_id(0) * SHARE + tl.arange(0, SHARE)
    known = tile < batch * blocks
    d = (tile % blocks)[:, None] * BD + tl.arange(0, BD)[None, :]
    flags = tie_ptr + (g * batch + (tile // blocks)[:, None]) * dim + d
    tied = tl.max(tl.load(flags, mask=known[:, None] & (d < dim), other=0), axis=1) > 0
    b = tl.minimum(tile // blocks, batch - 1)
    _, _, rows, _ = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    tied &= (rows > above) & (rows <= BN)  # the flags of other sets hold anything
    row = tl.arange(0, BN)[:, None]
    last = tl.max(tl.where(tied, tile, -1))
    while last >= 0:
        f = (last % blocks) * BD + tl.arange(0, BD)[None, :]
        s = last // blocks
        packed, first, own, size = find(
            g, s, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length
        )
        element = is_element(row, first, own, mask_ptr) & (f < dim)
        at = rank_ptr + first * dim + (row * dim + f)
        rank = tl.load(at, mask=element, other=0).to(tl.int32)
        rank = rank_again(rank, row, element, LOGR, LOGC, BD)
        tl.store(at, rank.to(rank_ptr.dtype.element_ty), mask=element)
        last = tl.max(tl.where(tied & (tile < last), tile, -1))


def _sort(x: Tensor, sets: Sets, weight, y, ranks, ordered) -> None:
    """Launch the tiles that sets of these lengths may need: each set is found by one of them."""
    x = near(x)
    knots = 1 if weight is None else weight.shape[1]
    above = -1
    with torch.cuda.device_of(x):
        lists = _lists(sets)
        for log in _tiles(sets):
            logr, logc, features, warps, registers = TILES[log]
            fill = sets.varied and ranks is not None and sets.length > 1 << log
            ties = None
            again = logc <= TIES
            if ranks is not None and x.dtype.itemsize > 2 and not again:
                flags = (sets.replicas, sets.batch, sets.dim)
                ties = torch.empty(flags, dtype=torch.int32, device=x.device)
            some, grid = (None, None), sets.grid(sets.batch, features)
            if lists and log >= LISTED:
                some, grid = lists.of(log), lists.grid(features, warps, above)
            _pool[grid](
                *(x, weight, y, ranks, ties, ordered, *some),
                *(*sets.args, *strides(x), knots, above),
                *(fill, again, sets.promised and sets.longest <= 1 << log, logr, logc, features),
                num_warps=warps,
                maxnreg=registers,
            )
            if ties is not None:
                width = 32 >> logc  # columns of one warp
                tiles = sets.batch * cdiv(sets.dim, width)
                _break_ties[cdiv(tiles, LOOKED_AT), sets.replicas](
                    *(ranks, ties, *sets.args, above, LOOKED_AT, logr, logc, width),
                    num_warps=1,
                )
            above = 1 << log
        if sets.longest > TOP:
            large.sort(x, sets, weight, y, ranks, ordered, max(TILES), lists)


def _lists(sets: Sets) -> Lists | None:
    """Of the sets of large tiles, where there may be others."""
    tiles, top = _tiles(sets), max(TILES)
    first = next((log for log in tiles if log >= LISTED), None)
    if first is None or not (sets.packed or sets.varied):
        return None
    least = max((1 << log for log in tiles if log < first), default=-1)
    last = tiles[-1]
    if sets.longest > TOP:
        last = top + 1 + max(log for log, _ in blocks.tiles(sets, top))
    return Lists(sets, least, first, last, top)


def _tiles(sets: Sets) -> list[int]:
    """log2 of their rows."""
    log = max(min(TILES), (sets.longest - 1).bit_length())
    top = min(log, max(TILES))
    if sets.packed:
        steps = range(min(SMALLEST, top), top + 1)
    elif sets.varied:
        steps = MIXED.get(top, [top])
    else:
        steps = [log]
    return [step for step in steps if step in TILES]


def _is_huge(sets: Sets) -> bool:
    """Is one set work for the whole device? torch's sort shares it out; here a program has it."""
    return sets.length > HUGE and not sets.packed


def _transposed(weight: Tensor) -> Tensor:
    """Knots (G, k, D): neighbouring features next to one another, as in x."""
    return weight.float().transpose(1, 2).contiguous()


def _knots(weight: Tensor, sets: Sets) -> Tensor:
    """Knots (G, k, D) for a kernel that knows the ranks: small sets read them again and again."""
    small = sets.length <= SMALL or is_of_small(sets) and weight.shape[-1] <= FEW.value
    return _transposed(weight) if small else weight.float().transpose(1, 2)


def _new_ranks(x: Tensor, sets: Sets, offsets: Tensor | None) -> Tensor:
    """Memory for ranks, with those in place of what is no element: after the elements, by position;
    0 after packed sets."""
    ranks = torch.empty(x.shape, dtype=rank_dtype(x.shape, offsets), device=x.device)
    if sets.mask is not None:
        fill = sets.mask.sum(-1, keepdim=True) + (~sets.mask).cumsum(-1) - 1
        ranks.copy_(fill.unsqueeze(-1))
    return clear_rest(ranks, sets)


# --------------------------------------------------------------------------------------------------
# The operators of ../pool.py


def pool(x: Tensor, weight: Tensor, mask, lengths, offsets, ranked: bool, kept: bool, longest=None):
    sets, knots = Sets(x.shape, mask, lengths, offsets, longest), _transposed(weight)
    y = torch.empty(pooled_shape(x, offsets), dtype=x.dtype, device=x.device)
    if _is_huge(sets):
        order = ranks(x, mask, lengths, offsets)
        sum_ranked(x, knots, order, sets, y)
        ordered = scatter(x.to(sorted_dtype(x)), order, sets) if kept else no_rows(x)
        return y, order if ranked else no_ranks(x, offsets), ordered
    order = _new_ranks(x, sets, offsets) if ranked else None
    ordered = None
    if kept or sets.longest > TOP:  # large sets are sorted there
        ordered = torch.empty(x.shape, dtype=sorted_dtype(x), device=x.device)
    if y.numel():
        _sort(x, sets, knots, y, order, ordered)
    return (
        y,
        no_ranks(x, offsets) if order is None else order,
        ordered if kept else no_rows(x),
    )


def ranks(x: Tensor, mask, lengths, offsets) -> Tensor:
    sets = Sets(x.shape, mask, lengths, offsets)
    if _is_huge(sets):
        layout = layout_of(x.shape, x.device, mask, lengths, offsets)
        return layout.ranks(x).to(rank_dtype(x.shape, offsets)).contiguous()
    order = _new_ranks(x, sets, offsets)
    ordered = None
    if sets.length > TOP:
        ordered = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if order.numel():
        _sort(x, sets, None, None, order, ordered)
    return order


def pool_ranked(x: Tensor, weight: Tensor, ranks, mask, lengths, offsets) -> Tensor:
    y = torch.empty(pooled_shape(x, offsets), dtype=x.dtype, device=x.device)
    sets = Sets(x.shape, mask, lengths, offsets)
    sum_ranked(x, _knots(weight, sets), ranks, sets, y)
    return y


def unpool(z: Tensor, weight: Tensor, ranks, mask, lengths, offsets, rows: int) -> Tensor:
    sets = Sets(rows_shape(z, rows, offsets), mask, lengths, offsets)
    return unpool_rows(z, _knots(weight, sets), ranks, sets)


def knots(z: Tensor, x: Tensor, ranks, mask, lengths, offsets, knots: int, dtype) -> Tensor:
    sets = Sets(x.shape, mask, lengths, offsets)
    ordered = x.contiguous() if ranks is None else scatter(x, ranks, sets)
    return sum_knots(z, ordered, sets, knots, dtype)


def pull(z: Tensor, x: Tensor, weight: Tensor, ranks: Tensor, kept, mask, lengths, offsets):
    sets = Sets(ranks.shape, mask, lengths, offsets)
    ordered = kept.contiguous() if kept.shape == x.shape else scatter(x, ranks, sets)
    dx = unpool_rows(z, _knots(weight, sets), ranks, sets)
    return dx, sum_knots(z, ordered, sets, weight.shape[-1], weight.dtype)
