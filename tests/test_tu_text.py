"""Graph sets as text: integers, and graphs in two forms."""

import io
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool.checks import UserError
from fspool.data import integers, tu_text
from fspool.data.tu import Graphs
from fspool.data.tu_files import Archive, Folder

from . import data_files
from .data_files import put
from .tu_sets import TWO, Drawn, as_gin, as_tu, check, graphs_of, zipped

pytestmark = pytest.mark.usefixtures("one_thread")
elsewhere = data_files.elsewhere


# --------------------------------------------------------------------------------------------------
# Integers

numbers = st.integers(-(10**18) + 1, 10**18 - 1) | st.integers(-9, 99)
blank = st.text(" \t", max_size=2)


@given(st.data(), st.integers(1, 3), st.sampled_from(["\n", "\r\n"]), st.integers(1, 99))
def test_integers_come_back_however_they_are_spaced(data, columns, newline, piece):
    rows = data.draw(st.lists(st.lists(numbers, min_size=columns, max_size=columns), min_size=1))
    words = [[f"{data.draw(blank)}{n}{data.draw(blank)}" for n in row] for row in rows]
    end = data.draw(st.sampled_from(["", newline, newline * 3 + "  "]))
    text = newline.join(map(",".join, words)) + end
    longest = max(len(",".join(row)) for row in words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integers, "PIECE", max(piece, 2 * longest + 12))
        patch.setattr(integers, "STEP", piece)
        found = integers.read(io.BytesIO(text.encode()), columns, "it")
    assert found.dtype == np.int64 and found.tolist() == rows


@pytest.mark.parametrize(
    "line",
    [
        "", " ", "1", "1 2", "1, 2, 3", "1,", ", 2", ",", "1,, 2", "1 2,", ", 1 2", "1; 2",
        "1 2, 3", "1, 2 3",
        "1.0, 2", "one, 2", "1, -", "1, --2", "1, 2-", "1-2, 3", "- 1, 2", "1, +2", "1, 0x2",
        "nan, 2", "1e3, 2", "1, " + "9" * 19, "\x00, 2", "1, ²", "1\r2, 3", "1_0, 2",
    ],
)  # fmt: skip
@pytest.mark.parametrize("at", [1, 2, 500])
def test_a_line_that_is_not_two_integers_is_named(line, at, monkeypatch):
    monkeypatch.setattr(integers, "PIECE", 300)
    monkeypatch.setattr(integers, "STEP", 100)
    lines = ["11, 22"] * 499
    lines.insert(at - 1, line)
    text = "\n".join([*lines, "1, 2"]).encode()
    with pytest.raises(UserError) as error:
        integers.read(io.BytesIO(text), 2, "a.txt")
    assert str(error.value) == (
        f"a.txt has {line.strip()!r} in line {at}; expected 2 integers with commas between them, "
        "so fetch it again."
    )


@pytest.mark.parametrize("lines", [["1", "2, 3, 4"], ["1, 2, 3", "4"], ["1, 2, 3, 4", ""]])
def test_numbers_that_moved_to_another_line(lines):
    with pytest.raises(UserError, match="in line 1; expected 2 integers"):
        integers.read(io.BytesIO("\n".join([*lines, "5, 6"]).encode()), 2, "a.txt")


@pytest.mark.parametrize("text", [b"", b"\n", b" \r\n\n"])
@pytest.mark.parametrize("columns, form", [(1, "an integer"), (2, "2 integers with commas.*")])
def test_an_empty_file(text, columns, form):
    with pytest.raises(UserError, match=f"^a.txt is empty; expected {form} a line, so fetch it"):
        integers.read(io.BytesIO(text), columns, "a.txt")


@pytest.mark.parametrize("text", [b"1" * 999, b"\n" * 999, b"1, 2" + b" " * 999])
def test_a_line_without_end_is_given_up_early(text, monkeypatch):
    monkeypatch.setattr(integers, "PIECE", 300)
    monkeypatch.setattr(integers, "STEP", 100)
    stream = io.BytesIO(text)
    with pytest.raises(UserError, match="a.txt has 300 bytes without a line; fetch it again"):
        integers.read(stream, 2, "a.txt")
    assert stream.tell() == 300


def test_a_long_line_is_quoted_in_part():
    with pytest.raises(UserError, match=rf"has '{'x' * 40}\.\.\.' in line 1; "):
        integers.read(io.BytesIO(b"x" * 5000), 1, "a.txt")


# --------------------------------------------------------------------------------------------------
# Graphs


@st.composite
def drawn_graphs(draw):
    """A few graphs with loops, repeated edges, and edges that are written in one direction only."""

    def graph():
        nodes = draw(st.lists(st.integers(-2, 4), min_size=1, max_size=6))
        node = st.integers(0, len(nodes) - 1)
        edges = draw(st.lists(st.tuples(node, node), max_size=12))
        return Drawn(draw(st.sampled_from([-1, 1, 5])), nodes, edges)

    graphs = [graph() for _ in range(draw(st.integers(1, 5)))]
    graphs[-1].edges.append((0, 0))  # the file of edges is not empty
    return graphs


@given(drawn_graphs(), st.sampled_from(["label", "degree", "constant"]))
def test_graphs_come_back_from_both_forms(tmp_path, drawn, features):
    for form in (as_tu, as_gin):
        shutil.rmtree(tmp_path / "x", ignore_errors=True)
        put(form("X", drawn), tmp_path / "x")
        check(graphs_of(Folder(tmp_path / "x"), "X", features), drawn, features)


@given(st.permutations(range(4)))
def test_edges_may_come_in_any_order(tmp_path, order):
    drawn = [Drawn(0, [0, 0, 0], [(0, 1), (1, 2)]), Drawn(1, [0, 0], [(1, 0), (0, 1)])]
    files = as_tu("X", drawn)
    lines = files["X_A.txt"].splitlines()
    files["X_A.txt"] = b"\n".join(lines[i] for i in order)
    put(files, tmp_path / "x")
    check(graphs_of(Folder(tmp_path / "x"), "X", "degree"), drawn, "degree")


@pytest.mark.parametrize("nodes", [255, 256, 40_000])
def test_large_graphs(tmp_path, nodes):
    """Small integers hold them, whatever their size."""
    drawn = [Drawn(0, [0], []), Drawn(1, [0] * nodes, [(nodes - 1, i) for i in range(nodes)])]
    put(as_tu("X", drawn), tmp_path)
    graphs = graphs_of(Folder(tmp_path), "X", "degree")
    expected = [[nodes, i + 1] for i in range(nodes - 1)] + [
        [i + 1, nodes] for i in range(nodes - 1)
    ]
    assert graphs.edge_index.T.tolist() == expected and graphs.columns == nodes
    assert graphs.edge_offsets.tolist() == [0, 0, 2 * nodes - 2]


def test_an_attribute_of_nodes_is_not_read(tmp_path):
    drawn = [Drawn(1, [3, 3], [(0, 1)])]
    put(as_tu("X", drawn) | {"X_node_attributes.txt": b"nonsense"}, tmp_path)
    check(graphs_of(Folder(tmp_path), "X", "label"), drawn, "label")


def test_graphs_move_to_another_device(tmp_path):
    put(as_tu("X", [Drawn(1, [3, 4], [(0, 1)])]), tmp_path)
    graphs = graphs_of(Folder(tmp_path), "X", "label")
    moved = graphs.to("meta")
    assert isinstance(moved, Graphs) and (moved.name, moved.columns, moved.classes) == ("X", 2, 1)
    tensors = [value for value in vars(moved).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 5 and {tensor.device.type for tensor in tensors} == {"meta"}


@pytest.mark.parametrize(
    "kind, content, sentence",
    [
        ("A", b"1, 2\n2, 7\n", "has node 7 in line 2; expected nodes from 1 to 6"),
        ("A", b"1, 2\n0, 1\n", "has node 0 in line 2; expected nodes from 1 to 6"),
        ("A", b"-1, 2\n", "has node -1 in line 1; expected nodes from 1 to 6"),
        (
            "A",
            b"1, 2\n3, 4\n",
            "joins nodes 3 and 4 of graphs 1 and 2 in line 2; expected nodes of",
        ),
        ("A", b"", "is empty; expected 2 integers"),
        ("A", b"1, 2\n1\n", "has '1' in line 2; expected 2 integers"),
        ("graph_indicator", b"1\n1\n2\n1\n2\n3\n", "has graph 1 in line 4; expected 2 or 3, since"),
        ("graph_indicator", b"1\n1\n1\n2\n2\n4\n", "has graph 4 in line 6; expected 2 or 3, since"),
        ("graph_indicator", b"2\n2\n2\n2\n2\n3\n", "has graph 2 in line 1; expected graph 1"),
        ("graph_indicator", b"0\n1\n1\n2\n2\n3\n", "has graph 0 in line 1; expected graph 1"),
        ("graph_indicator", b"1\n1\none\n", "has 'one' in line 3; expected an integer"),
        ("graph_indicator", b"\n", "is empty; expected an integer a line"),
        ("graph_labels", b"1\n2\n", "has 2 lines; expected 3, one a graph"),
        ("graph_labels", b"1\n2\n1\n1\n", "has 4 lines; expected 3, one a graph"),
        ("graph_labels", b"1\n2\n1.5\n", "has '1.5' in line 3; expected an integer"),
        ("graph_labels", b"", "is empty; expected an integer a line"),
        ("node_labels", b"1\n2\n", "has 2 lines; expected 6, one a node"),
        ("node_labels", b"1\n2\n3, 4\n", "has '3, 4' in line 3; expected an integer"),
        ("node_labels", b"", "is empty; expected an integer a line"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_bad_text_is_named_with_file_and_line(tmp_path, kind, content, sentence, packed):
    files, name = as_tu("X", TWO) | {f"X_{kind}.txt": content}, f"X_{kind}.txt"
    put({"X.zip": zipped(files)} if packed else files, tmp_path)
    place = Archive(tmp_path / "X.zip") if packed else Folder(tmp_path)
    with pytest.raises(UserError) as error:
        tu_text.read(place, "X", True)
    where = f"{name} in {tmp_path}/X.zip" if packed else f"{tmp_path}/{name}"
    text = str(error.value)
    assert text.startswith(f"{where} {sentence}") and text.endswith(", so fetch it again.")


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("", "has '' in line 1; expected a number of graphs"),
        ("two", "has 'two' in line 1; expected a number of graphs"),
        ("0", "has '0' in line 1; expected a number of graphs"),
        ("1 2", "has '1 2' in line 1; expected a number of graphs"),
        ("1", "ends after line 1; expected nodes and class"),
        ("1\n2", "has '2' in line 2; expected nodes and class"),
        ("1\n0 1", "has '0 1' in line 2; expected nodes and class"),
        ("1\n2 1\n0 1 1", "ends after line 3; expected a node with neighbours from 0 to 1"),
        ("1\n2 1\n0 1 1\n5", "has '5' in line 4; expected a node with neighbours from 0 to 1"),
        ("1\n2 1\n0 1 1\n5 2 0", "has '5 2 0' in line 4; expected a node with neighbours"),
        ("1\n2 1\n0 1 1\n5 1 2", "has '5 1 2' in line 4; expected a node with neighbours"),
        ("1\n2 1\n0 1 1\n5 1 -1", "has '5 1 -1' in line 4; expected a node with neighbours"),
        ("1\n2 1\n0 1 1\n5 -1", "has '5 -1' in line 4; expected a node with neighbours"),
        ("1\n2 1\n0 1 1\n5 1 0.5", "has '5 1 0.5' in line 4; expected a node with neighbours"),
        ("1\n2 1\n0 1 1\n\n5 1 0", "has '' in line 4; expected a node with neighbours"),
        (f"1\n1 {'9' * 19}", "has '1 9999999999999999999' in line 2; expected nodes and class"),
        ("1\n2 1\n0 1 1\n5 1 0\n1 1\n0 0", "has 6 lines; expected 4"),
    ],
)
def test_bad_text_of_gin_is_named_with_file_and_line(tmp_path, text, sentence):
    (tmp_path / "X.txt").write_text(text)
    with pytest.raises(UserError) as error:
        tu_text.read(Folder(tmp_path), "X", True)
    assert str(error.value).startswith(f"{tmp_path}/X.txt {sentence}")
    assert str(error.value).endswith(", so fetch it again.")
