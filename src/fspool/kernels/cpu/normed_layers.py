"""Two linear layers with norms and their gradient, by products of matrices and the norm's own
gradient: what the operator is on the CPU, where the layers themselves are as fast."""

from __future__ import annotations

from torch import Tensor

from ...functional.normed_layers import normed_layers_definition as normed_layers
from ...functional.row_norm import normalise, rows_outside
from . import row_norm

__all__ = ["normed_layers", "pull"]


def pull(
    dy: Tensor,
    x: Tensor,
    rows: Tensor,
    linear_1: Tensor,
    linear_2: Tensor,
    weight_1: Tensor,
    weight_2: Tensor,
    scale_1: Tensor,
    shift_1: Tensor,
    scale_2: Tensor,
    mean_1: Tensor,
    var_1: Tensor,
    mean_2: Tensor,
    var_2: Tensor,
    eps: float,
    wants_x: bool,
) -> tuple[Tensor, ...]:
    """The gradients to x (no rows where nobody wants it), and to weight, bias, scale and shift of
    both layers."""
    between = normalise(linear_1.relu(), rows, mean_1, var_1, scale_1, shift_1, eps)
    du, *norm_2 = row_norm.pull(dy, linear_2, rows, scale_2, mean_2, var_2, eps, True)
    second = du.mT @ between, du.sum(1), *norm_2
    du, *norm_1 = row_norm.pull(du @ weight_2, linear_1, rows, scale_1, mean_1, var_1, eps, True)
    x = x.masked_fill(rows_outside(x, rows), 0)
    dx = du @ weight_1 if wants_x else x.new_empty(len(x), 0)
    return dx, du.mT @ x, du.sum(1), *norm_1, *second
