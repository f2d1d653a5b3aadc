"""Graphs that were made up, as anybody would write them down and as the package has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fspool.data import tu, tu_text
from fspool.data.download import Wanted
from fspool.data.tu import Graphs
from fspool.data.tu_files import Folder
from fspool.data.tu_sources import Source


@dataclass(frozen=True)
class Drawn:
    adjacency: Tensor  # bool (n, n)
    kinds: Tensor  # (n,)
    label: int


def drawn(count: int, seed: int, *, largest: int = 7, columns: int = 4) -> list[Drawn]:
    """Graphs of 1 to ``largest`` nodes, two classes in turn; the first has all kinds of nodes.

    One class has many edges, the other has few: it can be learnt.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        n = largest if number == 0 else int(torch.randint(1, largest + 1, (), generator=generator))
        upper = torch.rand(n, n, generator=generator).triu(1)
        upper = upper > (0.3 if number % 2 else 0.8)
        kinds = torch.randint(0, columns, (n,), generator=generator)
        kinds = torch.arange(n) % columns if number == 0 else kinds
        found.append(Drawn(upper | upper.T, kinds, number % 2))
    return found


def as_graphs(graphs: list[Drawn], name: str = "made") -> Graphs:
    pairs = [graph.adjacency.nonzero() for graph in graphs]  # by row, then by column
    kept = {
        "sizes": torch.tensor([len(graph.kinds) for graph in graphs]),
        "degrees": torch.cat([graph.adjacency.sum(0) for graph in graphs]),
        "sources": torch.cat([pair[:, 1] for pair in pairs]),
        "labels": torch.tensor([graph.label for graph in graphs]),
        "kind": torch.cat([graph.kinds for graph in graphs]),
    }
    return tu.unpack(name, kept)


def write_tu(root: Path, name: str, graphs: list[Drawn]) -> Source:
    """The text files of a set, where they are looked for; and what they are to be verified by."""
    folder = root / "tu" / name
    folder.mkdir(parents=True)
    lines: dict[str, list[str]] = {
        kind: [] for kind in ("A", "graph_indicator", "graph_labels", "node_labels")
    }
    first = 1
    for number, graph in enumerate(graphs):
        lines["A"] += [f"{first + a}, {first + b}" for a, b in graph.adjacency.nonzero().tolist()]
        lines["graph_indicator"] += [str(number + 1)] * len(graph.kinds)
        lines["graph_labels"].append(str(graph.label))
        lines["node_labels"] += [str(kind) for kind in graph.kinds.tolist()]
        first += len(graph.kinds)
    for kind, texts in lines.items():
        (folder / f"{name}_{kind}.txt").write_text("\n".join(texts) + "\n")
    packed = tu.pack(tu_text.read(Folder(folder), name, True), "label")
    wanted = Wanted(f"{name}.zip", None, None)
    return Source(wanted, (), "label", tu.count(packed), tu.fingerprint(packed))
