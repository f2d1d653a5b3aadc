"""P of a small relaxed sort on the CPU: built once, with its gradient written out.

Autograd of the definition stores and walks some twenty arrays of the size of P; this is four there
and four back. The values come sorted, so the sums of distances are running sums and, without ties,
the signs of all differences are known. Logits are differences of large numbers: float64 for them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .relaxed_sort import differences


def permutation(values: Tensor, temperature: Tensor) -> Tensor:
    s = values.double()
    s = s - s[..., :1, :]  # only differences matter
    scale = _scale(s)
    running = s.cumsum(-2)
    distance = 2 * running - running[..., -1:, :] + (scale - 1) * s
    logits = scale.unsqueeze(-1) * s.unsqueeze(-3)
    logits -= distance.unsqueeze(-3)
    logits -= (scale * s - distance).unsqueeze(-2)  # 0 on the diagonal
    return logits.div_(temperature).to(values.dtype).softmax(-2)


def pull(values: Tensor, temperature: Tensor, p: Tensor, dp: Tensor) -> Tensor:
    """The gradient to the values; the maths of ``slope_definition`` with a full gradient dp."""
    own = dp.diagonal(dim1=-3, dim2=-2).mT.unsqueeze(-2)  # no part of it: rows of p add up to 1
    gradient = (dp - own).mul_(p)  # to the logits
    gradient.addcmul_(p, gradient.sum(-2, keepdim=True), value=-1)
    gradient.diagonal(dim1=-3, dim2=-2).sub_(gradient.sum(-2).mT)  # what rounding left of 0
    column = gradient.sum(-3)
    scale = _scale(values)
    by_rank = (scale.mT @ gradient.flatten(-2)).unflatten(-1, gradient.shape[-2:]).squeeze(-3)
    moment = by_rank - scale * column  # the sums of 2 (j - r) G_rj
    return ((moment + differences(values, column)) / temperature).to(values.dtype)


def _scale(values: Tensor) -> Tensor:
    """n + 1 - 2r for the ranks r from 1, (n, 1)."""
    n = values.shape[-2]
    return (n - 1 - 2 * torch.arange(n, dtype=values.dtype)).unsqueeze(-1)
