"""P of a small relaxed sort on the CPU: built once, with its gradient written out.

Autograd of the definition stores and walks some twenty arrays of the size of P; this is four there
and four back. The values come sorted, so the sums of distances are running sums and, without ties,
the signs of all differences are known. Logits are differences of large numbers: float64 for them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def permutation(values: Tensor, temperature: Tensor) -> Tensor:
    s = values.double() / temperature
    scale = _scale(s)
    running = s.cumsum(-2)
    distance = 2 * running - running[..., -1:, :] + (scale - 1) * s
    logits = scale.unsqueeze(-1) * s.unsqueeze(-3)
    logits -= distance.unsqueeze(-3)
    logits -= (scale * s - distance).unsqueeze(-2)  # 0 on the diagonal
    return logits.to(values.dtype).softmax(-2)


def pull(values: Tensor, temperature: Tensor, p: Tensor, dp: Tensor) -> Tensor:
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
    return (n - 1 - 2 * torch.arange(n, dtype=values.dtype)).unsqueeze(-1)
