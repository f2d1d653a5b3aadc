"""The sum over neighbours as a torch operator.

x is (G, T, D), starts (G, T + 1), sources (G, E). The graph is symmetric: with its adjacency matrix
A the sum is (A + a) x, and the gradient to x is (A^T + a) dy = (A + a) dy, that is the same
operator on dy with all else the same. So it is differentiable any number of times.
"""

from __future__ import annotations

from torch import Tensor

from .cpu import neighbours as cpu
from .operator import differentiate, operator

neighbour_sum = operator(
    "neighbour_sum",
    "(Tensor x, Tensor starts, Tensor sources, float own) -> Tensor",
    cpu.neighbour_sum,
    lambda x, starts, sources, own: x.new_empty(x.shape),
    cuda="neighbours.neighbour_sum",
)


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[1:3])
    ctx.own = inputs[3]


def _backward(ctx, dy: Tensor):
    return neighbour_sum(dy, *ctx.saved_tensors, ctx.own), None, None, None


differentiate(neighbour_sum, _backward, _remember)
