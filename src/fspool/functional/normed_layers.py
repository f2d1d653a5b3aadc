"""Two linear layers, each with a ReLU and batch normalisation behind it, replica by replica.

.. math::
    y = n_2(W_2 \\, n_1(W_1 x + b_1) + b_2), \\qquad n(u) = \\operatorname{norm}(\\max(0, u))

with the norm of :mod:`.row_norm`, over the rows that are there. Graph networks are made of it. On
CUDA it is three passes over the rows forwards and three backwards; products, norms and sums by
themselves make sixteen. What lies between the two layers is never stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .dispatch import on_device
from .inputs import exact
from .row_norm import row_norm_definition, rows_outside

WIDEST = 64  # numbers of a row before, between and after the layers, up to which there is a kernel


class Layer(NamedTuple):
    """A linear layer and the norm behind it. Of G replicas."""

    weight: Tensor  # (G, out, in)
    bias: Tensor  # (G, out), as all below
    scale: Tensor  # of the norm
    shift: Tensor
    running_mean: Tensor
    running_var: Tensor


class Running(NamedTuple):
    """New running numbers of a norm, (G, out)."""

    mean: Tensor
    var: Tensor


def normed_layers(
    x: Tensor,
    rows: Tensor,
    first: Layer,
    second: Layer,
    *,
    eps: float = 1e-5,
    momentum: float = 0.1,
) -> tuple[Tensor, Running, Running]:
    """As in training, by the numbers of this very batch.

    Args:
        x: ``(G, T, in)``.
        rows: ``(G,)`` integers, how many rows of a replica are there.
        first, second: The layers.
        eps, momentum: As for :func:`~.row_norm.row_norm`.

    Returns:
        y ``(G, T, out)``, zeros in the rows that are not there, and the new running numbers.
    """
    function = _operator(x, first, second) or normed_layers_definition
    with exact(x):
        y, *_, mean_1, var_1, mean_2, var_2 = function(x, rows, *first, *second, eps, momentum)
    return y, Running(mean_1, var_1), Running(mean_2, var_2)


def has_kernel(x: Tensor, first: Layer, second: Layer) -> bool:
    """Narrow layers in float32 do, on CUDA, where autocast does not ask for less."""
    return _operator(x, first, second) is not None


def _operator(x: Tensor, first: Layer, second: Layer) -> Callable | None:
    if x.is_meta or torch.is_autocast_enabled(x.device.type):
        return None
    narrow = max(*first.weight.shape[1:], second.weight.shape[1]) <= WIDEST
    single = all(t.dtype == torch.float32 for t in (x, *first, *second))
    return on_device("normed_layers", x) if narrow and single else None


def normed_layers_definition(x: Tensor, rows: Tensor, *rest) -> tuple[Tensor, ...]:
    """The formula at the top of this file: y; then of either layer what comes out of it before the
    ReLU; of either norm mean and variance; and of either its new running numbers. ``rest``: the
    tensors of both layers, eps and momentum."""
    *tensors, eps, momentum = rest
    outside = rows_outside(x, rows)
    x, linear, known, running = x.masked_fill(outside, 0), [], [], []
    for layer in (Layer(*tensors[:6]), Layer(*tensors[6:])):
        x = torch.baddbmm(layer.bias.unsqueeze(1), x, layer.weight.mT).masked_fill(outside, 0)
        linear.append(x)
        x, *numbers = row_norm_definition(x, rows, *layer[2:], eps, momentum, True)
        known += numbers[:2]
        running += numbers[2:]
    return x, *linear, *known, *running
