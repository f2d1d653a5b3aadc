"""A training step as a CUDA graph: one launch instead of some hundreds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils import _pytree as pytree

WARM_UP = 3  # runs before the recording, in which torch chooses and allocates


def captured(step: Callable, example, tensors: dict[str, torch.Tensor]) -> Callable:
    """``step(batch)`` recorded once and replayed for every batch of the shapes of ``example``.

    ``tensors`` is all that the step changes; the warm-up is undone in them.
    """
    before = {name: value.clone() for name, value in tensors.items()}
    batch = pytree.tree_map(torch.clone, example)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step(batch)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(batch)
    for name, value in tensors.items():
        value.copy_(before[name])

    def replay(new) -> None:
        pytree.tree_map(lambda own, given: own.copy_(given), batch, new)
        graph.replay()

    return replay
