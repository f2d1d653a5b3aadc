"""An LSTM on zero input as a torch operator, and its gradient as another.

state is (G, B, H), weight (G, 4 H, H), bias (G, 4 H); hidden and cells (G, B, n, H). The cells are
for the gradient alone and have none themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.recurrence import recurrence_definition
from .cpu import recurrence as cpu
from .operator import differentiate, operator


def _fake(state, weight, bias, n):
    groups, batch, hidden = state.shape
    return tuple(state.new_empty((groups, batch, n, hidden)) for _ in range(2))


recurrence = operator(
    "recurrence",
    "(Tensor state, Tensor weight, Tensor bias, SymInt n) -> (Tensor, Tensor)",
    cpu.recurrence,
    _fake,
    cuda="recurrence.recurrence",
    narrow=True,
)
pull = operator(
    "recurrence_pull",
    "(Tensor dhidden, Tensor hidden, Tensor cells, Tensor state, Tensor weight, Tensor bias)"
    " -> (Tensor, Tensor, Tensor)",
    cpu.pull,
    lambda dhidden, hidden, cells, *inputs: tuple(t.new_empty(t.shape) for t in inputs),
    cuda="recurrence.pull",
    narrow=True,
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember(ctx, inputs, output) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.n = inputs[-1]
    ctx.save_for_backward(*output, *inputs[:3])


def _backward(ctx, dhidden: Tensor | None, _):
    if dhidden is None:
        return (None,) * 4
    hidden, cells, *inputs = ctx.saved_tensors
    if not torch.is_grad_enabled():  # the common case
        return *pull(dhidden, hidden, cells, *inputs), None

    def definition(*given: Tensor) -> Tensor:
        return recurrence_definition(*given, ctx.n)

    _, back = torch.func.vjp(definition, *inputs)  # where second derivatives are wanted
    return *back(dhidden), None


differentiate(recurrence, _backward, _remember)
