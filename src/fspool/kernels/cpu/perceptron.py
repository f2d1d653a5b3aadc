"""Two linear layers and their gradient, by products of matrices: what the operator is on the CPU,
where the layers themselves are as fast."""

from __future__ import annotations

import torch
from torch import Tensor

from ...functional.perceptron import perceptron_definition as perceptron
from ...functional.perceptron import rows_outside

__all__ = ["perceptron", "pull"]


def pull(
    dy: Tensor,
    x: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    sizes: Tensor | None,
    wants_x: bool,
) -> tuple[Tensor, ...]:
    """The gradients to x (no rows where nobody wants it), and to weights and biases."""
    if sizes is not None:
        outside = rows_outside(x, sizes)
        x, dy = x.masked_fill(outside, 0), dy.masked_fill(outside, 0)
    shape = x.shape
    x, dy = x.flatten(1, 2), dy.flatten(1, 2)
    hidden = torch.baddbmm(first_bias.unsqueeze(1), x, first.mT)
    positive, hidden = ~(hidden <= 0), hidden.relu()
    dhidden = torch.where(positive, dy @ second, 0.0)
    dx = (dhidden @ first).view(shape) if wants_x else x.new_empty(len(x), 0)
    return dx, dhidden.mT @ x, dhidden.sum(1), dy.mT @ hidden, dy.sum(1)
