"""The gradient of batch normalisation in plain torch operators, which run on any device."""

from __future__ import annotations

from torch import Tensor

from ...functional.row_norm import rows_outside


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
    outside, root = rows_outside(x, rows), (var + eps).rsqrt()
    values = x.to(mean.dtype).masked_fill(outside, 0)
    g = dy.to(mean.dtype).masked_fill(outside, 0)
    unit = ((values.relu() if relu else values) - mean.unsqueeze(1)) * root.unsqueeze(1)
    db, dw = g.sum(1), (g * unit).sum(1)
    count = rows.view(-1, 1, 1).clamp(min=1)
    dx = g - (db.unsqueeze(1) + unit * dw.unsqueeze(1)) / count
    dx = dx * (weight * root).unsqueeze(1)
    dx = dx.masked_fill(outside | (values <= 0) if relu else outside, 0)
    return dx.to(x.dtype), dw.to(weight.dtype), db.to(weight.dtype)
