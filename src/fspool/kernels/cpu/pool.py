"""Hard FSPool on the CPU: sort packed keys with numpy, keep the ranks in a byte or two."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...functional.inputs import compute_dtype
from ..shapes import layout_of, no_ranks, no_rows, pooled_shape, rank_dtype, rows_shape
from . import small_sets
from .chunks import Chunk, covers, empty, plan, run, scratch, to_numpy
from .packed_sort import rank_block, sort_block
from .piecewise import Table, gather_knots, make_table


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
    table, places = table_of(chunk.size, chunk.replicas(batch))
    table = np.ascontiguousarray(table[..., chunk.features])
    if groups > 1:
        index = index + (places * table[0].size)[:, None, None]
    weights = scratch("weights", chunk.shape, table.dtype)
    return np.take(table.reshape(-1), index, out=weights, mode="clip")


def _weigh(
    chunk: Chunk, block: np.ndarray, ranks: np.ndarray, table_of: Table, batch: int, groups: int
) -> np.ndarray:
    """The sum of f(rank) x over every set of a chunk."""
    weights = _weights(chunk, _lookup(chunk, ranks), table_of, batch, groups)
    weights *= block
    return weights.sum(1, dtype=np.float64)


class Part(NamedTuple):
    """The sum of z x over the sets of a chunk, for every rank and every replica that is there."""

    chunk: Chunk
    replicas: np.ndarray
    by_rank: np.ndarray  # (replicas, n, features)


def _sum_by_rank(chunk: Chunk, index: np.ndarray, x: np.ndarray, z: np.ndarray, batch: int) -> Part:
    """Overwrites the index."""
    sets, size, dim = chunk.shape
    index += (np.arange(sets) * (size * dim))[:, None, None]
    by_rank = scratch("keys", chunk.shape, x.dtype)
    by_rank.reshape(-1)[index.reshape(-1)] = chunk.take(x).reshape(-1)
    scale = z[chunk.sets, chunk.features]
    replicas = chunk.replicas(batch)
    firsts = np.flatnonzero(np.diff(replicas, prepend=-1))  # sets lie replica by replica
    if len(firsts) == 1:
        total = np.einsum("sd,snd->nd", scale, by_rank)[None].astype(np.float64)
    else:
        by_rank *= scale[:, None]
        total = np.add.reduceat(by_rank, firsts, axis=0, dtype=np.float64)
    return Part(chunk, replicas[firsts], total)


def _collect(parts: list[Part], groups: int, dim: int, knots: int, dtype: torch.dtype) -> Tensor:
    """Sums by rank of all chunks to the knots, in the order of the chunks: always the same bits."""
    total = np.zeros((groups, knots, dim))
    for _, alike in groupby(parts, key=lambda part: (part.chunk.size, part.replicas.tobytes())):
        first, *rest = alike
        by_rank = np.zeros((len(first.replicas), first.chunk.size, dim))
        for part in (first, *rest):
            by_rank[..., part.chunk.features] += part.by_rank
        total[first.replicas] += gather_knots(by_rank, knots)
    return torch.from_numpy(total).transpose(1, 2).to(dtype).contiguous()


def _new_ranks(x: Tensor, chunks: list[Chunk], mask: Tensor | None, offsets) -> Tensor:
    """Memory for ranks, with those of the padding in place: after the elements, by position."""
    ranks = empty(x.shape, rank_dtype(x.shape, offsets))
    if covers(chunks, x):
        return ranks
    if offsets is not None:  # what is no element of a replica that has fewer
        return ranks.zero_()
    if mask is None:
        fill = torch.arange(x.shape[2])
    else:
        fill = mask.sum(-1, keepdim=True) + (~mask).cumsum(-1) - 1
    return ranks.copy_(fill.unsqueeze(-1))


def _in_order(shape: tuple[int, ...], offsets: Tensor | None) -> Tensor:
    """The ranks of rows that lie in their order."""
    return layout_of(shape, torch.device("cpu"), None, None, offsets).iota.expand(shape)


# --------------------------------------------------------------------------------------------------
# The operators of ../pool.py


def pool(x: Tensor, weight: Tensor, mask, lengths, offsets, ranked: bool, kept: bool, longest=None):
    groups, batch, dim = pooled_shape(x, offsets)
    rows, chunks = to_numpy(x), plan(x.shape, mask, lengths, offsets)
    ranks = _new_ranks(x, chunks, mask, offsets) if ranked else no_ranks(x, offsets)
    flat_ranks = ranks.numpy().reshape(-1, dim)
    table_of = make_table(weight, rows.dtype.type)
    by_feature = make_table(-weight, np.float64, by_feature=True)
    y = np.zeros((groups * batch, dim))

    def work(chunk: Chunk) -> None:
        block = chunk.take(rows)
        if ranked and small_sets.fits(block):
            small_sets.rank_small(block, chunk, flat_ranks)
            y[chunk.sets, chunk.features] = _weigh(
                chunk, block, flat_ranks, table_of, batch, groups
            )
            return
        values = rank_block(block, chunk, flat_ranks) if ranked else sort_block(block)
        table, places = by_feature(chunk.size, chunk.replicas(batch))
        table = table[:, chunk.features]
        if groups == 1:
            y[chunk.sets, chunk.features] = np.einsum("sdn,dn->sd", values, table[0])
        else:
            y[chunk.sets, chunk.features] = np.einsum("sdn,sdn->sd", values, table[places])

    run(work, chunks)
    return torch.from_numpy(y).to(x.dtype).reshape(groups, batch, dim), ranks, no_rows(x)


def ranks(x: Tensor, mask, lengths, offsets) -> Tensor:
    rows, chunks = to_numpy(x), plan(x.shape, mask, lengths, offsets)
    ranks = _new_ranks(x, chunks, mask, offsets)
    flat_ranks = ranks.numpy().reshape(-1, x.shape[-1])

    def work(chunk: Chunk) -> None:
        block = chunk.take(rows)
        if small_sets.fits(block):
            small_sets.rank_small(block, chunk, flat_ranks)
        else:
            rank_block(block, chunk, flat_ranks)

    run(work, chunks)
    return ranks


def pool_ranked(x: Tensor, weight: Tensor, ranks, mask, lengths, offsets) -> Tensor:
    ranks = _in_order(x.shape, offsets) if ranks is None else ranks
    groups, batch, dim = pooled_shape(x, offsets)
    rows, flat_ranks = to_numpy(x), ranks.numpy().reshape(-1, dim)
    table_of = make_table(weight, rows.dtype.type)
    y = np.zeros((groups * batch, dim))

    def work(chunk: Chunk) -> None:
        block = chunk.take(rows)
        y[chunk.sets, chunk.features] = _weigh(chunk, block, flat_ranks, table_of, batch, groups)

    run(work, plan(x.shape, mask, lengths, offsets))
    return torch.from_numpy(y).to(x.dtype).reshape(groups, batch, dim)


def unpool(z: Tensor, weight: Tensor, ranks, mask, lengths, offsets, rows: int) -> Tensor:
    ranks = _in_order(rows_shape(z, rows, offsets), offsets) if ranks is None else ranks
    return pull(z, None, weight, ranks, None, mask, lengths, offsets)[0]


def knots(z: Tensor, x: Tensor, ranks, mask, lengths, offsets, knots: int, dtype) -> Tensor:
    ranks = _in_order(x.shape, offsets) if ranks is None else ranks
    groups, batch, dim = z.shape
    flat_z, rows, flat_ranks = to_numpy(z), to_numpy(x), ranks.numpy().reshape(-1, dim)

    def work(chunk: Chunk) -> Part:
        return _sum_by_rank(chunk, _lookup(chunk, flat_ranks), rows, flat_z, batch)

    parts = run(work, plan(ranks.shape, mask, lengths, offsets))
    return _collect(parts, groups, dim, knots, dtype)


def pull(z: Tensor, x: Tensor | None, weight: Tensor, ranks: Tensor, kept, mask, lengths, offsets):
    """Unpool z and, where x is given, its knots as well, from one look at the ranks."""
    groups, batch, dim = z.shape
    flat_z, flat_ranks = to_numpy(z), ranks.numpy().reshape(-1, dim)
    given = None if x is None else to_numpy(x)
    table_of = make_table(weight, flat_z.dtype.type)
    chunks = plan(ranks.shape, mask, lengths, offsets)
    out = empty(ranks.shape, compute_dtype(z), None if covers(chunks, ranks) else 0)
    rows = out.numpy().reshape(-1, dim)

    def work(chunk: Chunk) -> Part | None:
        index = _lookup(chunk, flat_ranks)
        weights = _weights(chunk, index, table_of, batch, groups)
        z_block = flat_z[chunk.sets, chunk.features][:, None]
        if isinstance(chunk.rows, slice):
            np.multiply(weights, z_block, out=chunk.take(rows))
        else:
            chunk.put(rows, np.multiply(weights, z_block, out=weights))
        return None if given is None else _sum_by_rank(chunk, index, given, flat_z, batch)

    parts = run(work, chunks)
    dw = None if given is None else _collect(parts, groups, dim, weight.shape[-1], weight.dtype)
    return out.to(z.dtype), dw
