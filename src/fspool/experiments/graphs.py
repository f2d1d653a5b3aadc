"""Which class is a graph of? Ten-fold cross-validation, repeated ten times (section 6.4).

A run is one fold of one repeat (see :mod:`.folds`), so that ten seeds are one repeat and a hundred
the whole protocol. Settings and epoch are chosen afterwards, from finished runs: see
:mod:`.graph_selection`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..checks import check_count, nearest
from ..data import draws, tu
from ..data.files import find_root
from ..data.graph_batches import GraphBatch, Room, Shelf, batches_of, most_in_a_batch, shuffled
from ..lab.cell import Cell, Evaluation, place
from ..models.gin import GIN
from ..models.readout import PYG, READOUTS
from .experiment import Experiment
from .folds import RUNS, Split, most_training, splits
from .graph_deviations import GRAPH_DEVIATIONS
from .graph_selection import by_repeat, chosen
from .graph_tables import BASES, BEYOND, BIO, SOCIAL, TABLES

TITLE = "Graphs: which class is it?"
HALVING = 50  # epochs after which the learning rate is halved, again and again
PIECE = 128  # graphs that are tried at once


class Batch(NamedTuple):
    """Graphs, and what the hidden units of the classifier are multiplied by: dropout."""

    graphs: GraphBatch
    keep: Tensor  # (G, B, width)


class Trials(NamedTuple):
    """The graphs for validation, and behind them those for the test."""

    pieces: list[GraphBatch]
    validation: Tensor  # (G,): how many of them there are


@dataclass(frozen=True, kw_only=True)
class GraphCell(Cell):
    """One network with one choice of the grid, on one data set. The defaults are the paper's."""

    own: ClassVar[tuple[str, ...]] = ("dropout",)
    tallies: ClassVar[tuple[str, ...]] = ("validation", "test")

    dataset: str = "MUTAG"
    readout: str = "fspool"
    width: int = 32
    batch: int = 128
    dropout: float = 0.0
    epochs: int = 500
    learning_rate: float = 0.01
    knots: int = 5
    tf32: bool = True  # in products of matrices, on CUDA
    norm_first: bool = False  # Linear-BatchNorm-ReLU
    wide_eps: bool = False  # as in the released code: eps is the width of a block's input
    reshuffle: bool = False  # as in the released code: every fold shuffles anew
    data: str = place()

    def __post_init__(self) -> None:
        nearest("dataset", self.dataset, tu.SOURCES)
        nearest("readout", self.readout, READOUTS)
        nearest("dtype", self.dtype, ("float32", "float64"))
        check_count("width", self.width, 1, "a number of features")
        check_count("batch", self.batch, 2, "graphs to normalise over")
        check_count("epochs", self.epochs, 1, "a number of them")
        check_count("knots", self.knots, 2, "knots of the weight functions")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; expected a probability below 1.")
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate is {self.learning_rate}; expected a positive number.")
        object.__setattr__(self, "steps", self.epochs * self.tally_every)  # never a setting

    @property
    def counts(self) -> tu.Counts:
        return tu.SOURCES[self.dataset].counts

    @property
    def tally_every(self) -> int:
        """Steps of an epoch."""
        return -(-most_training(self.counts.graphs, reshuffle=self.reshuffle) // self.batch)

    @property
    def footprint(self) -> int:
        """Of a batch of average graphs."""
        nodes = -(-self.counts.nodes // self.counts.graphs)
        return min(self.batch, self.counts.graphs) * nodes * self.width

    @property
    def recordable(self) -> bool:
        return self.readout not in PYG  # those wait for the device

    @property
    def matmul_precision(self) -> str:
        return "high" if self.tf32 else "highest"

    @property
    def most_runs(self) -> int:
        return RUNS

    def model(self) -> nn.Module:
        return GIN(
            self.counts.columns,
            self.width,
            self.counts.classes,
            pool=self.readout,
            knots=self.knots,
            norm_first=self.norm_first,
            wide_eps=self.wide_eps,
        )

    def check(self, seeds: Sequence[int]) -> None:
        tu.check(find_root(self.data or None), self.dataset)

    def rate(self, step: int) -> float:
        return self.learning_rate * 0.5 ** (step // self.tally_every // HALVING)

    def batches(self, seeds: Sequence[int], steps: range, device: torch.device) -> Iterator[Batch]:
        shelf, every = self._shelf(device), self.tally_every
        train = self._splits(seeds, device).train
        epochs = range(steps.start // every, -(-steps.stop // every))
        numbers = shuffled(train, seeds, epochs, self.batch, every).flatten(0, 1)
        first = epochs.start * every
        numbers = numbers[steps.start - first : steps.stop - first]
        graphs = batches_of(shelf, numbers, self._room(device))
        return map(Batch, graphs, self._keep(seeds, steps, device))

    def output(self, model: nn.Module, batch: Batch) -> Tensor:
        return self._scores(model, batch.graphs, batch.keep)

    def loss(self, output: Tensor, batch: Batch, matched: None) -> Tensor:
        labels = batch.graphs.labels
        losses = cross_entropy(
            output.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="none"
        )
        return losses.unflatten(0, labels.shape).sum(-1) / (labels >= 0).sum(-1)

    def trials(self, seeds: Sequence[int], device: torch.device) -> Trials:
        shelf, pieces = self._shelf(device), []
        tried, fixed = self._tried(seeds, device), self._tried(range(RUNS), device)
        for own, of_all in zip(tried, fixed, strict=True):
            room = shelf.room(of_all) if device.type == "cuda" else None
            pieces += batches_of(shelf, own.unsqueeze(0), room)
        return Trials(pieces, (self._splits(seeds, device).validation >= 0).sum(-1))

    def tally(self, model: nn.Module, trials: Trials) -> Tensor:
        right = [self._scores(model, part).argmax(-1) == part.labels for part in trials.pieces]
        right = torch.cat(right, -1)
        places = torch.arange(right.shape[1], device=right.device)
        first = places < trials.validation.unsqueeze(-1)
        return torch.stack([(right & first).sum(-1), (right & ~first).sum(-1)], -1)

    def evaluate(self, model: nn.Module, seeds: Sequence[int], device: torch.device) -> Evaluation:
        """How many are right after the last epoch."""
        right = self.tally(model, self.trials(seeds, device))
        own = self._splits(seeds, device)
        counts = torch.stack([(part >= 0).sum(-1) for part in own[1:]], -1)
        accuracy = (right.double() / counts).cpu()
        return Evaluation(dict(zip(self.tallies, accuracy.T.tolist(), strict=True)), {})

    def _scores(self, model: nn.Module, graphs: GraphBatch, keep: Tensor | None = None) -> Tensor:
        longest = self._shelf(graphs.offsets.device).longest
        return model(*graphs[:4], keep=keep, longest=longest)

    def _keep(self, seeds: Sequence[int], steps: range, device: torch.device) -> Tensor:
        """(steps, G, B, width)"""
        shape = self.batch, self.width
        if not self.dropout:
            size = len(steps), len(seeds), *shape
            return torch.ones(1, dtype=self.torch_dtype, device=device).expand(size)
        kept = draws.uniform(seeds, steps, "dropout", shape, device) >= self.dropout
        return kept.to(self.torch_dtype) / (1 - self.dropout)

    def _tried(self, seeds: Iterable[int], device: torch.device) -> tuple[Tensor, ...]:
        """Pieces (G, B) of the graphs for validation and for the test; those missing come last."""
        own = self._splits(seeds, device)
        both = torch.cat((own.validation, own.test), -1)
        order = (both < 0).int().argsort(dim=-1, stable=True)
        return both.gather(-1, order).split(PIECE, -1)

    def _splits(self, seeds: Iterable[int], device: torch.device) -> Split:
        own = splits(self.counts.graphs, list(seeds), reshuffle=self.reshuffle)
        return Split(*(part.to(device) for part in own))

    def _shelf(self, device: torch.device) -> Shelf:
        device = torch.empty(0, device=device).device  # cuda:0 is cuda
        return _on_device(self.data, self.dataset, device)

    def _room(self, device: torch.device) -> Room | None:
        """On CUDA every batch has the same shape, for graphs: that of the largest of all runs."""
        if device.type == "cpu":
            return None
        shape = self.epochs, self.batch, self.tally_every
        return _most(self._shelf(device), self.reshuffle, *shape)


@lru_cache(maxsize=4)
def _on_device(root: str, dataset: str, device: torch.device) -> Shelf:
    return Shelf.of(tu.load(find_root(root or None), dataset).to(device))


@lru_cache(maxsize=16)
def _most(shelf: Shelf, reshuffle: bool, epochs: int, batch: int, steps: int) -> Room:
    """Room for every batch of every run."""
    train = splits(len(shelf), range(RUNS), reshuffle=reshuffle).train.to(shelf.labels.device)
    return most_in_a_batch(shelf, train, range(RUNS), epochs, batch, steps)


# --------------------------------------------------------------------------------------------------
# Presets. "fspool-MUTAG-d32-b128-p0.5" has width 32, batches of 128 graphs and dropout of 0.5.


def grid(model: str, dataset: str, dropouts: Sequence[float], **settings) -> dict[str, GraphCell]:
    """The settings that are searched."""
    bio = dataset in BIO
    base = GraphCell(dataset=dataset, epochs=500 if bio else 250, **settings)
    return {
        f"{model}-{dataset}-d{width}-b{batch}-p{dropout:g}": replace(
            base, width=width, batch=batch, dropout=dropout
        )
        for width in ((16, 32) if bio else (64,))
        for batch in ((32, 128) if bio else (32, 100))
        for dropout in dropouts
    }


def models(dataset: str, dropouts: Sequence[float] = (0.0, 0.5), **settings):
    """FSPool, and what it is compared with."""
    base = BASES[dataset]
    return grid("fspool", dataset, dropouts, **settings) | grid(
        base, dataset, dropouts, readout=base, **settings
    )


def cells(preset: str) -> dict[str, GraphCell]:
    found: dict[str, GraphCell] = {}
    for dataset in (*SOCIAL, *BIO):
        if preset == "quick":
            found |= quick(models(dataset))
        elif preset == "released":  # its knots count pieces
            quirks = {"knots": 6, "wide_eps": True, "reshuffle": True}
            found |= models(dataset, _dropouts(preset, dataset), **quirks)
        else:
            found |= models(dataset) | extra(dataset)
    return found


def quick(cells: dict[str, GraphCell]) -> dict[str, GraphCell]:
    """One choice of the grid."""
    endings = "-d16-b128-p0.5", "-d64-b100-p0.5"
    return {name: replace(c, epochs=80) for name, c in cells.items() if name.endswith(endings)}


def read_by(preset: str, readout: str) -> dict[str, GraphCell]:
    """The same grid with another readout."""
    settings = {"wide_eps": True, "reshuffle": True} if preset == "released" else {}
    found: dict[str, GraphCell] = {}
    for dataset in (*SOCIAL, *BIO):
        found |= grid(readout, dataset, _dropouts(preset, dataset), readout=readout, **settings)
    return quick(found) if preset == "quick" else found


def _dropouts(preset: str, dataset: str) -> tuple[float, ...]:
    """The released code has none for social graphs."""
    return (0.0,) if preset == "released" and dataset in SOCIAL else (0.0, 0.5)


def extra(dataset: str) -> dict[str, GraphCell]:
    """What the paper says without a table, and what may explain why a number of it is another."""
    found = grid("fspool-k20", dataset, (0.0, 0.5), knots=20)
    if dataset in BIO:
        found |= grid("fspool-bn", dataset, (0.0, 0.5), norm_first=True)
    if dataset in BEYOND:
        for model in ("fspool", BASES[dataset]):
            found |= grid(f"{model}-eps", dataset, (0.0, 0.5), readout=model, wide_eps=True)
    return found


EXPERIMENT = Experiment(
    name="graphs",
    title=TITLE,
    cell=GraphCell,
    cells=cells,
    seeds={"quick": 10, "paper": RUNS, "released": RUNS},
    settable=("epochs", "learning_rate", "knots", "dtype"),
    tables=TABLES,
    usual={"quick": ("MUTAG", "PTC")},
    gather=by_repeat,
    combine=chosen,
    deviations=GRAPH_DEVIATIONS,
    others=(PYG, read_by),
)
