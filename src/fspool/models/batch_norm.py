"""Batch normalisation of rows of which only the first ones are there, for one run or many."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..functional.inputs import compute_dtype
from ..functional.row_norm import normalise, row_norm


class BatchNorm(nn.Module):
    """``nn.BatchNorm1d`` over the first ``rows[g]`` rows of every replica g of x ``(G, T, D)``.

    Its parameters and running numbers are ``(D,)``, or ``(G, D)`` where replicas are stacked; then
    each run has its own. What the other rows hold has no influence, and they come out as zeros.
    With ``relu`` it normalises what a ReLU makes of x, which on CUDA costs nothing then.

    In training one row alone comes out as the bias, and counts as variance 0; a replica of no rows
    keeps its running numbers.
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, momentum: float = 0.1, relu: bool = False
    ) -> None:
        super().__init__()
        self.eps, self.momentum, self.relu = eps, momentum, relu
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        if self.training:
            return self._train(x, rows)
        values = x.to(compute_dtype(x, self.weight))
        values = values.relu() if self.relu else values
        running = self.running_mean, self.running_var
        return normalise(values, rows, *running, self.weight, self.bias, self.eps).to(x.dtype)

    def affine(self) -> tuple[Tensor, Tensor]:
        """Factor and summand by which known numbers normalise."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale

    def _train(self, x: Tensor, rows: Tensor) -> Tensor:
        options = {"eps": self.eps, "momentum": self.momentum, "relu": self.relu}
        y, *running = row_norm(x, rows, *self.numbers(len(x)), **options)
        self.keep(*running)
        return y

    def numbers(self, groups: int) -> list[Tensor]:
        """Weight, bias and running numbers, (G, D) each."""
        own = (self.weight, self.bias, self.running_mean, self.running_var)
        return [t.view(groups, -1) for t in own]

    def keep(self, mean: Tensor, var: Tensor) -> None:
        """New running numbers: in place, so that a recorded graph does it too."""
        self.running_mean.copy_(mean.view_as(self.running_mean))
        self.running_var.copy_(var.view_as(self.running_var))
