"""The operators of `functional` made fast and registered with torch. Importing registers them."""

from . import permutation, pool, relaxed_sort

__all__ = ["permutation", "pool", "relaxed_sort"]
