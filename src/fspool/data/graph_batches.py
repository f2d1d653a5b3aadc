"""Batches of graphs of one shape, made on the device that trains on them.

All graphs of a set lie on the device. Which ones a batch has is a matter of gathers then: no graph
is padded to the largest one, only a batch as a whole has rows to spare at its end. A graph that is
missing, as in the last batch of an epoch, has the number -1: it has no nodes and the label -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..functional.dispatch import OFF
from ..kernels.operator import HAS_TRITON
from . import draws
from .tu import Graphs

UNIT = 64  # shapes are multiples of this, which products of matrices like
AT_ONCE = 1 << 26  # nodes and edges that are gathered at once


class Room(NamedTuple):
    """What a batch has room for."""

    nodes: int
    edges: int


class GraphBatch(NamedTuple):
    """B graphs for each of G replicas; or for each of many steps too, then all have one axis more.

    The neighbours of node i are ``sources[starts[i]:starts[i + 1]]``.
    """

    kinds: Tensor  # int32 (G, T): the feature that is 1
    starts: Tensor  # int32 (G, T + 1)
    sources: Tensor  # int32 (G, E)
    offsets: Tensor  # int64 (G, B + 1): nodes of graph i are those from offsets[i] on
    labels: Tensor  # int64 (G, B); -1 where there is no graph


@dataclass(frozen=True, eq=False)
class Shelf:
    """The graphs of a set, ready to be taken by number."""

    kinds: Tensor  # (nodes,)
    starts: Tensor  # (nodes,): first edge of a node, counted in its graph
    sources: Tensor  # (edges + 1,): neighbours, counted in their graph; one to spare
    sizes: Tensor  # (graphs, 2): nodes and edges
    firsts: Tensor  # (graphs, 2): the first node and the first edge
    labels: Tensor  # (graphs,)
    columns: int
    classes: int
    longest: int  # nodes of the largest graph

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, graphs: Graphs) -> Shelf:
        """On the device where the graphs are."""
        firsts = torch.stack((graphs.offsets, graphs.edge_offsets), -1)
        sizes = firsts.diff(dim=0)
        sources, destinations = graphs.edge_index
        degrees = destinations.bincount(minlength=len(graphs.kind))
        starts = degrees.cumsum(0) - degrees
        return cls(
            kinds=graphs.kind.int(),
            starts=(starts - firsts[:-1, 1].repeat_interleave(sizes[:, 0])).int(),
            sources=pad(sources - firsts[:-1, 0].repeat_interleave(sizes[:, 1]), (0, 1)).int(),
            sizes=sizes,
            firsts=firsts[:-1],
            labels=graphs.labels,
            columns=graphs.columns,
            classes=graphs.classes,
            longest=int(sizes[:, 0].max()),
        )

    def most(self, numbers: Tensor) -> Tensor:
        """Nodes and edges of the largest of some batches (..., B), (2,)."""
        return self._sizes(numbers).sum(-2).flatten(0, -2).amax(0)

    def room(self, numbers: Tensor) -> Room:
        """For the largest of some batches (..., B). On CUDA this waits for the device."""
        return fitting(self.most(numbers))

    def take(self, numbers: Tensor, room: Room) -> GraphBatch:
        """The graphs of these numbers, (..., B), one behind the other."""
        ends = pad(self._sizes(numbers).cumsum(-2), (0, 0, 1, 0))
        firsts = self.firsts[numbers.clamp(min=0)]
        labels = self.labels[numbers.clamp(min=0)].masked_fill(numbers < 0, -1)
        by_kernel = numbers.is_cuda and numbers.numel() and HAS_TRITON and not OFF
        fill = self._fill_by_kernel if by_kernel else self._fill
        return GraphBatch(*fill(firsts, ends, room), ends[..., 0].contiguous(), labels)

    def _fill(self, firsts: Tensor, ends: Tensor, room: Room) -> tuple[Tensor, Tensor, Tensor]:
        """Kinds, starts and sources of batches whose graphs have their first nodes and edges there
        in the set, ``firsts`` (..., B, 2), and there in the batch, ``ends`` (..., B + 1, 2)."""
        offsets, edges = (each.contiguous() for each in ends.unbind(-1))
        graph, node, used = _places(offsets, firsts[..., 0], room.nodes)
        starts = edges.gather(-1, graph) + self.starts[node]
        starts = torch.where(used, starts, edges[..., -1:])
        kinds = self.kinds[node].masked_fill(~used, 0)
        graph, edge, used = _places(edges, firsts[..., 1], room.edges)
        sources = offsets.gather(-1, graph) + self.sources[edge]
        starts = torch.cat((starts, edges[..., -1:]), -1).int()
        return kinds, starts, sources.masked_fill(~used, 0).int()

    def _fill_by_kernel(self, firsts: Tensor, ends: Tensor, room: Room) -> tuple[Tensor, ...]:
        from ..kernels.cuda.graph_batches import take

        flat = (t.reshape(-1, *t.shape[-2:]) for t in (firsts, ends))
        filled = take(self.kinds, self.starts, self.sources, *flat, *room)
        return tuple(t.reshape(*firsts.shape[:-2], t.shape[-1]) for t in filled)

    def _sizes(self, numbers: Tensor) -> Tensor:
        """(..., B, 2); what is missing has neither nodes nor edges."""
        return self.sizes[numbers.clamp(min=0)] * (numbers >= 0).unsqueeze(-1)


def _places(offsets: Tensor, firsts: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each of so many rows: its graph in the batch, its place in the set, and is it used?"""
    rows = torch.arange(length, device=offsets.device).expand(*offsets.shape[:-1], -1).contiguous()
    used = rows < offsets[..., -1:]
    graph = torch.searchsorted(offsets, rows, right=True) - 1
    graph = graph.masked_fill(~used, 0)
    place = firsts.gather(-1, graph) + rows - offsets.gather(-1, graph)
    return graph, place.masked_fill(~used, 0), used


def fitting(most: Tensor) -> Room:
    """Room for so many nodes and edges, in round numbers."""
    nodes, edges = (-(-max(int(count), 1) // UNIT) * UNIT for count in most)
    return Room(nodes, edges)


def batches_of(shelf: Shelf, numbers: Tensor, room: Room | None = None) -> Iterator[GraphBatch]:
    """A batch for every step of numbers (steps, G, B), many at once; room as each needs if None."""
    given = room or shelf.room(numbers)
    count = max(1, AT_ONCE // (numbers.shape[1] * sum(given)))
    for part in numbers.split(count):
        many = shelf.take(part, given)
        for parts in zip(*(tensor.unbind() for tensor in many), strict=True):
            yield GraphBatch(*parts) if room else _shortened(GraphBatch(*parts))


def _shortened(batch: GraphBatch) -> GraphBatch:
    """Without the rows that no replica needs."""
    nodes, edges = (max(1, int(ends[:, -1].max())) for ends in (batch.offsets, batch.starts))
    return batch._replace(
        kinds=batch.kinds[:, :nodes],
        starts=batch.starts[:, : nodes + 1],
        sources=batch.sources[:, :edges],
    )


def shuffled(train: Tensor, seeds: Sequence[int], epochs: range, batch: int, steps: int) -> Tensor:
    """The graphs of every step of some epochs, (epochs, steps, G, B), each graph once an epoch.

    ``train`` (G, graphs) are those that each run is trained on, -1 after the last. Where all steps
    but the last have ``batch`` graphs, a run with few of them might have none left: then the steps
    before leave it one.
    """
    keys = draws.bits(seeds, epochs, "graphs", train.shape[1:], train.device)
    order = keys.masked_fill(train < 0, torch.iinfo(torch.int64).max).argsort(-1)
    order = train.expand_as(order).gather(-1, order).unsqueeze(1)
    counts = (train >= 0).sum(-1)
    step = torch.arange(steps + 1, device=train.device).unsqueeze(-1)
    begin = torch.minimum(step * batch, counts - (steps - step)).unsqueeze(-1)
    places = begin[:-1] + torch.arange(batch, device=train.device)
    rows = places.clamp(max=train.shape[1] - 1).expand(len(epochs), -1, -1, -1)
    found = order.expand(-1, steps, -1, -1).gather(-1, rows)
    return found.masked_fill(places >= begin[1:], -1)


def most_in_a_batch(
    shelf: Shelf, train: Tensor, seeds: Sequence[int], epochs: int, batch: int, steps: int
) -> Room:
    """Room for every batch of some runs. The device is asked once, in the end."""
    most = torch.zeros(2, dtype=torch.int64, device=train.device)
    for epoch in range(epochs):
        numbers = shuffled(train, seeds, range(epoch, epoch + 1), batch, steps)
        most = torch.maximum(most, shelf.most(numbers))
    return fitting(most)
