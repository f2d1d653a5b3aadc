"""Hard FSPool on the CPU: sort packed keys with numpy, keep the ranks in a byte or two.

The operators are the partial derivatives of one trilinear form,
``sum_ij g_i f(rank_ij / (n - 1)) x_ij``: to g (pool), to x (unpool), to the knots. So each one's
backward calls the other two, and all are differentiable any number of times.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from ..functional.inputs import compute_dtype
from .chunks import Chunk, covers, empty, plan, run, scratch, to_numpy
from .operator import SETS, differentiate, operator
from .packed_sort import rank_block, sort_block
from .piecewise import Table, gather_knots, make_table


def rank_dtype(shape: tuple[int, ...], offsets: Tensor | None) -> torch.dtype:
    """The smallest integers that hold every rank; packed sets may have any size."""
    if offsets is not None:
        return torch.int32
    length = shape[2]
    return torch.uint8 if length <= 256 else torch.int16 if length <= 32768 else torch.int32


def pooled_shape(x: Tensor, offsets: Tensor | None) -> tuple[int, int, int]:
    batch = x.shape[1] if offsets is None else offsets.shape[0] - 1
    return x.shape[0], batch, x.shape[-1]


# --------------------------------------------------------------------------------------------------
# numpy, a chunk at a time


def _lookup(chunk: Chunk, ranks: np.ndarray) -> np.ndarray:
    """Where every element of a chunk belongs in a flat (n, features) table."""
    index = scratch("low", chunk.shape, np.int64)
    np.multiply(chunk.take(ranks), chunk.shape[2], out=index, dtype=np.int64)
    index += np.arange(chunk.shape[2])
    return index


def _weights(
    chunk: Chunk, index: np.ndarray, table_of: Table, batch: int, groups: int
) -> np.ndarray:
    """f(rank) of every element of a chunk."""
    table = np.ascontiguousarray(table_of(chunk.size)[..., chunk.features])
    if groups > 1:
        index = index + (chunk.replicas(batch) * table[0].size)[:, None, None]
    weights = scratch("weights", chunk.shape, table.dtype)
    return np.take(table.reshape(-1), index, out=weights, mode="clip")


def _sum_by_rank(
    chunk: Chunk, index: np.ndarray, x: np.ndarray, z: np.ndarray, batch: int, groups: int
) -> np.ndarray:
    """The sum of z x over the sets of a chunk, for every replica and rank, (G, n, features).

    Overwrites the index.
    """
    sets, size, dim = chunk.shape
    index += (np.arange(sets) * (size * dim))[:, None, None]
    by_rank = scratch("keys", chunk.shape, x.dtype)
    by_rank.reshape(-1)[index.reshape(-1)] = chunk.take(x).reshape(-1)
    total = np.zeros((groups, size, dim))
    replicas, scale = chunk.replicas(batch), z[chunk.sets, chunk.features]
    for g in np.unique(replicas):
        own = slice(*np.searchsorted(replicas, (g, g + 1)))
        total[g] = np.einsum("sd,snd->nd", scale[own], by_rank[own])
    return total


def _collect(parts, groups: int, dim: int, knots: int, dtype: torch.dtype) -> Tensor:
    """Sums by rank of all chunks to the knots, in the order of the chunks: always the same bits."""
    total = np.zeros((groups, knots, dim))
    for size, same in groupby(parts, key=lambda part: part[0].size):
        by_rank = np.zeros((groups, size, dim))
        for chunk, part in same:
            by_rank[..., chunk.features] += part
        total += gather_knots(by_rank, knots)
    return torch.from_numpy(total).transpose(1, 2).to(dtype).contiguous()


# --------------------------------------------------------------------------------------------------
# Operators. x is (G, B, N, D), or (G, T, D) with offsets; weight (G, D, k); z and y (G, B, D).


def _new_ranks(x: Tensor, chunks: list[Chunk], mask: Tensor | None, offsets) -> Tensor:
    """Memory for ranks, with those of the padding in place: after the elements, by position."""
    ranks = empty(x.shape, rank_dtype(x.shape, offsets))
    if covers(chunks, x):
        return ranks
    if mask is None:
        fill = torch.arange(x.shape[2])
    else:
        fill = mask.sum(-1, keepdim=True) + (~mask).cumsum(-1) - 1
    return ranks.copy_(fill.unsqueeze(-1))


def _pool(x: Tensor, weight: Tensor, mask, lengths, offsets, ranked: bool):
    groups, batch, dim = pooled_shape(x, offsets)
    rows, chunks = to_numpy(x), plan(x.shape, mask, lengths, offsets)
    ranks = _new_ranks(x, chunks, mask, offsets) if ranked else _no_ranks(x, offsets)
    flat_ranks = ranks.numpy().reshape(-1, dim)
    table_of = make_table(-weight, np.float64, by_feature=True)
    y = np.zeros((groups * batch, dim))

    def work(chunk: Chunk) -> None:
        block = chunk.take(rows)
        values = rank_block(block, chunk, flat_ranks) if ranked else sort_block(block)
        table = table_of(chunk.size)[:, chunk.features]
        if groups == 1:
            y[chunk.sets, chunk.features] = np.einsum("sdn,dn->sd", values, table[0])
        else:
            table = table[chunk.replicas(batch)]
            y[chunk.sets, chunk.features] = np.einsum("sdn,sdn->sd", values, table)

    run(work, chunks)
    return torch.from_numpy(y).to(x.dtype).reshape(groups, batch, dim), ranks


def _no_ranks(x: Tensor, offsets: Tensor | None) -> Tensor:
    shape = (x.shape[0], *[0] * (x.ndim - 2), x.shape[-1])
    return torch.empty(shape, dtype=rank_dtype(x.shape, offsets), device=x.device)


def _pool_fake(x, weight, mask, lengths, offsets, ranked):
    ranks = _ranks_fake(x, mask, lengths, offsets) if ranked else _no_ranks(x, offsets)
    return x.new_empty(pooled_shape(x, offsets)), ranks


pool = operator(
    "pool",
    f"(Tensor x, Tensor weight, {SETS}, bool ranked) -> (Tensor, Tensor)",
    _pool,
    _pool_fake,
)


def _ranks(x: Tensor, mask, lengths, offsets) -> Tensor:
    rows, chunks = to_numpy(x), plan(x.shape, mask, lengths, offsets)
    ranks = _new_ranks(x, chunks, mask, offsets)
    flat_ranks = ranks.numpy().reshape(-1, x.shape[-1])

    def work(chunk: Chunk) -> None:
        rank_block(chunk.take(rows), chunk, flat_ranks)

    run(work, chunks)
    return ranks


def _ranks_fake(x, mask, lengths, offsets):
    return torch.empty(x.shape, dtype=rank_dtype(x.shape, offsets), device=x.device)


ranks = operator("ranks", f"(Tensor x, {SETS}) -> Tensor", _ranks, _ranks_fake)


def _pool_ranked(x: Tensor, weight: Tensor, ranks: Tensor, mask, lengths, offsets) -> Tensor:
    groups, batch, dim = pooled_shape(x, offsets)
    rows, flat_ranks = to_numpy(x), ranks.numpy().reshape(-1, dim)
    table_of = make_table(weight, rows.dtype.type)
    y = np.zeros((groups * batch, dim))

    def work(chunk: Chunk) -> None:
        weights = _weights(chunk, _lookup(chunk, flat_ranks), table_of, batch, groups)
        weights *= chunk.take(rows)
        y[chunk.sets, chunk.features] = weights.sum(1, dtype=np.float64)

    run(work, plan(x.shape, mask, lengths, offsets))
    return torch.from_numpy(y).to(x.dtype).reshape(groups, batch, dim)


def _pool_ranked_fake(x, weight, ranks, mask, lengths, offsets):
    return x.new_empty(pooled_shape(x, offsets))


pool_ranked = operator(
    "pool_ranked",
    f"(Tensor x, Tensor weight, Tensor ranks, {SETS}) -> Tensor",
    _pool_ranked,
    _pool_ranked_fake,
)


def _unpool(z: Tensor, weight: Tensor, ranks: Tensor, mask, lengths, offsets) -> Tensor:
    return _pull(z, None, weight, ranks, mask, lengths, offsets)[0]


def _unpool_fake(z, weight, ranks, mask, lengths, offsets):
    return z.new_empty(ranks.shape)


unpool = operator(
    "unpool",
    f"(Tensor z, Tensor weight, Tensor ranks, {SETS}) -> Tensor",
    _unpool,
    _unpool_fake,
)


def _knots(
    z: Tensor, x: Tensor, ranks: Tensor, mask, lengths, offsets, knots: int, dtype
) -> Tensor:
    groups, batch, dim = z.shape
    flat_z, rows, flat_ranks = to_numpy(z), to_numpy(x), ranks.numpy().reshape(-1, dim)

    def work(chunk: Chunk) -> tuple[Chunk, np.ndarray]:
        index = _lookup(chunk, flat_ranks)
        return chunk, _sum_by_rank(chunk, index, rows, flat_z, batch, groups)

    parts = run(work, plan(ranks.shape, mask, lengths, offsets))
    return _collect(parts, groups, dim, knots, dtype)


def _knots_fake(z, x, ranks, mask, lengths, offsets, knots, dtype):
    return torch.empty(z.shape[0], z.shape[2], knots, dtype=dtype, device=z.device)


knots = operator(
    "knots",
    f"(Tensor z, Tensor x, Tensor ranks, {SETS}, int knots, ScalarType dtype) -> Tensor",
    _knots,
    _knots_fake,
)


def _pull(z: Tensor, x: Tensor | None, weight: Tensor, ranks: Tensor, mask, lengths, offsets):
    """Unpool z and, where x is given, its knots as well, from one look at the ranks."""
    groups, batch, dim = z.shape
    flat_z, flat_ranks = to_numpy(z), ranks.numpy().reshape(-1, dim)
    given = None if x is None else to_numpy(x)
    table_of = make_table(weight, flat_z.dtype.type)
    chunks = plan(ranks.shape, mask, lengths, offsets)
    out = empty(ranks.shape, compute_dtype(z), None if covers(chunks, ranks) else 0)
    rows = out.numpy().reshape(-1, dim)

    def work(chunk: Chunk) -> tuple[Chunk, np.ndarray | None]:
        index = _lookup(chunk, flat_ranks)
        weights = _weights(chunk, index, table_of, batch, groups)
        z_block = flat_z[chunk.sets, chunk.features][:, None]
        if isinstance(chunk.rows, slice):
            np.multiply(weights, z_block, out=chunk.take(rows))
        else:
            chunk.put(rows, np.multiply(weights, z_block, out=weights))
        if given is None:
            return chunk, None
        return chunk, _sum_by_rank(chunk, index, given, flat_z, batch, groups)

    parts = run(work, chunks)
    dw = None if given is None else _collect(parts, groups, dim, weight.shape[-1], weight.dtype)
    return out.to(z.dtype), dw


def _pull_fake(z, x, weight, ranks, mask, lengths, offsets):
    return z.new_empty(ranks.shape), weight.new_empty(weight.shape)


pull = operator(
    "pull",
    f"(Tensor z, Tensor x, Tensor weight, Tensor ranks, {SETS}) -> (Tensor, Tensor)",
    _pull,
    _pull_fake,
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember_pool(ctx, inputs, output) -> None:
    x, weight, *sets, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1], *sets)


def _pool_backward(ctx, dy: Tensor | None, *_):
    """Of pool (whose second output, the ranks, has no gradient) and of pool_ranked."""
    if dy is None:
        return (None,) * 6
    x, weight, ranks, *sets = ctx.saved_tensors
    if all(ctx.needs_input_grad[:2]) and not torch.is_grad_enabled():
        return *pull(dy, x, weight, ranks, *sets), *[None] * 4  # both in one go, the common case
    dx = unpool(dy, weight, ranks, *sets) if ctx.needs_input_grad[0] else None
    return dx, _knot_gradient(ctx, dy, x, weight, ranks, sets), *[None] * 4


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:6])


def _unpool_backward(ctx, dx: Tensor):
    z, weight, ranks, *sets = ctx.saved_tensors
    dz = pool_ranked(dx, weight, ranks, *sets) if ctx.needs_input_grad[0] else None
    return dz, _knot_gradient(ctx, z, dx, weight, ranks, sets), *[None] * 4


def _knots_backward(ctx, dw: Tensor):
    z, x, ranks, *sets = ctx.saved_tensors
    dz = pool_ranked(x, dw, ranks, *sets) if ctx.needs_input_grad[0] else None
    dx = unpool(z, dw, ranks, *sets) if ctx.needs_input_grad[1] else None
    return dz, dx, *[None] * 6


def _knot_gradient(ctx, z, x, weight, ranks, sets) -> Tensor | None:
    if not ctx.needs_input_grad[1]:
        return None
    return knots(z, x, ranks, *sets, weight.shape[-1], weight.dtype)


differentiate(pool, _pool_backward, _remember_pool)
differentiate(pool_ranked, _pool_backward, _remember)
differentiate(unpool, _unpool_backward, _remember)
differentiate(knots, _knots_backward, _remember)
