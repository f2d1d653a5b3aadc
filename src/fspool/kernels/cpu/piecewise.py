"""The weight function at every rank of a set of n elements, and the way back to its knots."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SMALL = 1 << 12  # entries of an array that is kept


def hat(size: int, knots: int) -> tuple[np.ndarray, np.ndarray]:
    """For every rank the knot to its left and, as a column, how far it is towards the next."""
    return (_kept_hat if size <= SMALL else _hat)(size, knots)


def _hat(size: int, knots: int) -> tuple[np.ndarray, np.ndarray]:
    span = max(size - 1, 1)
    left, rest = np.divmod(np.arange(size) * (knots - 1), span)
    return left, (rest / span)[:, None]


_kept_hat = lru_cache(maxsize=512)(_hat)

Table = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]


def make_table(weight: Tensor, dtype: type, by_feature: bool = False) -> Table:
    """A function from n, and the replicas of some sets of n elements, to f at every rank,
    (tables, n, D) or (tables, D, n), and the table of each set."""
    knots = weight.detach().to(torch.float64).transpose(1, 2).contiguous().numpy()
    of_all = lru_cache(maxsize=8)(lambda size: _table(knots, size, dtype, by_feature))

    def table(size: int, replicas: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if len(replicas) < len(knots):  # those of all other replicas would be made for nothing
            return _table(knots[replicas], size, dtype, by_feature), np.arange(len(replicas))
        return of_all(size), replicas

    return table


def _table(knots: np.ndarray, size: int, dtype: type, by_feature: bool) -> np.ndarray:
    left, blend = hat(size, knots.shape[1])
    right = np.minimum(left + 1, knots.shape[1] - 1)
    values = ((1 - blend) * knots[:, left] + blend * knots[:, right]).astype(dtype)
    return np.ascontiguousarray(values.transpose(0, 2, 1)) if by_feature else values


@lru_cache(maxsize=1024)
def _hats(size: int, knots: int) -> np.ndarray:
    """The weight of every knot at every rank, (n, k)."""
    left, blend = hat(size, knots)
    hats, ranks = np.zeros((size, knots)), np.arange(size)
    hats[ranks, left] = 1 - blend[:, 0]
    inner = left < knots - 1  # the last knot has no right neighbour
    hats[ranks[inner], left[inner] + 1] = blend[inner, 0]
    return hats


def gather_knots(by_rank: np.ndarray, knots: int) -> np.ndarray:
    """The transpose of a table: (G, n, D) to (G, k, D)."""
    size = by_rank.shape[1]
    if size * knots <= SMALL and np.isfinite(by_rank).all():  # zeros keep others away from knots
        return _hats(size, knots).T @ by_rank
    left, blend = hat(size, knots)
    starts = np.flatnonzero(np.diff(left, prepend=-1))  # where a piece of f begins
    total = np.zeros((by_rank.shape[0], knots, by_rank.shape[2]))
    left = left[starts]
    total[:, left] = np.add.reduceat((1 - blend) * by_rank, starts, axis=1)
    inner = left < knots - 1  # the last knot has no right neighbour
    total[:, left[inner] + 1] += np.add.reduceat(blend * by_rank, starts, axis=1)[:, inner]
    return total
