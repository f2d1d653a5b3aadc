"""Both gradients of the hard pool in one kernel, for small sets: a launch less, z read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .piecewise import knot_of, load_weights
from .pull import FEATURES, PROGRAMS, SHARED, SMALL, finish_knots, load_ranks
from .rest import clear_rest
from .sets import ANY, Sets, find, is_element, program

REGISTERS = {16: 128}  # of a thread, by rows of a tile, where fewer let more programs run


@triton.jit(do_not_specialize=(*ANY, "share"))
def _pull_small(
    z_ptr,
    w_ptr,
    rank_ptr,
    sorted_ptr,
    x_ptr,
    part_ptr,
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
    """x = f(rank) z, zeros in the padding, and the sum of z times the sorted x, at the knots: over
    ``share`` sets that have no more ranks than a tile rows.

    f, and what was summed rank by rank, hold for one size: they change where a set has another.
    """
    g, chunk, d = program(dim, BD)
    parts = tl.num_programs(0) // tl.cdiv(dim, BD)
    part_ptr += (g * parts + chunk) * knots * dim + d
    row = tl.arange(0, BR)[:, None]
    f = tl.zeros((BR, BD), tl.float32)
    by_rank = tl.zeros((BR, BD), tl.float32)
    known = tl.full((), -1, tl.int32)
    begun = tl.full((), 0, tl.int32)
    for b in range(chunk * share, tl.minimum(chunk * share + share, batch)):
        _, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
        if size != known:
            if known >= 0:
                _add_to_knots(part_ptr, by_rank, known, begun, knots, dim, d < dim, BR)
                begun += 1
            by_rank = tl.zeros((BR, BD), tl.float32)
            inside = (row < size) & (d < dim)
            f = load_weights(w_ptr + g * stride_g, row, size, d, inside, knots, stride_k, stride_d)
            known = size
        z = tl.load(z_ptr + (g * batch + b) * dim + d, mask=d < dim, other=0.0).to(tl.float32)
        owned = rows if offsets_ptr is not None else length
        stored = (row < owned) & (d < dim)
        element = is_element(row, first, rows, mask_ptr) & stored
        at = first * dim + (row * dim + d)
        rank = load_ranks(rank_ptr, at, row, d, element)
        ordered = tl.load(sorted_ptr + at, mask=(row < size) & (d < dim), other=0.0)
        by_rank += z * ordered.to(tl.float32)
        tl.store(x_ptr + at, tl.where(element, tl.gather(f, rank, 0) * z, 0.0), mask=stored)
    _add_to_knots(part_ptr, by_rank, known, begun, knots, dim, d < dim, BR)


@triton.jit
def _add_to_knots(part_ptr, by_rank, size, begun, knots, dim, features, BR: tl.constexpr):
    """Sums by rank to the knots, by the hat of each, and to what is there, if that has begun."""
    left, beyond = knot_of(tl.arange(0, BR)[:, None], size, knots)
    for k in range(knots):
        hat = tl.where(k == left, 1 - beyond, 0.0) + tl.where(k == left + 1, beyond, 0.0)
        total = tl.sum(by_rank * hat, axis=0)[None, :]
        total += tl.load(part_ptr, mask=features & (begun > 0), other=0.0)
        tl.store(part_ptr, total, mask=features)
        part_ptr += dim


def fits(sets: Sets) -> bool:
    return 0 < sets.length <= SMALL and sets.batch > 0 and sets.dim > 0


def pull_small(
    z: Tensor, weight: Tensor, ranks: Tensor, ordered: Tensor, sets: Sets, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """f(rank) z, and the gradient to the knots (G, D, k). The weight is (G, k, D)."""
    knots = weight.shape[1]
    rows = max(8, triton.next_power_of_2(sets.length))
    blocks = sets.replicas * sets.batch * triton.cdiv(sets.dim, FEATURES)
    share = min(SHARED, max(1, blocks // PROGRAMS))
    parts = triton.cdiv(sets.batch, share)
    x = torch.empty(sets.shape, dtype=z.dtype, device=z.device)
    sums = z.new_empty(sets.replicas, parts, knots, sets.dim, dtype=torch.float32)
    with torch.cuda.device_of(z):
        _pull_small[sets.grid(parts, FEATURES)](
            *(z.contiguous(), weight, ranks.contiguous(), ordered, x, sums, *sets.args),
            *(*weight.stride(), knots, share, rows, FEATURES),
            num_warps=1,
            maxnreg=REGISTERS.get(rows),
        )
    return clear_rest(x, sets), finish_knots(sums, dtype)
