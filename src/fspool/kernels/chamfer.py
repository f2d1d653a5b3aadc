"""The search of the Chamfer loss as a torch operator. Indices have no gradient: none is registered.

a is (..., N, C), b (..., M, C) and its mask (..., M), with at least one leading axis.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.inputs import compute_dtype
from ..losses.chamfer import nearest_definition
from .operator import operator


def _cpu(a: Tensor, b: Tensor, mask: Tensor | None, cost: str) -> Tensor:
    dtype = compute_dtype(a, b)
    return nearest_definition(a.to(dtype), b.to(dtype), mask, cost)


nearest = operator(
    "nearest",
    "(Tensor a, Tensor b, Tensor? mask, str cost) -> Tensor",
    _cpu,
    lambda a, *_: a.new_empty(a.shape[:-1], dtype=torch.long),
    cuda="chamfer.nearest",
)
