"""The sum over neighbours as a torch operator.

x is (G, T, D), starts (G, T + 1), sources (G, E). The graph is symmetric: with its adjacency matrix
A the sum is A x, and the gradient to x is A^T dy = A dy, that is the same operator on dy with the
same starts and sources. So it is differentiable any number of times.
"""

from __future__ import annotations

from torch import Tensor

from .cpu import neighbours as cpu
from .operator import differentiate, operator

neighbour_sum = operator(
    "neighbour_sum",
    "(Tensor x, Tensor starts, Tensor sources) -> Tensor",
    cpu.neighbour_sum,
    lambda x, starts, sources: x.new_empty(x.shape),
    cuda="neighbours.neighbour_sum",
)


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[1:])


def _backward(ctx, dy: Tensor):
    return neighbour_sum(dy, *ctx.saved_tensors), None, None


differentiate(neighbour_sum, _backward, _remember)
