"""P of a small relaxed sort as a torch operator, and its gradient as another."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.relaxed_sort import permutation_definition
from .cpu import permutation as cpu
from .operator import differentiate, operator

permutation = operator(
    "permutation",
    "(Tensor values, Tensor temperature) -> Tensor",
    cpu.permutation,
    lambda values, _: values.new_empty((*values.shape[:-1], *values.shape[-2:])),
)
pull = operator(
    "permutation_pull",
    "(Tensor values, Tensor temperature, Tensor p, Tensor dp) -> Tensor",
    cpu.pull,
    lambda values, *_: values.new_empty(values.shape),
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, output)


def _permutation_backward(ctx, dp: Tensor):
    return pull(*ctx.saved_tensors, dp), None


def _remember_pull(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _pull_backward(ctx, dds: Tensor):
    """Second derivatives go through the definition, in which p is a function of the values."""
    values, temperature, _, dp = ctx.saved_tensors

    def gradient(values: Tensor, dp: Tensor) -> Tensor:
        _, back = torch.func.vjp(lambda s: permutation_definition(s, temperature), values)
        return back(dp)[0]

    _, back = torch.func.vjp(gradient, values, dp)
    to_values, to_dp = back(dds)
    return to_values, None, None, to_dp


differentiate(permutation, _permutation_backward, _remember)
differentiate(pull, _pull_backward, _remember_pull)
