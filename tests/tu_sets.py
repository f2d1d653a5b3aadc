"""Graph sets that were made up: as text in both forms, in archives, where they are looked for."""

import hashlib
import io
import shutil
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from fspool.data import tu, tu_text
from fspool.data.download import Wanted
from fspool.data.tu_files import Archive
from fspool.data.tu_sources import Source

from .data_files import put


@dataclass
class Drawn:
    """A graph as anybody would write it down: edges as they come, nodes counted from 0."""

    label: int
    nodes: list[int]  # their labels
    edges: list[tuple[int, int]] = field(default_factory=list)


def as_tu(name, graphs):
    """The four files of a set, by name."""
    firsts = np.cumsum([1] + [len(graph.nodes) for graph in graphs])
    pairs = [
        (first + a, first + b)
        for first, graph in zip(firsts, graphs, strict=False)
        for a, b in graph.edges
    ]
    nodes = [(i + 1, label) for i, graph in enumerate(graphs) for label in graph.nodes]
    lines = {
        "A": [f"{a}, {b}" for a, b in pairs],
        "graph_indicator": [graph for graph, _ in nodes],
        "graph_labels": [graph.label for graph in graphs],
        "node_labels": [label for _, label in nodes],
    }
    return {f"{name}_{kind}.txt": join(values) for kind, values in lines.items()}


def join(lines):
    return "".join(f"{line}\n" for line in lines).encode()


def as_gin(name, graphs):
    lines = [len(graphs)]
    for graph in graphs:
        lines.append(f"{len(graph.nodes)} {graph.label}")
        for node, label in enumerate(graph.nodes):
            others = [b for a, b in graph.edges if a == node]
            lines.append(" ".join(map(str, (label, len(others), *others))))
    return {f"{name}.txt": join(lines)}


def zipped(files, inside="", method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(inside + name), content, method)
    return buffer.getvalue()


def check(graphs, drawn, features):
    """Against the plainest way to make them."""
    sizes = [len(graph.nodes) for graph in drawn]
    firsts = [sum(sizes[:i]) for i in range(len(drawn) + 1)]
    edges = [
        sorted({(a, b) for u, v in graph.edges for a, b in ((u, v), (v, u)) if a != b})
        for graph in drawn
    ]
    degrees = [
        sum(a == i for a, _ in e) for n, e in zip(sizes, edges, strict=True) for i in range(n)
    ]
    all_edges = [(f + b, f + a) for f, e in zip(firsts, edges, strict=False) for a, b in e]
    labels = [graph.label for graph in drawn]
    names = [label for graph in drawn for label in graph.nodes]
    kind = {
        "label": [sorted(set(names)).index(label) for label in names],
        "degree": degrees,
        "constant": [0] * len(names),
    }[features]

    assert graphs.offsets.tolist() == firsts and len(graphs) == len(drawn)
    assert graphs.edge_index.T.tolist() == [list(pair) for pair in all_edges]
    assert graphs.edge_offsets.tolist() == [sum(map(len, edges[:i])) for i in range(len(edges) + 1)]
    assert graphs.labels.tolist() == [sorted(set(labels)).index(label) for label in labels]
    assert graphs.kind.tolist() == kind and graphs.columns == max(kind) + 1
    assert graphs.classes == len(set(labels))
    tensors = [value for value in vars(graphs).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 5 and {tensor.dtype for tensor in tensors} == {torch.int64}
    matrix = graphs.features(torch.float64)
    assert matrix.dtype == torch.float64 and matrix.shape == (len(names), graphs.columns)
    assert matrix.sum(1).eq(1).all() and matrix.argmax(1).tolist() == kind


def graphs_of(place, name, features):
    return tu.unpack(name, tu.pack(tu_text.read(place, name, features == "label"), features))


def same(a, b):
    pairs = zip(vars(a).values(), vars(b).values(), strict=True)
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)


TWO = [
    Drawn(1, [7, 7, 8], [(0, 1), (1, 0), (1, 2), (2, 1), (1, 1)]),
    Drawn(2, [8, 7], [(0, 1), (1, 0), (1, 0)]),
    Drawn(1, [9], []),
]


SETS = {
    "MUTAG": (TWO, "label"),
    "IMDB-BINARY": ([Drawn(0, [0, 0], [(0, 1)]), Drawn(1, [0] * 4, [(0, 1), (1, 2)])], "degree"),
    "REDDIT-BINARY": ([Drawn(-1, [0, 0], [(0, 1)]), Drawn(1, [0] * 3, [(2, 0)])], "constant"),
    "PTC": ([Drawn(1, [5, 6, 6], [(0, 1), (0, 2)]), Drawn(0, [6, 5], [(0, 1)])], "label"),
}


@pytest.fixture
def archives(monkeypatch):
    """By name, as they are downloaded; PTC in GIN's."""
    made, sources = {}, {}
    for name, (drawn, features) in SETS.items():
        if name == "PTC":
            archive = zipped(as_gin(name, drawn), "dataset/PTC/", zipfile.ZIP_STORED)
            wanted = Wanted("dataset.zip", None, None)
        else:
            archive = zipped(as_tu(name, drawn), f"{name}/")
            wanted = Wanted(f"{name}.zip", None, hashlib.sha256(archive).hexdigest())
        made[wanted.name] = archive
        put({wanted.name: archive}, Path("made"))
        text = tu_text.read(Archive(Path("made") / wanted.name), name, features == "label")
        packed = tu.pack(text, features)
        sources[name] = Source(wanted, (), features, tu.count(packed), tu.fingerprint(packed))
    shutil.rmtree("made")
    monkeypatch.setattr(tu, "SOURCES", sources)
    return made


@pytest.fixture
def root(archives, tmp_path):
    put(archives, tmp_path / "root" / "tu")
    return tmp_path / "root"


def left(folder):
    """What is there besides the archives themselves."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".zip")
