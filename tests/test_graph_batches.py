"""Batches of graphs: gathered in one go, they hold what a slow construction holds."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool.data import graph_batches, tu
from fspool.data.graph_batches import Room, Shelf, batches_of, most_in_a_batch, shuffled

from .made_graphs import as_graphs, drawn

DATA = os.environ.get("FSPOOL_DATA")
MADE = drawn(9, 0)
SHELF = Shelf.of(as_graphs(MADE))


def slowly(numbers, graphs):
    """Nodes one after the other, each with its kind and its neighbours' places; and the labels."""
    kinds, neighbours, offsets, labels = [], [], [0], []
    for number in numbers:
        labels.append(-1 if number < 0 else graphs[number].label)
        if number >= 0:
            graph = graphs[number]
            kinds += graph.kinds.tolist()
            places = [row.nonzero().flatten() + offsets[-1] for row in graph.adjacency]
            neighbours += [place.tolist() for place in places]
        offsets.append(len(kinds))
    return kinds, neighbours, offsets, labels


def check(batch, numbers, graphs):
    """A batch of one step and replica, whatever room it has."""
    kinds, neighbours, offsets, labels = slowly(numbers, graphs)
    assert batch.offsets.tolist() == offsets and batch.labels.tolist() == labels
    assert batch.kinds[: len(kinds)].tolist() == kinds
    starts, sources = batch.starts.tolist(), batch.sources.tolist()
    found = [sources[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    assert found == neighbours + [[]] * (len(found) - len(neighbours))
    assert not batch.kinds[len(kinds) :].any() and not batch.sources[starts[-1] :].any()


@given(
    st.lists(st.lists(st.integers(-1, 8), min_size=3, max_size=3), min_size=4, max_size=4),
    st.sampled_from([0, 1, 77]),
)
def test_a_batch_is_what_a_slow_construction_makes(numbers, more):
    numbers = torch.tensor(numbers).view(2, 2, 3)  # steps, replicas, graphs
    room = SHELF.room(numbers)
    whole = SHELF.take(numbers, Room(room.nodes + more, room.edges + more))
    assert whole.kinds.dtype == whole.starts.dtype == whole.sources.dtype == torch.int32
    for step in range(2):
        for replica in range(2):
            batch = type(whole)(*(part[step, replica] for part in whole))
            check(batch, numbers[step, replica].tolist(), MADE)


def test_the_room_is_that_of_the_largest_batch():
    numbers = torch.tensor([[0, 1, 2], [3, -1, -1]])
    nodes = max(sum(len(MADE[i].kinds) for i in row if i >= 0) for row in numbers.tolist())
    edges = max(
        sum(int(MADE[i].adjacency.sum()) for i in row if i >= 0) for row in numbers.tolist()
    )
    assert SHELF.most(numbers).tolist() == [nodes, edges]
    assert SHELF.room(numbers) == (64, 64 * -(-edges // 64))
    assert len(SHELF) == 9


def test_graphs_without_edges():
    alone = drawn(4, 0, largest=1)
    shelf = Shelf.of(as_graphs(alone))
    batch = shelf.take(torch.tensor([2, 0, -1]), shelf.room(torch.tensor([[2, 0, -1]])))
    check(batch, [2, 0, -1], alone)


@pytest.mark.parametrize("at_once", [1, 1 << 26])
def test_many_steps_are_each_alone(monkeypatch, at_once):
    monkeypatch.setattr(graph_batches, "AT_ONCE", at_once)
    numbers = torch.tensor([[[0, 1], [2, 3]], [[4, -1], [5, -1]], [[-1, -1], [-1, -1]]])
    for room in (None, Room(64, 128)):
        found = list(batches_of(SHELF, numbers, room))
        assert len(found) == 3
        for batch, own in zip(found, numbers, strict=True):
            for replica in range(2):
                parts = type(batch)(*(part[replica] for part in batch))
                check(parts, own[replica].tolist(), MADE)
        shapes = {tuple(batch.kinds.shape) for batch in found}
        assert shapes == {(2, 64)} if room else len(shapes) == 3


# --------------------------------------------------------------------------------------------------
# Epochs


@given(st.integers(2, 7), st.lists(st.integers(10, 12), min_size=2, max_size=2))
def test_an_epoch_has_every_graph_once(batch, counts):
    train = torch.full((2, max(counts)), -1)
    for row, count in enumerate(counts):
        train[row, :count] = 100 * row + torch.arange(count)
    steps = -(-max(counts) // batch)
    found = shuffled(train, [3, 8], range(2, 4), batch, steps)
    assert found.shape == (2, steps, 2, batch)
    for epoch in found:
        for row, count in enumerate(counts):
            own = epoch[:, row]
            assert sorted(own[own >= 0].tolist()) == train[row, :count].tolist()
            sizes = (own >= 0).sum(-1)
            assert sizes.min() >= 1  # a step without a graph would have nothing to learn from
            assert all((row >= 0).int().diff().max() <= 0 for row in own if len(row) > 1)
            if -(-count // batch) == steps:  # as anybody would cut it
                assert sizes.tolist() == [batch] * (steps - 1) + [count - batch * (steps - 1)]


def test_orders_differ_and_depend_on_run_and_epoch_alone():
    train = torch.arange(40).expand(2, -1)
    found = shuffled(train, [3, 8], range(5), 40, 1)
    assert not torch.equal(found[0], found[1]) and not torch.equal(found[:, :, 0], found[:, :, 1])
    assert torch.equal(shuffled(train[:1], [8], range(4, 5), 40, 1)[0, 0], found[4, 0, 1:])


def test_room_for_every_batch():
    train = torch.tensor([[0, 1, 2, 3, 4], [5, 6, 7, 8, -1]])
    room = most_in_a_batch(SHELF, train, [0, 1], 30, 2, 3)
    most = SHELF.most(shuffled(train, [0, 1], range(30), 2, 3))
    assert room == tuple(64 * -(-int(count) // 64) for count in most)


@pytest.mark.skipif(not DATA, reason="FSPOOL_DATA is not set")
@pytest.mark.parametrize("name", ["MUTAG", "PTC"])
def test_real_graphs(name):
    graphs = tu.load(DATA, name)
    shelf = Shelf.of(graphs)
    numbers = torch.tensor([[5, 0, len(graphs) - 1, -1]])
    batch = shelf.take(numbers, shelf.room(numbers))
    place = 0
    for number in (5, 0, len(graphs) - 1):
        first, last = graphs.offsets[number : number + 2].tolist()
        begin, end = graphs.edge_offsets[number : number + 2].tolist()
        assert torch.equal(batch.kinds[0, place : place + last - first], graphs.kind[first:last])
        source, destination = graphs.edge_index[:, begin:end] - first + place
        starts = batch.starts[0].long()
        rows = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())
        mine = (rows >= place) & (rows < place + last - first)
        assert torch.equal(rows[mine], destination)
        assert torch.equal(batch.sources[0, : len(rows)][mine].long(), source)
        place += last - first
    assert batch.labels[0, :3].tolist() == graphs.labels[[5, 0, -1]].tolist()
