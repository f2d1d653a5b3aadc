"""The search of the Chamfer loss as a torch operator. Indices have no gradient: none is registered.

a is (..., N, C), b (..., M, C) and its mask (..., M), with at least one leading axis.
"""

from __future__ import annotations

import torch

from .cpu import chamfer as cpu
from .operator import operator

nearest = operator(
    "nearest",
    "(Tensor a, Tensor b, Tensor? mask, str cost) -> Tensor",
    cpu.nearest,
    lambda a, *_: a.new_empty(a.shape[:-1], dtype=torch.long),
    cuda="chamfer.nearest",
)
