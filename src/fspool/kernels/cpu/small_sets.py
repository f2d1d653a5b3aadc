"""Sets of a few elements on the CPU: whole rows of many sets are compared at once, where a sort
would begin anew for every feature of every set.

Blocks lie as (n, sets, features) here: row i holds the i-th element of all sets.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .chunks import Chunk, scratch

LARGEST = 24  # elements: comparisons grow with the square
COLUMNS = 1 << 10  # features of sets that make a comparison worth its call


def fits(x: np.ndarray) -> bool:
    """Are sets x (sets, n, features) few enough elements each, and is none of them NaN?"""
    sets, size, dim = x.shape
    return size <= LARGEST and sets * dim >= COLUMNS and not np.isnan(x).any()


def by_row(x: np.ndarray) -> np.ndarray:
    """A copy of x (sets, n, features)."""
    sets, size, dim = x.shape
    rows = scratch("rows", (size, sets, dim), x.dtype)
    np.copyto(rows, x.transpose(1, 0, 2))
    return rows


def sort_rows(rows: np.ndarray) -> np.ndarray:
    """The largest of every column first, and so on, in float64. Overwrites the rows."""
    each, spare = list(rows), scratch("spare", rows.shape[1:], rows.dtype)
    for i, j in network(len(each)):
        np.maximum(each[i], each[j], out=spare)
        np.minimum(each[i], each[j], out=each[j])
        each[i], spare = spare, each[i]
    values = scratch("keys", rows.shape, np.float64)
    for value, row in zip(values, each, strict=True):
        value[:] = row
    return values


def rank_rows(rows: np.ndarray, chunk: Chunk, ranks: np.ndarray) -> None:
    """How many come before an element: the larger ones, and equal ones of earlier rows."""
    size = len(rows)
    counts = scratch("counts", rows.shape, np.uint8)
    counts[:] = 0
    for i in range(size - 1):
        first = scratch("first", (size - 1 - i, *rows.shape[1:]), np.bool_)
        np.greater_equal(rows[i], rows[i + 1 :], out=first)
        counts[i + 1 :] += first.view(np.uint8)
        counts[i] += np.uint8(size - 1 - i)
        counts[i] -= np.add.reduce(first.view(np.uint8), axis=0, dtype=np.uint8)
    block = scratch("ranks", chunk.shape, ranks.dtype)
    np.copyto(block, counts.transpose(1, 0, 2))
    chunk.put(ranks, block)


@lru_cache(maxsize=LARGEST)
def network(size: int) -> list[tuple[int, int]]:
    """Pairs of places whose comparison, one after the other, sorts: Batcher's odd-even merge."""
    pairs, part = [], 1
    while part < size:
        step = part
        while step:
            for first in range(step % part, size - step, 2 * step):
                for i in range(first, min(first + step, size - step)):
                    if i // (2 * part) == (i + step) // (2 * part):
                        pairs.append((i, i + step))
            step //= 2
        part *= 2
    return pairs
