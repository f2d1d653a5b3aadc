"""Two linear layers with a ReLU between them as a torch operator, and its gradient as another.

x is (G, S, N, in), sizes (G, S), weights (G, hidden, in) and (G, out, hidden).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.inputs import exact
from ..functional.perceptron import perceptron_definition
from .cpu import perceptron as cpu
from .operator import differentiate, operator

perceptron = operator(
    "perceptron",
    "(Tensor x, Tensor first, Tensor first_bias, Tensor second, Tensor second_bias, Tensor? sizes)"
    " -> Tensor",
    cpu.perceptron,
    lambda x, first, first_bias, second, *_: x.new_empty(*x.shape[:-1], second.shape[1]),
    cuda="perceptron.perceptron",
    narrow=True,
)
pull = operator(
    "perceptron_pull",
    "(Tensor dy, Tensor x, Tensor first, Tensor first_bias, Tensor second, Tensor? sizes,"
    " bool wants_x) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu.pull,
    lambda dy, x, first, first_bias, second, sizes, wants_x: (
        x.new_empty(x.shape if wants_x else (len(x), 0)),
        *(t.new_empty(t.shape) for t in (first, first_bias, second)),
        second.new_empty(second.shape[:2]),
    ),
    cuda="perceptron.pull",
    narrow=True,
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, dy: Tensor):
    *inputs, sizes = ctx.saved_tensors
    if not torch.is_grad_enabled():  # the common case
        wants_x = ctx.needs_input_grad[0]
        dx, *dweights = pull(dy, *inputs[:4], sizes, wants_x)
        return dx if wants_x else None, *dweights, None

    def definition(*given: Tensor) -> Tensor:
        with exact(dy):
            return perceptron_definition(*given, sizes)

    _, back = torch.func.vjp(definition, *inputs)  # where second derivatives are wanted
    return *back(dy), None


differentiate(perceptron, _backward, _remember)
