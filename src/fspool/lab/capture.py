"""A training step, or a look at the model, as CUDA graphs: few launches instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

WARM_UP = 3  # runs before the recording, in which torch chooses and allocates


def captured(
    forward: Callable, match: Callable, update: Callable, example, changed: list[Tensor]
) -> Callable:
    """``update(output, batch, match(output, batch))`` with ``output = forward(batch)``, as graphs.

    One graph goes forward, one back; between them the host may find what the loss has to know.
    ``changed`` is all that a step changes; the warm-up is undone in it.
    """
    before = [value.clone() for value in changed]
    batch = pytree.tree_map(torch.clone, example)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            output = forward(batch)
            update(output, batch, match(output, batch))
            del output  # what autograd keeps of the warm-up must not reach into the recording
    torch.cuda.current_stream().wait_stream(stream)
    there, back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(there, stream=stream):
        output = forward(batch)
    there.replay()  # recording alone computes nothing
    matched = match(output, batch)
    with torch.cuda.graph(back, pool=there.pool(), stream=stream):
        update(output, batch, matched)
    for value, old in zip(changed, before, strict=True):
        value.copy_(old)

    def replay(new) -> None:
        pytree.tree_map(lambda own, given: own.copy_(given), batch, new)
        there.replay()
        if matched is not None:
            matched.copy_(match(output, batch))
        back.replay()

    return replay


def recorded(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A function of tensors that stay where they are, as one graph; its result is written over."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = function()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay
