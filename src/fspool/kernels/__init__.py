"""The operators of `functional` and `losses` made fast and registered. Importing does that."""

from . import by_rank, chamfer, neighbours, permutation, pool, recurrence, relaxed_sort

__all__ = [
    "by_rank",
    "chamfer",
    "neighbours",
    "permutation",
    "pool",
    "recurrence",
    "relaxed_sort",
]
