"""A linear layer with its norm on the CPU: a product of matrices, and the norm's own kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from ...functional.row_norm import rows_outside
from . import row_norm


def linear_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    scale: Tensor,
    shift: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
    momentum: float,
) -> tuple[Tensor, ...]:
    """As the definition: y, W x + b, its mean and variance, and new running numbers."""
    outside = rows_outside(x, rows)
    linear = torch.baddbmm(bias.unsqueeze(1), x.masked_fill(outside, 0), weight.mT)
    linear = linear.masked_fill_(outside, 0)
    numbers = scale, shift, running_mean, running_var
    y, *rest = row_norm.row_norm(linear, rows, *numbers, eps, momentum, True)
    return y, linear, *rest


def pull(
    dy: Tensor,
    linear: Tensor,
    x: Tensor,
    rows: Tensor,
    weight: Tensor,
    scale: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    wants_x: bool,
) -> tuple[Tensor, ...]:
    """The gradients to x (no rows where nobody wants it), weight, bias, scale and shift."""
    dlinear, dscale, dshift = row_norm.pull(dy, linear, rows, scale, mean, var, eps, True)
    dx = dlinear @ weight if wants_x else x.new_empty(len(x), 0)
    x = x.masked_fill(rows_outside(x, rows), 0)
    return dx, dlinear.mT @ x, dlinear.sum(1), dscale, dshift
