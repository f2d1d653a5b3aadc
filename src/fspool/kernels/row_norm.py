"""Batch normalisation over the rows that are there as a torch operator, its gradient as another.

x is (G, T, D), rows (G,), all else (G, D). Mean and variance of the batch are for the gradient
alone, and have none themselves; nor have the new running numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.inputs import compute_dtype
from ..functional.row_norm import row_norm_definition
from .cpu import row_norm as cpu
from .operator import differentiate, operator

_INPUTS = "Tensor x, Tensor rows, Tensor weight, Tensor bias, Tensor running_mean"


def _fake(x, rows, weight, bias, running_mean, running_var, eps, momentum, relu):
    shape, dtype = (x.shape[0], x.shape[2]), compute_dtype(x, weight)
    return (
        x.new_empty(x.shape),
        *(x.new_empty(shape, dtype=dtype) for _ in range(2)),
        *(t.new_empty(shape) for t in (running_mean, running_var)),
    )


row_norm = operator(
    "row_norm",
    f"({_INPUTS}, Tensor running_var, float eps, float momentum, bool relu)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu.row_norm,
    _fake,
    cuda="row_norm.row_norm",
    narrow=True,
)
pull = operator(
    "row_norm_pull",
    "(Tensor dy, Tensor x, Tensor rows, Tensor weight, Tensor mean, Tensor var, float eps,"
    " bool relu) -> (Tensor, Tensor, Tensor)",
    cpu.pull,
    lambda dy, x, rows, weight, *_: (
        x.new_empty(x.shape),
        *(weight.new_empty(weight.shape) for _ in range(2)),
    ),
    cuda="row_norm.pull",
    narrow=True,
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember(ctx, inputs, output) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.eps, _, ctx.relu = inputs[6:]
    ctx.save_for_backward(*inputs[:4], *output[1:3])  # running numbers will be written over


def _backward(ctx, dy: Tensor | None, *_):
    if dy is None:
        return (None,) * 9
    x, rows, weight, bias, mean, var = ctx.saved_tensors
    if not torch.is_grad_enabled():  # the common case
        dx, dw, db = pull(dy, x, rows, weight, mean, var, ctx.eps, ctx.relu)
        return dx, None, dw, db, *[None] * 5

    def definition(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rest = (mean, var, ctx.eps, 0.0, ctx.relu)  # y knows nothing of running numbers
        return row_norm_definition(x, rows, weight, bias, *rest)[0]

    _, back = torch.func.vjp(definition, x, weight, bias)  # where second derivatives are wanted
    dx, dw, db = back(dy)
    return dx, None, dw, db, *[None] * 5


differentiate(row_norm, _backward, _remember)
