"""The operators of `functional` and `losses` made fast and registered. Importing does that."""

from . import (
    assignment,
    by_rank,
    chamfer,
    linear_norm,
    lstm,
    neighbours,
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
    "linear_norm",
    "lstm",
    "neighbours",
    "perceptron",
    "permutation",
    "pool",
    "recurrence",
    "relaxed_sort",
    "row_norm",
]
