"""Linear layers that one run or many runs at once go through.

A model is made of layers that also work when every parameter has one more leading axis, the replica
axis G: `fspool.nn` does, and so does :class:`Linear`. So stacking the parameters of G models gives
one model of G independent runs (:mod:`fspool.lab.replicas`), with nothing else to change.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class Linear(nn.Linear):
    """``nn.Linear`` with Glorot weights and zero biases, as the paper's experiments start.

    x is ``(G, ..., in)`` where weight is ``(G, out, in)``.
    """

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.ndim == 2:
            return linear(x, self.weight, self.bias)
        y = torch.baddbmm(self.bias.unsqueeze(1), x.flatten(1, -2), self.weight.mT)
        return y.unflatten(1, x.shape[1:-1])


def spread_biases(model: nn.Module) -> None:
    """Draw all biases as torch's own layers do, uniformly; zeros keep a zero input at zero."""
    for module in model.modules():
        if isinstance(module, Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.bias, -bound, bound)


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of the given widths, a ReLU between every two."""
    layers: list[nn.Module] = [Linear(widths[0], widths[1])]
    for before, after in zip(widths[1:-1], widths[2:], strict=True):
        layers += [nn.ReLU(), Linear(before, after)]
    return nn.Sequential(*layers)
