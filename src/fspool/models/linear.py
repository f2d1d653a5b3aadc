"""Linear layers that one run or many runs at once go through.

A model is made of layers that also work when every parameter has one more leading axis, the replica
axis G: `fspool.nn` does, and so does :class:`Linear`. So stacking the parameters of G models gives
one model of G independent runs (:mod:`fspool.lab.replicas`), with nothing else to change.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..functional.perceptron import has_kernel, perceptron

MANY, TINY = 1024, 4096  # rows from which, and weights up to which, a sum over rows is cut
PARTS = 64  # into so many parts at most


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
        rows = x.flatten(1, -2)
        if rows.is_cuda and rows.shape[1] >= MANY and self.weight[0].numel() <= TINY:
            y = ManyRows.apply(rows, self.weight, self.bias)
        else:
            y = torch.baddbmm(self.bias.unsqueeze(1), rows, self.weight.mT)
        return y.unflatten(1, x.shape[1:-1])


class TorchLinear(Linear):
    """The same, with the weights and biases that torch starts with."""

    def reset_parameters(self) -> None:
        nn.Linear.reset_parameters(self)

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x ``(..., in)`` times weight ``(out, in)``; or each of G, where the weight has that axis."""
    if weight.ndim == 2:
        return linear(x, weight, bias)
    if len(weight) == 1:  # libraries add the bias in the same kernel then
        return linear(x[0], weight[0], None if bias is None else bias[0]).unsqueeze(0)
    rows = x.flatten(1, -2)
    if bias is None:
        return torch.bmm(rows, weight.mT).unflatten(1, x.shape[1:-1])
    return torch.baddbmm(bias.unsqueeze(1), rows, weight.mT).unflatten(1, x.shape[1:-1])


class ManyRows(torch.autograd.Function):
    """x (G, rows, in) through linear layers: the weights' gradient is summed over rows in parts.

    As one product a replica it is a tiny matrix made of thousands of rows, for which a GPU's
    library sets a single block to work.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, dy: Tensor):
        x, weight = ctx.saved_tensors
        dx = dy @ weight if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return dx, None, None
        parts = math.gcd(x.shape[1], PARTS)
        per_part = dy.unflatten(1, (parts, -1)).mT @ x.unflatten(1, (parts, -1))
        return dx, per_part.sum(1), dy.sum(1)


def spread_biases(model: nn.Module) -> None:
    """Draw all biases as torch's own layers do, uniformly; zeros keep a zero input at zero."""
    for module in model.modules():
        if isinstance(module, Linear):
            bound = module.in_features**-0.5
            nn.init.uniform_(module.bias, -bound, bound)


class Perceptron(nn.Sequential):
    """Linear layers with a ReLU between every two. Two narrow ones of many runs have a kernel."""

    def forward(self, x: Tensor, sizes: Tensor | None = None) -> Tensor:
        """``sizes``, (G, ...) beside x (G, ..., N, in): rows beyond them may be left out, and what
        comes of them means nothing."""
        kinds = [type(layer) for layer in self]
        if kinds == [Linear, nn.ReLU, Linear] and self[0].weight.ndim == 3:
            weights = self[0].weight, self[0].bias, self[2].weight, self[2].bias
            if has_kernel(x, *weights):
                return perceptron(x, *weights, sizes)
        return super().forward(x)


def mlp(*widths: int) -> Perceptron:
    """Linear layers of the given widths, a ReLU between every two."""
    layers: list[nn.Module] = [Linear(widths[0], widths[1])]
    for before, after in zip(widths[1:-1], widths[2:], strict=True):
        layers += [nn.ReLU(), Linear(before, after)]
    return Perceptron(*layers)
