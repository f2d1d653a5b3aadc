"""The operators of `functional` made fast and registered with torch. Importing registers them."""

from . import pool, relaxed_sort

__all__ = ["pool", "relaxed_sort"]
