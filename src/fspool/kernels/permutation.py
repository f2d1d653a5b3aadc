"""P of a small relaxed sort on the CPU: built once, with its gradient written out.

Autograd of the definition stores and walks some twenty arrays of the size of P; this is four there
and four back. The values come sorted, so the sums of distances are running sums and, without ties,
the signs of all differences are known. Logits are differences of large numbers: float64 for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.relaxed_sort import permutation_definition
from .operator import differentiate, operator


def _permutation(values: Tensor, temperature: Tensor) -> Tensor:
    s = values.double() / temperature
    scale = _scale(s)
    running = s.cumsum(-2)
    distance = 2 * running - running[..., -1:, :] + (scale - 1) * s
    logits = scale.unsqueeze(-1) * s.unsqueeze(-3)
    logits -= distance.unsqueeze(-3)
    logits -= (scale * s - distance).unsqueeze(-2)  # 0 on the diagonal
    return logits.to(values.dtype).softmax(-2)


def _pull(values: Tensor, temperature: Tensor, p: Tensor, dp: Tensor) -> Tensor:
    """The gradient to the values; the maths of ``slope_definition`` with a full gradient dp."""
    gradient = p * dp
    gradient.addcmul_(p, gradient.sum(-2, keepdim=True), value=-1)  # to the logits
    column = gradient.sum(-3)
    scale = _scale(values)
    by_rank = (scale.mT @ gradient.flatten(-2)).unflatten(-1, gradient.shape[-2:]).squeeze(-3)
    if (values[..., 1:, :] == values[..., :-1, :]).any():
        sign = (values.unsqueeze(-2) - values.unsqueeze(-3)).sign()  # (.., j, m, d) of s_j - s_m
        others = (column.unsqueeze(-2) * sign).sum(-3) + column * sign.sum(-3)
    else:
        sign = torch.ones(2 * [len(scale)], dtype=p.dtype).tril(-1)
        others = (sign - sign.T) @ column - scale * column
    return (by_rank + others).div_(temperature.to(p.dtype))


def _scale(values: Tensor) -> Tensor:
    """n + 1 - 2r for the ranks r from 1, (n, 1)."""
    n = values.shape[-2]
    return torch.arange(n - 1, -n, -2, dtype=values.dtype).unsqueeze(-1)


permutation = operator(
    "permutation",
    "(Tensor values, Tensor temperature) -> Tensor",
    _permutation,
    lambda values, _: values.new_empty((*values.shape[:-1], *values.shape[-2:])),
)
pull = operator(
    "permutation_pull",
    "(Tensor values, Tensor temperature, Tensor p, Tensor dp) -> Tensor",
    _pull,
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
