"""The sum over the neighbours of every node of a graph: what graph networks pass on.

.. math:: y_i = a x_i + \\sum_{j \\in N(i)} x_j

Every edge is there in both directions, so the sum is its own transpose: the gradient to x is the
same sum over the gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..checks import check_device, check_floating, check_integer
from .dispatch import fastest
from .inputs import compute_dtype, exact


def neighbour_sum(x: Tensor, starts: Tensor, sources: Tensor, own: float = 0.0) -> Tensor:
    """Sum of the neighbours' rows. The graph has every edge in both directions.

    Args:
        x: ``(G, T, D)``, the nodes of G replicas, each with graphs of its own.
        starts: ``(G, T + 1)``: the neighbours of node i are ``sources[starts[i]:starts[i + 1]]``.
        sources: ``(G, E)``, rows of x; what lies after the last start is not used.
        own: How much the node itself counts.

    Returns:
        ``(G, T, D)`` in the dtype of x; nothing of others for a node without neighbours.
    """
    _check(x, starts, sources)
    operator = fastest("neighbour_sum", x)
    with exact(x):
        if operator is None:
            exact_x = x.to(compute_dtype(x))
            return neighbours_definition(exact_x, starts, sources, own).to(x.dtype)
        return operator(x, starts, sources, float(own))


def neighbours_definition(x: Tensor, starts: Tensor, sources: Tensor, own: float = 0.0) -> Tensor:
    """The formula at the top of this file. It takes a graph without symmetry too."""
    edges = torch.arange(sources.shape[1], device=x.device).expand(len(x), -1).contiguous()
    used = edges < starts[:, -1:]
    node = torch.searchsorted(starts.long().contiguous(), edges, right=True) - 1
    node = node.clamp(max=x.shape[1] - 1).unsqueeze(-1).expand(-1, -1, x.shape[2])
    values = x.gather(1, sources.long().masked_fill(~used, 0).unsqueeze(-1).expand_as(node))
    values = values.masked_fill(~used.unsqueeze(-1), 0)
    y = torch.zeros_like(x).scatter_add(1, node, values)
    return torch.add(y, x, alpha=own) if own else y  # of no weight is also what is not a number


def _check(x: Tensor, starts: Tensor, sources: Tensor) -> None:
    """Shapes and dtypes; the values of a graph are not looked at."""
    check_floating("x", x)
    for name, value in (("starts", starts), ("sources", sources)):
        check_integer(name, value)
        check_device(name, value, "x", x.device)
    if x.ndim != 3:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected (G, T, D), so pass x[None].")
    groups, nodes, _ = x.shape
    if tuple(starts.shape) != (groups, nodes + 1):
        raise ValueError(
            f"starts has shape {tuple(starts.shape)}; expected (G, T + 1) = "
            f"({groups}, {nodes + 1}) to fit x."
        )
    if sources.ndim != 2 or sources.shape[0] != groups:
        raise ValueError(
            f"sources has shape {tuple(sources.shape)}; expected (G, E) = ({groups}, E) to fit x."
        )
