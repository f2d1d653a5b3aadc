"""Ranks of sets of a few elements on the CPU: whole rows of many sets are compared at once, where a
sort would begin anew for every feature of every set.
"""

from __future__ import annotations

import numpy as np

from .chunks import Chunk, scratch

LARGEST = 24  # elements: comparisons grow with the square
COLUMNS = 1 << 10  # features of sets that make a comparison worth its call


def fits(x: np.ndarray) -> bool:
    """Are sets x (sets, n, features) of few enough elements each, and is none of them NaN?"""
    sets, size, dim = x.shape
    return size <= LARGEST and sets * dim >= COLUMNS and not np.isnan(x).any()


def rank_small(x: np.ndarray, chunk: Chunk, ranks: np.ndarray) -> None:
    """How many come before an element: the larger ones, and equal ones of earlier rows."""
    sets, size, dim = x.shape
    rows = scratch("rows", (size, sets, dim), x.dtype)
    np.copyto(rows, x.transpose(1, 0, 2))
    counts = scratch("counts", rows.shape, np.uint8)
    counts[:] = 0
    for i in range(size - 1):
        first = scratch("first", (size - 1 - i, sets, dim), np.bool_)
        np.greater_equal(rows[i], rows[i + 1 :], out=first)
        counts[i + 1 :] += first.view(np.uint8)
        counts[i] += np.uint8(size - 1 - i)
        counts[i] -= np.add.reduce(first.view(np.uint8), axis=0, dtype=np.uint8)
    block = scratch("ranks", x.shape, ranks.dtype)
    np.copyto(block, counts.transpose(1, 0, 2))
    chunk.put(ranks, block)
