"""The operators as functions. Each file opens with its formula and holds its definition."""

from .order import Order
from .pool import fspool, fspool_vjp
from .relaxed_sort import relaxed_sort
from .unpool import fsunpool

__all__ = ["Order", "fspool", "fspool_vjp", "fsunpool", "relaxed_sort"]
