"""The two forms in which graph sets are published as text.

TU's: for a set NAME the files ``NAME_A.txt`` (two nodes a line, which an edge joins),
``NAME_graph_indicator.txt`` (the graph of every node), ``NAME_graph_labels.txt`` (the class of
every graph) and often ``NAME_node_labels.txt``. Nodes and graphs are counted from 1.

GIN's: one file ``NAME.txt``. Its first line is the number of graphs; a graph is a line with its
number of nodes and its class, then a line for each node: its label, how many neighbours it has, and
these, counted from 0 in every graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ..checks import UserError
from . import integers
from .tu_files import Archive, Folder

NUMBER = re.compile(rb"-?\d{1,%d}" % integers.DIGITS)


class Text(NamedTuple):
    """What the files say; int64."""

    sizes: np.ndarray  # (graphs,): how many nodes
    edges: np.ndarray  # (entries, 2): nodes of the whole set, counted from 0
    labels: np.ndarray  # (graphs,), as they are
    node_labels: np.ndarray | None  # (nodes,), as they are


def files_of(files: Folder | Archive, name: str, labelled: bool) -> list[str]:
    """The files that :func:`read` reads."""
    if _by_gin(files, name):
        return [f"{name}.txt"]
    kinds = ["A", "graph_indicator", "graph_labels"] + ["node_labels"] * labelled
    return [f"{name}_{kind}.txt" for kind in kinds]


def read(files: Folder | Archive, name: str, labelled: bool) -> Text:
    """A set in either form, checked; with the labels of its nodes if they are asked for."""
    if _by_gin(files, name):
        return _read_gin(files, f"{name}.txt")
    return _read_tu(files, *files_of(files, name, labelled))


def _by_gin(files: Folder | Archive, name: str) -> bool:
    return files.has(f"{name}.txt") and not files.has(f"{name}_A.txt")


def _wrong(where: str, found: str, expected: str) -> UserError:
    return UserError(f"{where} {found}; expected {expected}, so fetch it again.")


# --------------------------------------------------------------------------------------------------
# TU's form


def _read_tu(
    files: Folder | Archive, adjacency: str, indicator: str, classes: str, *node_classes: str
) -> Text:
    graphs = _column(files, indicator)
    _check_order(graphs, files.where(indicator))
    labels = _column(files, classes, graphs[-1], "graph")
    node_labels = [_column(files, name, len(graphs), "node") for name in node_classes]
    with files.open(adjacency) as stream:
        edges = integers.read(stream, 2, files.where(adjacency))
    _check_edges(edges, graphs, files.where(adjacency))
    edges -= 1
    return Text(np.bincount(graphs)[1:], edges, labels, *(node_labels or [None]))


def _column(files, name: str, count: int | None = None, what: str = "") -> np.ndarray:
    """The numbers of a file, one a line."""
    with files.open(name) as stream:
        numbers = integers.read(stream, 1, files.where(name))[:, 0]
    if count is not None and len(numbers) != count:
        raise _wrong(files.where(name), f"has {len(numbers)} lines", f"{count}, one a {what}")
    return numbers


def _check_order(graphs: np.ndarray, where: str) -> None:
    """Graph after graph, none left out."""
    steps = np.diff(graphs, prepend=0)
    wrong = (steps != 0) & (steps != 1)
    wrong[0] = graphs[0] != 1
    if wrong.any():
        line = int(wrong.argmax())
        before = graphs[line - 1] if line else 0
        found = f"has graph {graphs[line]} in line {line + 1}"
        expected = f"{before} or {before + 1}, since graphs come in order" if line else "graph 1"
        raise _wrong(where, found, expected)


def _check_edges(edges: np.ndarray, graphs: np.ndarray, where: str) -> None:
    """Nodes that there are, and both in one graph."""
    outside = (edges < 1) | (edges > len(graphs))
    if outside.any():
        line, end = divmod(int(outside.argmax()), 2)
        found = f"has node {edges[line, end]} in line {line + 1}"
        raise _wrong(where, found, f"nodes from 1 to {len(graphs)}")
    apart = graphs[edges[:, 0] - 1] != graphs[edges[:, 1] - 1]
    if apart.any():
        line = int(apart.argmax())
        a, b = edges[line]
        found = f"joins nodes {a} and {b} of graphs {graphs[a - 1]} and {graphs[b - 1]}"
        raise _wrong(where, f"{found} in line {line + 1}", "nodes of one graph")


# --------------------------------------------------------------------------------------------------
# GIN's form


def _read_gin(files: Folder | Archive, name: str) -> Text:
    with files.open(name) as stream:
        text = b"".join(iter(lambda: stream.read(integers.STEP), b""))
    rows = _Rows(text.rstrip().split(b"\n"), files.where(name))
    sizes, labels, node_labels, edges = [], [], [], []
    for _ in range(rows.take("a number of graphs", lambda row: len(row) == 1 and row[0] > 0)[0]):
        size, label = rows.take("nodes and class", lambda row: len(row) == 2 and row[0] > 0)
        first = len(node_labels)
        for node, (node_label, neighbours) in enumerate(_gin_nodes(rows, size)):
            node_labels.append(node_label)
            edges += [(first + node, first + other) for other in neighbours]
        sizes.append(size)
        labels.append(label)
    rows.end()
    as_edges = np.array(edges, np.int64).reshape(-1, 2)
    return Text(np.array(sizes), as_edges, np.array(labels), np.array(node_labels))


def _gin_nodes(rows: _Rows, size: int) -> Iterator[tuple[int, list[int]]]:
    """Label and neighbours of the nodes of a graph."""

    def fits(row: list[int]) -> bool:
        return len(row) >= 2 and len(row) == row[1] + 2 and all(0 <= n < size for n in row[2:])

    for _ in range(size):
        label, _, *neighbours = rows.take(f"a node with neighbours from 0 to {size - 1}", fits)
        yield label, neighbours


class _Rows:
    """Lines of integers, one after the other."""

    def __init__(self, lines: list[bytes], where: str) -> None:
        self.lines, self.where, self.line = lines, where, 0

    def take(self, expected: str, fits: Callable[[list[int]], bool]) -> list[int]:
        """The next one."""
        if self.line == len(self.lines):
            raise _wrong(self.where, f"ends after line {self.line}", expected)
        text = self.lines[self.line]
        self.line += 1
        words = text.split()
        if not all(NUMBER.fullmatch(word) for word in words) or not fits(row := [*map(int, words)]):
            found = integers.quoted(text)
            raise _wrong(self.where, f"has {found} in line {self.line}", expected)
        return row

    def end(self) -> None:
        if self.line < len(self.lines):
            raise _wrong(self.where, f"has {len(self.lines)} lines", f"{self.line}")
