"""Batch normalisation (Ioffe and Szegedy, 2015) over the rows that are there, replica by replica.

.. math::
    y_{ij} = w_j \\frac{x_{ij} - \\mu_j}{\\sqrt{\\sigma_j^2 + \\epsilon}} + b_j

with mean and variance over the first n rows of a replica. Where asked for, x is cut off below 0
first: the ReLU that often comes before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import fastest
from .inputs import compute_dtype, exact


def row_norm(
    x: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    eps: float = 1e-5,
    momentum: float = 0.1,
    relu: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by the numbers of this very batch, as in training.

    Args:
        x: ``(G, T, D)``.
        rows: ``(G,)`` integers, how many rows of a replica are there; the others have no influence.
        weight, bias: ``(G, D)``.
        running_mean, running_var: ``(G, D)``, what was seen so far. They are not changed.
        eps: Added to the variance.
        momentum: How far the running numbers go towards those of this batch.
        relu: Cut x off below 0 first.

    Returns:
        y like x, zeros in the rows that are not there, and the new running numbers, which have no
        gradient. A replica of one row has variance 0: the row comes out as the bias. One of no rows
        keeps its running numbers.
    """
    inputs = (x, rows, weight, bias, running_mean, running_var)
    operator = fastest("row_norm", x)
    with exact(x):
        if operator is None:
            y, *_, mean, var = row_norm_definition(*inputs, eps, momentum, relu)
        else:
            y, *_, mean, var = operator(*inputs, eps, momentum, relu)
    return y, mean, var


def row_norm_definition(
    x: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
    momentum: float,
    relu: bool,
) -> tuple[Tensor, ...]:
    """The formula at the top of this file: y, its mean and variance, and new running numbers."""
    values = x.to(compute_dtype(x, weight))
    values = values.relu() if relu else values
    count = rows.unsqueeze(-1).clamp(min=1).to(values.dtype)
    outside = rows_outside(x, rows)
    mean = values.masked_fill(outside, 0).sum(1) / count
    var = (values - mean.unsqueeze(1)).masked_fill(outside, 0).square().sum(1) / count
    y = normalise(values, rows, mean, var, weight, bias, eps).to(x.dtype)
    unbiased = var.detach() * count / (count - 1).clamp(min=1)
    step = momentum * (rows > 0).unsqueeze(-1).to(values.dtype)
    return (
        *(y, mean, var),
        torch.lerp(running_mean.to(values.dtype), mean.detach(), step).to(running_mean.dtype),
        torch.lerp(running_var.to(values.dtype), unbiased, step).to(running_var.dtype),
    )


def normalise(
    x: Tensor, rows: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """By known numbers (G, D) or (D,); zeros in the rows that are not there."""
    scale, outside = weight * (var + eps).rsqrt(), rows_outside(x, rows)
    centred = (x - mean.unsqueeze(-2)).masked_fill(outside, 0)  # or the scale's gradient sees it
    return (centred * scale.unsqueeze(-2) + bias.unsqueeze(-2)).masked_fill(outside, 0)


def rows_outside(x: Tensor, rows: Tensor) -> Tensor:
    """Which rows are not there, (G, T, 1)."""
    return (torch.arange(x.shape[1], device=x.device) >= rows.unsqueeze(-1)).unsqueeze(-1)
