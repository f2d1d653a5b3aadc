"""The operators of `functional` and `losses` made fast and registered. Importing does that."""

from . import chamfer, permutation, pool, relaxed_sort

__all__ = ["chamfer", "permutation", "pool", "relaxed_sort"]
