"""Thin modules over the functions, and the pools that FSPool is compared with."""

from .baselines import MaxPool, MeanPool, SumPool
from .pool import FSPool
from .temperature import TemperatureDecay
from .unpool import FSUnpool

__all__ = ["FSPool", "FSUnpool", "MaxPool", "MeanPool", "SumPool", "TemperatureDecay"]
