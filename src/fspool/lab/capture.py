"""A training step, or a look at the model, as CUDA graphs: few launches instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .cell import Chunk

ALIGNED = 16  # numbers
WARM_UP = 3  # runs before the recording, in which torch chooses and allocates


class Steps:
    """Training steps: ``update(output, batch, match(output, batch))``, where ``output`` is
    ``forward(batch)``. ``changed`` is all that a step changes."""

    takes_blocks = False

    def __init__(
        self, forward: Callable, match: Callable, update: Callable, changed: list[Tensor]
    ) -> None:
        self.forward, self.match, self.update, self.changed = forward, match, update, changed

    def step(self, batch) -> None:
        output = self.forward(batch)
        self.update(output, batch, self.match(output, batch))


class Recorder(Steps):
    """Steps as graphs, recorded when the first batch comes; the warm-up is undone.

    One graph goes forward, one back; between them the host may find what the loss has to know.
    Where it need not, many steps are one graph: the host then has next to nothing to do.
    """

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self._stream = torch.cuda.Stream()
        self._step: Callable | None = None
        self._block: Callable | None = None

    def step(self, batch) -> None:
        self._step = self._step or self._record_step(batch)
        self._step(batch)

    def block(self, chunk: Chunk) -> None:
        """All steps of a chunk, which has as many at every call. A step comes before it."""
        self._block = self._block or self._record_block(chunk)
        self._block(chunk)

    def _warm_up(self, batch) -> None:
        before = [value.clone() for value in self.changed]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP):
                super().step(batch)  # and let go of it: nothing may reach into the recording
        torch.cuda.current_stream().wait_stream(self._stream)
        for value, old in zip(self.changed, before, strict=True):
            value.copy_(old)

    def _record_step(self, example) -> Callable:
        batch = pytree.tree_map(torch.clone, example)
        self._warm_up(batch)
        before = [value.clone() for value in self.changed]
        there, back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(there, stream=self._stream):
            output = self.forward(batch)
        there.replay()  # recording alone computes nothing
        matched = self.match(output, batch)
        with torch.cuda.graph(back, pool=there.pool(), stream=self._stream):
            self.update(output, batch, matched)
        for value, old in zip(self.changed, before, strict=True):
            value.copy_(old)

        def replay(new) -> None:
            _write(batch, new)
            there.replay()
            if matched is not None:
                matched.copy_(self.match(output, batch))
            back.replay()

        self.takes_blocks = matched is None
        return replay

    def _record_block(self, example: Chunk) -> Callable:
        chunk = pytree.tree_map(_aligned, example)
        batches = chunk.each()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            for batch in batches:
                super().step(batch)

        def replay(new: Chunk) -> None:
            _write(chunk, new)
            graph.replay()

        return replay


def _aligned(tensor: Tensor) -> Tensor:
    """A copy (steps, ...) in which every step begins as memory of its own would: kernels are
    compiled for that, and none may be while a graph is recorded."""
    steps, numbers = len(tensor), tensor[0].numel()
    room = tensor.new_zeros(steps, -(-numbers // ALIGNED) * ALIGNED)
    return room[:, :numbers].view_as(tensor).copy_(tensor)


def _write(own, given) -> None:
    pytree.tree_map(lambda there, new: there.copy_(new), own, given)


class Recorded:
    """A function of tensors that stay where they are, as one graph; its result is written over."""

    def __init__(self, function: Callable[[], Tensor]) -> None:
        self.function = function  # and so the tensors that the graph reads, which it does not keep
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.result = function()

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.result
