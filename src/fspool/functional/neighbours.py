"""The sum over the neighbours of every node of a graph: what graph networks pass on.

.. math:: y_i = \\sum_{j \\in N(i)} x_j
"""

from __future__ import annotations

import torch
from torch import Tensor


def neighbour_sum(x: Tensor, starts: Tensor, sources: Tensor) -> Tensor:
    """Sum of the neighbours' rows. The graph has every edge in both directions.

    Args:
        x: ``(G, T, D)``, the nodes of G replicas, each with graphs of its own.
        starts: ``(G, T + 1)``: the neighbours of node i are ``sources[starts[i]:starts[i + 1]]``.
        sources: ``(G, E)``; what lies after the last start is not used.

    Returns:
        ``(G, T, D)`` in the dtype of x.
    """
    return neighbours_definition(x, starts, sources)


def neighbours_definition(x: Tensor, starts: Tensor, sources: Tensor) -> Tensor:
    edges = torch.arange(sources.shape[1], device=x.device).expand(len(x), -1).contiguous()
    used = edges < starts[:, -1:]
    node = torch.searchsorted(starts.long().contiguous(), edges, right=True) - 1
    node = node.clamp(max=x.shape[1] - 1).unsqueeze(-1).expand(-1, -1, x.shape[2])
    values = x.gather(1, sources.long().masked_fill(~used, 0).unsqueeze(-1).expand_as(node))
    values = values.masked_fill(~used.unsqueeze(-1), 0)
    return torch.zeros_like(x).scatter_add(1, node, values)
