"""The sum over neighbours on the CPU: a bag of words, where a node is a bag and x has the words."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from ...functional.inputs import compute_dtype


def neighbour_sum(x: Tensor, starts: Tensor, sources: Tensor, own: float) -> Tensor:
    """All replicas as one graph. torch sums bags without a copy of what is in them."""
    groups, nodes, _ = x.shape
    ends = starts[:, -1].long()
    used = torch.arange(sources.shape[1]) < ends.unsqueeze(1)
    words = (sources.long() + nodes * torch.arange(groups).unsqueeze(1))[used]
    bags = (starts[:, :-1].long() + (ends.cumsum(0) - ends).unsqueeze(1)).flatten()
    rows = x.detach().to(compute_dtype(x)).flatten(0, 1)
    y = torch.zeros_like(rows, memory_format=torch.contiguous_format)
    if len(words):
        y = embedding_bag(words, rows, bags, mode="sum")
    if own:
        y.add_(rows, alpha=own)
    return y.to(x.dtype).view(x.shape)
