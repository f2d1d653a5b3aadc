"""Batch normalisation of rows of which only the first ones are there, for one run or many."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..functional.inputs import compute_dtype
from ..functional.linear_norm import linear_norm
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

    def after(self, linear: nn.Linear, x: Tensor, rows: Tensor) -> Tensor:
        """``self(linear(x), rows)``, where this cuts off below 0: in training as one."""
        if not self.training or not self.relu:
            return self(linear(x), rows)
        weight, bias = linear.weight, linear.bias
        if weight.ndim == 2:  # of a single run
            weight, bias = weight.unsqueeze(0), bias.unsqueeze(0)
        own = self._own(len(x))
        y, *running = linear_norm(x, weight, bias, rows, *own, eps=self.eps, momentum=self.momentum)
        self._keep(*running)
        return y

    def affine(self) -> tuple[Tensor, Tensor]:
        """Factor and summand by which known numbers normalise."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale

    def _train(self, x: Tensor, rows: Tensor) -> Tensor:
        options = {"eps": self.eps, "momentum": self.momentum, "relu": self.relu}
        y, *running = row_norm(x, rows, *self._own(len(x)), **options)
        self._keep(*running)
        return y

    def _own(self, groups: int) -> list[Tensor]:
        own = (self.weight, self.bias, self.running_mean, self.running_var)
        return [t.view(groups, -1) for t in own]

    def _keep(self, mean: Tensor, var: Tensor) -> None:
        """In place, so that a recorded graph does it too."""
        self.running_mean.copy_(mean.view_as(self.running_mean))
        self.running_var.copy_(var.view_as(self.running_var))
