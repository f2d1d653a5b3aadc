"""The pairing of the assignment loss as a torch operator, for small matrices of costs on CUDA.

Indices have no gradient: none is registered. Elsewhere, and for larger ones, scipy pairs.
"""

from __future__ import annotations

import torch

from ..losses.assignment import solve
from .operator import operator

assign = operator(
    "assign",
    "(Tensor costs) -> Tensor",
    solve,
    lambda costs: costs.new_empty(costs.shape[:-1], dtype=torch.long),
    cuda="assignment.assign",
)
