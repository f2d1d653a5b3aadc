"""Batch normalisation on the CPU: few walks over memory, and rows that are not there set to zero
where they lie, in place of masks."""

from __future__ import annotations

import torch
from torch import Tensor

from ...functional.inputs import compute_dtype


def row_norm(
    x: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
    momentum: float,
    relu: bool,
) -> tuple[Tensor, ...]:
    """As the definition: y, its mean and variance, and new running numbers."""
    dtype = compute_dtype(x, weight)
    values = _there(x, rows, dtype, relu)
    count = rows.unsqueeze(-1).clamp(min=1).to(dtype)
    mean = values.sum(1) / count
    centred = _clear(values.sub_(mean.unsqueeze(1)), rows)
    var = _dot(centred, centred) / count
    scale = weight * (var + eps).rsqrt()
    y = torch.addcmul(bias.to(dtype).unsqueeze(1), centred, scale.unsqueeze(1))
    unbiased = var * count / (count - 1).clamp(min=1)
    step = momentum * (rows > 0).unsqueeze(-1).to(dtype)
    return (
        *(_clear(y, rows).to(x.dtype), mean, var),
        torch.lerp(running_mean.to(dtype), mean, step).to(running_mean.dtype),
        torch.lerp(running_var.to(dtype), unbiased, step).to(running_var.dtype),
    )


def pull(
    dy: Tensor,
    x: Tensor,
    rows: Tensor,
    weight: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients to x, weight and bias."""
    values, g = _there(x, rows, mean.dtype, relu), _there(dy, rows, mean.dtype)
    root = (var + eps).rsqrt()
    centred = _clear(values - mean.unsqueeze(1), rows)
    db, dw = g.sum(1), _dot(g, centred) * root
    count = rows.unsqueeze(-1).clamp(min=1)
    # dx = scale (g - (db + centred root dw) / count), a term after the other
    scale = weight * root
    constant, slope = -scale * db / count, -scale * root * dw / count
    dx = torch.addcmul(constant.unsqueeze(1), centred, slope.unsqueeze(1))
    dx.addcmul_(g, scale.unsqueeze(1))
    if relu:
        dx = torch.ops.aten.threshold_backward(dx, values, 0)
    return _clear(dx, rows).to(x.dtype), dw.to(weight.dtype), db.to(weight.dtype)


def _there(x: Tensor, rows: Tensor, dtype: torch.dtype, relu: bool = False) -> Tensor:
    """A copy of the rows that are there, zeros for the others."""
    values = x.to(dtype).relu() if relu else x.to(dtype, copy=True)
    return _clear(values, rows)


def _clear(x: Tensor, rows: Tensor) -> Tensor:
    for own, n in zip(x.unbind(), rows.tolist(), strict=True):
        if n < len(own):
            own[n:] = 0
    return x


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The sum over rows of products, (G, D)."""
    return (a * b).sum(1)
