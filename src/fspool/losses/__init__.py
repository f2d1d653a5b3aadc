"""Losses between sets: how far apart two sets are, whatever the order of their elements."""

from .assignment import assignment
from .chamfer import chamfer

__all__ = ["assignment", "chamfer"]
