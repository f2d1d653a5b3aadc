"""Batch normalisation of rows of which only the first ones are there, for one run or many."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BatchNorm(nn.Module):
    """``nn.BatchNorm1d`` over the first ``rows[g]`` rows of every replica g of x ``(G, T, D)``.

    Its parameters and running numbers are ``(D,)``, or ``(G, D)`` where replicas are stacked; then
    each run has its own. What the other rows hold has no influence, and they come out as zeros.
    """

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        inside = (torch.arange(x.shape[1], device=x.device) < rows.unsqueeze(-1)).unsqueeze(-1)
        mean, var = self.running_mean, self.running_var
        if self.training:
            count = rows.unsqueeze(-1).to(x.dtype)
            mean = x.masked_fill(~inside, 0).sum(1) / count
            centred = (x - mean.unsqueeze(1)).masked_fill(~inside, 0)
            var = centred.square().sum(1) / count
            self._remember(mean.detach(), var.detach() * count / (count - 1).clamp(min=1))
        scale = self.weight * (var + self.eps).rsqrt()
        y = (x - mean.unsqueeze(-2)) * scale.unsqueeze(-2) + self.bias.unsqueeze(-2)
        return y.masked_fill(~inside, 0)

    def _remember(self, mean: Tensor, var: Tensor) -> None:
        """In place, so that a recorded graph does it too."""
        self.running_mean.lerp_(mean.view_as(self.running_mean), self.momentum)
        self.running_var.lerp_(var.view_as(self.running_var), self.momentum)
