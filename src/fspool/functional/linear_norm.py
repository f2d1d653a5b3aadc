"""A linear layer, a ReLU and batch normalisation of the rows that are there, replica by replica.

.. math::
    y = \\operatorname{norm}(\\max(0, W x + b))

with the norm of :mod:`.row_norm`. Graph networks are made of it. On CUDA it is two kernels forwards
and three backwards, which go over memory half as often as one for each part would.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .dispatch import on_device
from .inputs import exact
from .row_norm import row_norm, row_norm_definition, rows_outside

WIDEST = 64  # numbers of a row before and after the layer, up to which there is a kernel


def linear_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    scale: Tensor,
    shift: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    *,
    eps: float = 1e-5,
    momentum: float = 0.1,
) -> tuple[Tensor, Tensor, Tensor]:
    """As in training, by the numbers of this very batch.

    Args:
        x: ``(G, T, in)``.
        weight, bias: ``(G, out, in)`` and ``(G, out)``, of the linear layer.
        rows: ``(G,)`` integers, how many rows of a replica are there.
        scale, shift: ``(G, out)``, of the norm.
        running_mean, running_var, eps, momentum: As for :func:`~.row_norm.row_norm`.

    Returns:
        y ``(G, T, out)``, zeros in the rows that are not there, and the new running numbers.
    """
    inputs = (x, weight, bias, rows, scale, shift, running_mean, running_var)
    operator = _operator(x, weight)
    if operator is None:
        y = torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
        numbers = scale, shift, running_mean, running_var
        return row_norm(y, rows, *numbers, eps=eps, momentum=momentum, relu=True)
    with exact(x):
        y, *_, mean, var = operator(*inputs, eps, momentum)
    return y, mean, var


def _operator(x: Tensor, weight: Tensor) -> Callable | None:
    """For narrow layers in float32 there is one, on CUDA, where autocast does not ask for less."""
    if x.is_meta or torch.is_autocast_enabled(x.device.type):
        return None
    narrow = max(weight.shape[1:]) <= WIDEST and x.dtype == weight.dtype == torch.float32
    return on_device("linear_norm", x) if narrow else None


def linear_norm_definition(
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
    """The formula at the top of this file: y, W x + b, its mean and variance after the ReLU, and
    new running numbers."""
    outside = rows_outside(x, rows)
    linear = torch.baddbmm(bias.unsqueeze(1), x.masked_fill(outside, 0), weight.mT)
    linear = linear.masked_fill(outside, 0)
    numbers = scale, shift, running_mean, running_var
    y, *rest = row_norm_definition(linear, rows, *numbers, eps, momentum, True)
    return y, linear, *rest
