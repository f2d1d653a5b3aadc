"""The operators of `functional` and `losses` made fast and registered. Importing does that."""

from . import (
    assignment,
    by_rank,
    chamfer,
    lstm,
    neighbours,
    normed_layers,
    perceptron,
    permutation,
    pool,
    recurrence,
    relaxed_sort,
    row_norm,
)

__all__ = [
    "assignment",
    "by_rank",
    "chamfer",
    "lstm",
    "neighbours",
    "normed_layers",
    "perceptron",
    "permutation",
    "pool",
    "recurrence",
    "relaxed_sort",
    "row_norm",
]
