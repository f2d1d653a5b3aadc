"""A small network for every row: two linear layers with a ReLU between them, replica by replica.

.. math::
    y = W_2 \\max(0, W_1 x + b_1) + b_2

It is what every element goes through before it is pooled. Its layers are narrow and its rows many,
so on CUDA one kernel has all of it, and another its gradient: the hidden layer is never stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .dispatch import on_device
from .inputs import exact

WIDEST = 64  # numbers of a row, before, between and after the layers, up to which there is a kernel


def perceptron(
    x: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    second_bias: Tensor,
    sizes: Tensor | None = None,
) -> Tensor:
    """Both layers.

    Args:
        x: ``(G, ..., N, in)``.
        first: ``(G, hidden, in)``, and first_bias ``(G, hidden)``.
        second: ``(G, out, hidden)``, and second_bias ``(G, out)``.
        sizes: ``(G, ...)`` integers, how many of the N rows are there. The others become zeros and
            have no influence, whatever they hold.

    Returns:
        ``(G, ..., N, out)``
    """
    weights = (first, first_bias, second, second_bias)
    *sets, length, columns = x.shape
    if sizes is not None and list(sizes.shape) != sets:
        raise ValueError(f"sizes has shape {tuple(sizes.shape)}; expected {tuple(sets)} to fit x.")
    count = math.prod(sets[1:])
    if sizes is None:  # all rows are alike
        count, length = 1, count * length
    else:
        sizes = sizes.reshape(len(x), count)
    inner = x.reshape(len(x), count, length, columns)
    function = _operator(x, *weights) or perceptron_definition
    with exact(x):
        y = function(inner, *weights, sizes)
    return y.reshape(*x.shape[:-1], y.shape[-1])


def has_kernel(x: Tensor, *weights: Tensor) -> bool:
    """Narrow layers in float32 do, on CUDA, where autocast does not ask for less."""
    asked = torch.is_autocast_enabled(x.device.type) if x.device.type != "meta" else False
    return not asked and _operator(x, *weights) is not None


def _operator(x: Tensor, *weights: Tensor) -> Callable | None:
    widths = (*weights[0].shape[1:], weights[2].shape[1])
    narrow = max(widths) <= WIDEST and all(t.dtype == torch.float32 for t in (x, *weights))
    return on_device("perceptron", x) if narrow else None


def perceptron_definition(
    x: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    second_bias: Tensor,
    sizes: Tensor | None,
) -> Tensor:
    """The formula at the top of this file. x (G, S, N, in), sizes (G, S) -> (G, S, N, out)."""
    outside = None if sizes is None else rows_outside(x, sizes)
    rows = (x if outside is None else x.masked_fill(outside, 0)).flatten(1, 2)
    hidden = torch.baddbmm(first_bias.unsqueeze(1), rows, first.mT).relu()
    y = torch.baddbmm(second_bias.unsqueeze(1), hidden, second.mT).unflatten(1, x.shape[1:3])
    return y if outside is None else y.masked_fill(outside, 0)


def rows_outside(x: Tensor, sizes: Tensor) -> Tensor:
    """Which rows of x (G, S, N, in) are not there, (G, S, N, 1)."""
    places = torch.arange(x.shape[-2], device=x.device)
    return (places >= sizes.unsqueeze(-1)).unsqueeze(-1)
