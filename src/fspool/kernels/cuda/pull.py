"""Kernels that know the ranks: unpool, the gradient to the knots, and sums over ranked rows.

Where there are no ranks, rows lie in their order: row j of a set has rank j.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import cdiv, power_of_2
from .piecewise import (
    FEW,
    LOADED,
    find_weights,
    knot_of,
    load_few,
    load_knots,
    load_weights,
    select_weights,
)
from .rest import clear_rest
from .sets import ANY, Sets, find, index, is_element, is_wide, near, origin, program, strides

FEATURES = 32  # of a tile
SMALL = 32  # rows of a set up to which one tile has all of its ranks
ROWS, WARPS, REGISTERS = 64, 4, 64  # of a tile of larger sets
PROGRAMS = 1024  # enough to fill a device
SHARED = 32  # sets at most that one program sums over
PARTS, FINISH = 64, 16  # partial sums, and knots, of a program that adds them up


def split_rows(sets: Sets, rows: int) -> int:
    """Programs that share the rows of a set."""
    if not sets.packed:
        return cdiv(sets.length, rows)
    mean = cdiv(sets.length, max(sets.batch, 1))
    return min(64, cdiv(2 * mean, rows))  # most sets are done in one turn


def is_of_small(sets: Sets) -> bool:
    """Packed sets that mostly fit into one tile."""
    return sets.packed and sets.length <= ROWS * sets.batch


@triton.jit
def load_ranks(rank_ptr, at, row, d, element):
    """The ranks of some rows of a set."""
    rank = row + d * 0
    if rank_ptr is not None:
        rank = tl.load(rank_ptr + at, mask=element, other=0).to(tl.int32)
    return rank


@triton.jit(do_not_specialize=(*ANY, "share"))
def _unpool_small(
    z_ptr,
    w_ptr,
    rank_ptr,
    x_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    stride_g,
    stride_k,
    stride_d,
    knots,
    share,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """x = f(rank) z, zeros in the padding: ``share`` sets that have no more ranks than a tile rows.

    So f is made for every rank, and again only where a set has another size than the last.
    """
    g, chunk, d = program(dim, BD)
    w_ptr += g * stride_g
    row = tl.arange(0, BR)[:, None]
    f = tl.zeros((BR, BD), tl.float32)
    known = tl.full((), -1, tl.int32)
    for b in range(chunk * share, tl.minimum(chunk * share + share, batch)):
        _, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
        if size != known:
            inside = (row < size) & (d < dim)
            f = load_weights(w_ptr, row, size, d, inside, knots, stride_k, stride_d)
            known = size
        z = tl.load(z_ptr + (g * batch + b) * dim + d, mask=d < dim, other=0.0).to(tl.float32)
        owned = rows if offsets_ptr is not None else length
        stored = (row < owned) & (d < dim)
        element = is_element(row, first, rows, mask_ptr) & stored
        at = first * dim + (row * dim + d)
        rank = load_ranks(rank_ptr, at, row, d, element)
        tl.store(x_ptr + at, tl.where(element, tl.gather(f, rank, 0) * z, 0.0), mask=stored)


@triton.jit(do_not_specialize=(*ANY, "split"))
def _unpool(
    z_ptr,
    w_ptr,
    rank_ptr,
    x_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    stride_g,
    stride_k,
    stride_d,
    knots,
    split,
    WIDE: tl.constexpr,
    KP: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """x = f(rank) z, zeros in the padding, for every ``split``-th block of rows of a set."""
    g, pid, d = program(dim, BD)
    b = pid // split
    packed, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    w_ptr += g * stride_g
    z = tl.load(z_ptr + (g * batch + b) * dim + d, mask=d < dim, other=0.0).to(tl.float32)
    if KP <= FEW:
        w = load_few(w_ptr, d, dim, stride_k, stride_d, KP)
    else:
        w = load_knots(w_ptr, d, knots, dim, stride_k, stride_d, KP)
    r = (pid % split) * BR
    owned = rows if offsets_ptr is not None else length
    while r < owned:
        row = r + tl.arange(0, BR)[:, None]
        at = first * dim + (index(row, WIDE) * dim + d)
        stored = (row < owned) & (d < dim)
        element = is_element(row, first, rows, mask_ptr) & stored
        rank = load_ranks(rank_ptr, at, row, d, element)
        if KP <= FEW:
            x = select_weights(w, rank, size) * z
        else:
            x = find_weights(w, w_ptr, rank, size, d, element, knots, stride_k, stride_d, KP) * z
        if offsets_ptr is None:  # packed sets have no padding
            x = tl.where(element, x, 0.0)
        tl.store(x_ptr + at, x, mask=stored)
        r += split * BR


def unpool_rows(z: Tensor, weight: Tensor, ranks: Tensor | None, sets: Sets) -> Tensor:
    """f(rank) z, zeros where there is no element. The weight is (G, k, D), of any strides."""
    ranks = ranks if ranks is None else ranks.contiguous()
    x = torch.empty(sets.shape, dtype=z.dtype, device=z.device)
    if not x.numel():
        return x
    knots, blocks = weight.shape[1], cdiv(sets.dim, FEATURES)
    tensors = (z.contiguous(), weight, ranks, x, *sets.args, *weight.stride(), knots)
    with torch.cuda.device_of(z):
        if sets.length <= SMALL:
            share = min(8, max(1, sets.replicas * sets.batch * blocks // (2 * PROGRAMS)))
            rows = max(8, power_of_2(sets.length))
            _unpool_small[sets.grid(cdiv(sets.batch, share), FEATURES)](
                *(*tensors, share, rows, FEATURES), num_warps=1
            )
        else:
            rows, warps, registers = ROWS, WARPS, REGISTERS
            tile = knots_tile(knots)
            if knots <= FEW.value:
                tile, registers = knots, 96  # a thread has them all
            if is_of_small(sets) and knots <= FEW.value:  # a tile of fewer rows is less often empty
                rows, warps, split = ROWS // 2, WARPS // 2, 1
            else:
                split = split_rows(sets, rows)
            _unpool[sets.grid(sets.batch * split, FEATURES)](
                *(*tensors, split, is_wide(x), tile, rows, FEATURES),
                num_warps=warps,
                maxnreg=registers,
            )
    return clear_rest(x, sets)


def knots_tile(knots: int) -> int:
    """The rows of a tile of knots: more than LOADED where they are not to be loaded at once."""
    return min(2 * LOADED.value, max(16, power_of_2(knots)))


# --------------------------------------------------------------------------------------------------


@triton.jit
def _to_knots(by_rank, r, size, knots, first_knot, KP: tl.constexpr, BR: tl.constexpr):
    """Rows (BR, BD) from rank r on summed to the knots, (KP, BD), by the hat of each knot."""
    left, beyond = knot_of(r + tl.arange(0, BR)[None, :], size, knots)
    k = first_knot + tl.arange(0, KP)[:, None]
    hat = tl.where(k == left, 1 - beyond, 0.0) + tl.where(k == left + 1, beyond, 0.0)
    return tl.dot(hat, by_rank, input_precision="ieee")


@triton.jit
def _weigh(z_ptr, sorted_ptr, b, g, first, row, size, d, batch, dim, WIDE: tl.constexpr):
    """z times the sorted x of some ranks of one set."""
    z = tl.load(z_ptr + (g * batch + b) * dim + d, mask=d < dim, other=0.0)
    at = sorted_ptr + first * dim + (index(row, WIDE) * dim + d)
    x = tl.load(at, mask=(row < size) & (d < dim), other=0.0)
    return z.to(tl.float32) * x.to(tl.float32)


@triton.jit(do_not_specialize=(*ANY, "split", "share"))
def _sum_knots(
    z_ptr,
    sorted_ptr,
    part_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    knots,
    split,
    share,
    WIDE: tl.constexpr,
    KP: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """The sum of z times the sorted x, rank by rank, brought to the knots: over ``share`` sets.

    Sets of one size have the same hats, so that their ranks are summed before; the others one by
    one. Sums in a fixed order, and no atomics: always the same bits.
    """
    g, part, d = program(dim, BD)
    start = part // split * share
    stop = tl.minimum(start + share, batch)
    _, _, _, smallest = find(g, start, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    largest = smallest
    if offsets_ptr is not None or sizes_ptr is not None:
        for b in range(start + 1, stop):
            _, _, _, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
            smallest = tl.minimum(smallest, size)
            largest = tl.maximum(largest, size)
    parts = tl.num_programs(0) // tl.cdiv(dim, BD)
    for first_knot in range(0, knots, KP):
        total = tl.zeros((KP, BD), tl.float32)
        for r in range((part % split) * BR, largest, split * BR):
            row = r + tl.arange(0, BR)[:, None]
            if smallest == largest:
                by_rank = tl.zeros((BR, BD), tl.float32)
                for b in range(start, stop):
                    _, first, _, _ = find(g, b, offsets_ptr, apart, None, mask_ptr, batch, length)
                    by_rank += _weigh(
                        z_ptr, sorted_ptr, b, g, first, row, largest, d, batch, dim, WIDE
                    )
                total += _to_knots(by_rank, r, largest, knots, first_knot, KP, BR)
            else:
                for b in range(start, stop):
                    _, first, _, size = find(
                        g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length
                    )
                    if r < size:
                        one = _weigh(z_ptr, sorted_ptr, b, g, first, row, size, d, batch, dim, WIDE)
                        total += _to_knots(one, r, size, knots, first_knot, KP, BR)
        k = first_knot + tl.arange(0, KP)[:, None]
        at = part_ptr + ((g * parts + part) * knots + k) * dim + d
        tl.store(at, total, mask=(k < knots) & (d < dim))


@triton.jit
def _nothing(K: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    totals = ()
    for _ in tl.static_range(K):
        totals = totals + (tl.zeros((BR, BD), tl.float32),)
    return totals


@triton.jit
def _add_to_knots(totals, x, left, beyond):
    """Each number by the hats of the knots next to it, where each knot has a tile of its own."""
    out = ()
    for k in tl.static_range(len(totals)):
        hat = tl.where(left == k, 1 - beyond, tl.where(left == k - 1, beyond, 0.0))
        out = out + (totals[k] + hat * x,)
    return out


@triton.jit(do_not_specialize=(*ANY[:-1], "split", "share"))
def _sum_few(
    z_ptr,
    sorted_ptr,
    part_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    split,
    share,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """``_sum_knots`` for sets of many sizes and K knots, so few that a thread adds to them all."""
    g, part, d = program(dim, BD)
    start = part // split * share
    totals = _nothing(K, BR, BD)
    for b in range(start, tl.minimum(start + share, batch)):
        _, first, _, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
        for r in range((part % split) * BR, size, split * BR):
            row = r + tl.arange(0, BR)[:, None]
            x = _weigh(z_ptr, sorted_ptr, b, g, first, row, size, d, batch, dim, WIDE)
            left, beyond = knot_of(row, size, K)
            totals = _add_to_knots(totals, x, left, beyond)
    parts = tl.num_programs(0) // tl.cdiv(dim, BD)
    for k in tl.static_range(K):
        at = part_ptr + ((g * parts + part) * K + k) * dim + d
        tl.store(at, tl.sum(totals[k], axis=0)[None, :], mask=d < dim)


def sum_knots(z: Tensor, ordered: Tensor, sets: Sets, knots: int, dtype: torch.dtype) -> Tensor:
    """The gradient to the knots, (G, D, k), from x in sorted order."""
    few = sets.packed and knots <= FEW.value
    rows = 16 if sets.length <= 16 else 32
    split = 1 if few and is_of_small(sets) else split_rows(sets, rows)
    programs = sets.replicas * sets.batch * split * cdiv(sets.dim, FEATURES)
    share = min(SHARED, max(1, programs // (4 * PROGRAMS if few else PROGRAMS)))
    parts = cdiv(sets.batch, share) * split
    sums = z.new_empty(sets.replicas, parts, knots, sets.dim, dtype=torch.float32)
    if not sums.numel():
        return _finished(sums, dtype)
    tensors, grid = (z.contiguous(), ordered, sums, *sets.args), sets.grid(parts, FEATURES)
    with torch.cuda.device_of(z):
        if few:
            _sum_few[grid](
                *(*tensors, split, share, is_wide(ordered), knots, rows, FEATURES),
                num_warps=2 if knots <= 5 else 4,
            )
        else:
            tile = min(LOADED.value, knots_tile(knots))
            _sum_knots[grid](
                *(*tensors, knots, split, share, is_wide(ordered), tile, rows, FEATURES),
                num_warps=2,
            )
    return _finished(sums, dtype)


def _finished(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Partial sums (G, parts, k, D) to (G, D, k)."""
    replicas, parts, knots, dim = sums.shape
    out = torch.empty(replicas, dim, knots, dtype=dtype, device=sums.device)
    if out.numel():
        with torch.cuda.device_of(sums):
            _finish[(out.numel() // FINISH + 1,)](
                *(sums, out, parts, dim, knots, out.numel()),
                *(PARTS, FINISH),
                num_warps=4,
            )
    return out


@triton.jit(do_not_specialize=("parts", "total", "knots"))
def _finish(sum_ptr, out_ptr, parts, dim, knots, total, BP: tl.constexpr, BE: tl.constexpr):
    """Sums (G, parts, k, D) to (G, D, k), in float64."""
    e = tl.program_id(0) * BE + tl.arange(0, BE)[None, :]
    d = e % dim
    k = (e // dim) % knots
    g = (e // dim // knots).to(tl.int64)
    acc = tl.zeros((BP, BE), tl.float64)
    for p in range(0, parts, BP):
        part = p + tl.arange(0, BP)[:, None]
        at = sum_ptr + ((g * parts + part) * knots + k) * dim + d
        acc += tl.load(at, mask=(part < parts) & (e < total), other=0.0)
    acc = tl.sum(acc, axis=0)[None, :]
    tl.store(out_ptr + (g * dim + d) * knots + k, acc, mask=e < total)


# --------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=ANY)
def _sum_ranked(
    x_ptr,
    w_ptr,
    rank_ptr,
    y_ptr,
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
    weight_g,
    weight_k,
    weight_d,
    knots,
    WIDE: tl.constexpr,
    KP: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """y = sum of f(rank) x over a set."""
    g, b, d = program(dim, BD)
    packed, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    w_ptr += g * weight_g
    w = load_knots(w_ptr, d, knots, dim, weight_k, weight_d, KP)
    x_ptr += origin(g, b, packed, stride_g, stride_b, stride_n)
    total = tl.zeros((BR, BD), tl.float64)  # large sets may cancel
    for r in range(0, rows, BR):
        row = r + tl.arange(0, BR)[:, None]
        element = is_element(row, first, rows, mask_ptr) & (d < dim)
        at = first * dim + (index(row, WIDE) * dim + d)
        rank = load_ranks(rank_ptr, at, row, d, element)
        x = tl.load(x_ptr + index(row, WIDE) * stride_n + d * stride_d, mask=element, other=0.0)
        weight = find_weights(w, w_ptr, rank, size, d, element, knots, weight_k, weight_d, KP)
        total += tl.where(element, weight * x.to(tl.float32), 0.0)
    y = tl.sum(total, axis=0)[None, :].to(tl.float32)
    tl.store(y_ptr + (g * batch + b) * dim + d, y, mask=d < dim)


def sum_ranked(x: Tensor, weight: Tensor, ranks: Tensor | None, sets: Sets, y: Tensor) -> None:
    """y = sum of f(rank) x. The weight is (G, k, D), of any strides."""
    x, ranks = near(x), ranks if ranks is None else ranks.contiguous()
    knots = weight.shape[1]
    if y.numel():
        with torch.cuda.device_of(x):
            _sum_ranked[sets.grid(sets.batch, FEATURES)](
                *(x, weight, ranks, y, *sets.args, *strides(x), *weight.stride(), knots),
                *(is_wide(x, ranks), knots_tile(knots), 32, FEATURES),
                num_warps=1,
            )
