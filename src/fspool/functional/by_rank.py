"""Tensors that are indexed by rank: row j of a set belongs to its j-th largest values.

The elements of every set come first there, whatever mask the set has. For rows that lie in the
order of their ranks, pool, unpool and their gradients are the operators of the hard pool.
"""

from __future__ import annotations

from torch import Tensor

from ..layouts import Sets
from .dispatch import on_device
from .piecewise import piecewise_linear


def to_ranks(x: Tensor, ranks: Tensor, sets: Sets) -> Tensor:
    """Row of position p to row of rank ranks[p]; zeros after the last element."""
    operator = on_device("to_ranks", x)
    if operator is None:
        return sets.to_ranks(x, ranks)
    return operator(x.expand(ranks.shape), ranks, sets.mask, sets.lengths, sets.offsets)


def from_ranks(v: Tensor, ranks: Tensor, sets: Sets) -> Tensor:
    """The way back; zeros in the padding."""
    operator = on_device("from_ranks", v)
    if operator is None:
        return sets.from_ranks(v, ranks)
    return operator(v.expand(ranks.shape), ranks, sets.mask, sets.lengths, sets.offsets)


def sum_by_rank(v: Tensor, weight: Tensor, sets: Sets) -> Tensor:
    """v by rank times f, summed over every set. v holds zeros after the last element."""
    operator = on_device("pool_ranked", v)
    if operator is None:
        return sets.sum(rank_weights(weight, sets) * v)
    return operator(v, weight, None, None, *lengths_by_rank(sets))


def spread_by_rank(z: Tensor, weight: Tensor, sets: Sets) -> Tensor:
    """z (G, B, D) times f, for every rank of every set; zeros after the last element."""
    operator = on_device("unpool", z)
    if operator is None:
        return sets.clear_ranks(rank_weights(weight, sets) * sets.spread(z))
    return operator(z, weight, None, None, *lengths_by_rank(sets), sets.shape[2])


def rank_weights(weight: Tensor, sets: Sets) -> Tensor:
    """f for every rank of every set; broadcasts against tensors that are indexed by rank."""
    return piecewise_linear(weight, sets.iota, sets.element_sizes)


def lengths_by_rank(sets: Sets) -> tuple[Tensor | None, Tensor | None]:
    """What a kernel needs to know of tensors that are indexed by rank: lengths and offsets."""
    lengths = None if sets.full or sets.offsets is not None else sets.sizes
    return lengths, sets.offsets
