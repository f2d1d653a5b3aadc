"""A linear layer, a ReLU and batch normalisation as a torch operator, its gradient as another.

x is (G, T, in), weight (G, out, in), rows (G,), all else (G, out). What comes out beside y is for
the gradient, or for whoever keeps running numbers, and has no gradient itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.inputs import exact
from ..functional.linear_norm import linear_norm_definition
from .cpu import linear_norm as cpu
from .operator import differentiate, operator


def _fake(x, weight, *_):
    groups, length, out = *x.shape[:2], weight.shape[1]
    large = (x.new_empty(groups, length, out) for _ in range(2))
    return *large, *(x.new_empty(groups, out) for _ in range(4))


def _fake_pull(dy, linear, x, rows, weight, scale, mean, var, eps, wants_x):
    dx = x.new_empty(x.shape if wants_x else (len(x), 0))
    return dx, weight.new_empty(weight.shape), *(scale.new_empty(scale.shape) for _ in range(3))


linear_norm = operator(
    "linear_norm",
    "(Tensor x, Tensor weight, Tensor bias, Tensor rows, Tensor scale, Tensor shift,"
    " Tensor running_mean, Tensor running_var, float eps, float momentum)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu.linear_norm,
    _fake,
    cuda="linear_norm.linear_norm",
    narrow=True,
)
pull = operator(
    "linear_norm_pull",
    "(Tensor dy, Tensor linear, Tensor x, Tensor rows, Tensor weight, Tensor scale, Tensor mean,"
    " Tensor var, float eps, bool wants_x) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu.pull,
    _fake_pull,
    cuda="linear_norm.pull",
    narrow=True,
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember(ctx, inputs, output) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.eps = inputs[8]
    ctx.save_for_backward(*inputs[:6], *output[1:4])  # running numbers will be written over


def _backward(ctx, dy: Tensor | None, *_):
    if dy is None:
        return (None,) * 10
    x, weight, bias, rows, scale, shift, linear, mean, var = ctx.saved_tensors
    if not torch.is_grad_enabled():  # the common case
        wants_x = ctx.needs_input_grad[0]
        dx, *others = pull(dy, linear, x, rows, weight, scale, mean, var, ctx.eps, wants_x)
        dweight, dbias, dscale, dshift = others
        return dx if wants_x else None, dweight, dbias, None, dscale, dshift, *[None] * 4

    def definition(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        with exact(x):
            rest = (mean, var, ctx.eps, 0.0)  # y knows nothing of running numbers
            return linear_norm_definition(x, weight, bias, rows, scale, shift, *rest)[0]

    _, back = torch.func.vjp(definition, x, weight, bias, scale, shift)  # for second derivatives
    dx, dweight, dbias, dscale, dshift = back(dy)
    return dx, dweight, dbias, None, dscale, dshift, *[None] * 4


differentiate(linear_norm, _backward, _remember)
