"""Two linear layers with ReLU and norm as a torch operator, the gradient as another.

x is (G, T, in), rows (G,), weights (G, out, in), all else (G, out). What comes out beside y is for
the gradient, or for whoever keeps running numbers, and has no gradient itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.inputs import exact
from ..functional.normed_layers import normed_layers_definition
from .cpu import normed_layers as cpu
from .operator import differentiate, operator

_LAYER = (
    "Tensor weight_{0}, Tensor bias_{0}, Tensor scale_{0}, Tensor shift_{0}, Tensor mean_{0},"
    " Tensor var_{0}"
)
ASKED = (0, 2, 3, 4, 5, 8, 9, 10, 11)  # what has a gradient: x; weight, bias, scale, shift of both


def _fake(x, rows, *rest):
    widths = [weight.shape[1] for weight in (rest[0], rest[6])]
    large = (x.new_empty(*x.shape[:2], width) for width in (widths[1], *widths))
    small = (x.new_empty(len(x), width) for _ in range(2) for width in widths for _ in range(2))
    return *large, *small


def _fake_pull(dy, x, rows, linear_1, linear_2, weight_1, weight_2, *rest):
    dx = x.shape if rest[-1] else (len(x), 0)
    layers = [s for w in (weight_1, weight_2) for s in (w.shape, *[w.shape[:2]] * 3)]
    return tuple(x.new_empty(shape) for shape in (dx, *layers))


normed_layers = operator(
    "normed_layers",
    f"(Tensor x, Tensor rows, {_LAYER.format(1)}, {_LAYER.format(2)}, float eps, float momentum)"
    f" -> ({', '.join(['Tensor'] * 11)})",
    cpu.normed_layers,
    _fake,
    cuda="normed_layers.normed_layers",
    narrow=True,
)
pull = operator(
    "normed_layers_pull",
    "(Tensor dy, Tensor x, Tensor rows, Tensor linear_1, Tensor linear_2, Tensor weight_1,"
    " Tensor weight_2, Tensor scale_1, Tensor shift_1, Tensor scale_2, Tensor mean_1, Tensor var_1,"
    f" Tensor mean_2, Tensor var_2, float eps, bool wants_x) -> ({', '.join(['Tensor'] * 9)})",
    cpu.pull,
    _fake_pull,
    cuda="normed_layers.pull",
    narrow=True,
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember(ctx, inputs, output) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    *tensors, ctx.eps, _ = inputs
    running = 6, 7, 12, 13  # will be written over
    kept = [t for place, t in enumerate(tensors) if place not in running]
    ctx.save_for_backward(*kept, *output[1:7])


def _backward(ctx, dy: Tensor | None, *_):
    gradients: list[Tensor | None] = [None] * 16
    if dy is None:
        return tuple(gradients)
    x, rows, *layers, linear_1, linear_2, mean_1, var_1, mean_2, var_2 = ctx.saved_tensors
    (weight_1, _, scale_1, shift_1), (weight_2, _, scale_2, _) = layers[:4], layers[4:]
    if torch.is_grad_enabled():  # second derivatives are wanted
        found = _twice(dy, x, rows, layers, (mean_1, var_1, mean_2, var_2), ctx.eps)
    else:
        given = linear_1, linear_2, weight_1, weight_2, scale_1, shift_1, scale_2
        known = mean_1, var_1, mean_2, var_2
        found = pull(dy, x, rows, *given, *known, ctx.eps, ctx.needs_input_grad[0])
    for place, gradient in zip(ASKED, found, strict=True):
        gradients[place] = gradient
    if not ctx.needs_input_grad[0]:
        gradients[0] = None
    return tuple(gradients)


def _twice(dy, x, rows, layers: list[Tensor], running, eps: float) -> tuple[Tensor, ...]:
    """By the definition, which is differentiable again; y knows nothing of running numbers."""

    def definition(x: Tensor, *layers: Tensor) -> Tensor:
        both = *layers[:4], *running[:2], *layers[4:], *running[2:]
        with exact(x):
            return normed_layers_definition(x, rows, *both, eps, 0.0)[0]

    return torch.func.vjp(definition, x, *layers)[1](dy)


differentiate(normed_layers, _backward, _remember)
