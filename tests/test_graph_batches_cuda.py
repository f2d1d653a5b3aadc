"""Batches of graphs by the kernel, against those that torch gathers.

Without a GPU the kernel runs in Triton's interpreter.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool.data.graph_batches import Room, Shelf

from .interpreter import DEVICE
from .made_graphs import as_graphs, drawn

pytest.importorskip("triton")  # Linux has it
from fspool.kernels.cuda import graph_batches as kernels  # noqa: E402

SHELF = Shelf.of(as_graphs(drawn(9, 0)))
TENSORS = "kinds starts sources sizes firsts labels".split()
THERE = replace(SHELF, **{name: getattr(SHELF, name).to(DEVICE) for name in TENSORS})


def check(numbers, room):
    """On a GPU the kernel is taken by itself."""
    expected = SHELF.take(numbers, room)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ROWS", 16)
        if DEVICE == "cpu":
            patch.setattr(Shelf, "_fill", Shelf._fill_by_kernel)
        got = THERE.take(numbers.to(DEVICE), room)
    for name, a, b in zip(got._fields, got, expected, strict=True):
        assert a.dtype == b.dtype and a.is_contiguous(), name
        assert torch.equal(a.cpu(), b), name


@given(
    st.lists(st.lists(st.integers(-1, 8), min_size=3, max_size=3), min_size=4, max_size=4),
    st.sampled_from([0, 1, 77]),
)
def test_a_batch_is_what_torch_gathers(numbers, more):
    numbers = torch.tensor(numbers).view(2, 2, 3)  # steps, replicas, graphs
    nodes, edges = SHELF.room(numbers)
    check(numbers, Room(nodes + more, edges + more))


@pytest.mark.parametrize("graphs", [1, 2, 31, 32, 33, 128])
def test_batches_of_any_size(graphs):
    numbers = torch.randint(-1, 9, (3, graphs))
    check(numbers, SHELF.room(numbers))


def test_many_batches_are_several_launches(monkeypatch):
    monkeypatch.setattr(kernels, "MOST", 2)
    numbers = torch.randint(0, 9, (5, 1, 2))
    check(numbers, SHELF.room(numbers))


def test_one_batch():
    numbers = torch.tensor([3, -1, 0, 8])
    check(numbers, SHELF.room(numbers.unsqueeze(0)))


def test_no_steps():
    numbers = torch.zeros(0, 2, 3, dtype=torch.int64)
    check(numbers, Room(64, 64))
