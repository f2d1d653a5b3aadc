"""Thin modules over the functions, and the pools that FSPool is compared with."""

from .baselines import JanossyPool, MaxPool, MeanPool, RelationNetwork, SumPool
from .pool import FSPool
from .temperature import TemperatureDecay
from .unpool import FSUnpool

__all__ = [
    "FSPool",
    "FSUnpool",
    "JanossyPool",
    "MaxPool",
    "MeanPool",
    "RelationNetwork",
    "SumPool",
    "TemperatureDecay",
]
