"""What an experiment is made of: cells to train, and the tables that their results fill."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from torch import Tensor

from ..checks import UserError, nearest
from ..lab.cell import Cell

NOTHING = "-"  # in a published table
PRESETS = {
    "quick": "a small part, in a few minutes on two CPU cores",
    "paper": "the settings of the paper's text",
    "released": "the settings of the authors' released code",
}


class Entry(NamedTuple):
    """Where the number of a table's cell is found."""

    cell: str
    metric: str


class Combined(NamedTuple):
    """Metrics that come from several cells, and from which."""

    metrics: dict[str, list]
    cells: list[str]


@dataclass(frozen=True)
class Table:
    """A table of results: every entry is one metric of one cell.

    ``published`` names a table of ``paper.toml`` with the same rows and columns, ``known`` has rows
    whose values are a matter of mathematics. The first row is the model that the table is about;
    ``welch`` asks for a test of it against the best other one. ``reference`` are rows of the
    published table that are shown as they are printed there.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[Entry, ...]]
    head: str = ""  # over the labels of the rows
    published: str = ""
    reference: tuple[str, ...] = ()
    known: dict[str, tuple[float, ...]] = field(default_factory=dict)
    scale: float = 1.0  # measured values times this are what is printed
    digits: int = 3
    higher_is_better: bool = False  # as of an accuracy
    welch: bool = False
    judged: bool = True  # against the published numbers
    preset: str = ""  # that those are of, where they are not of all presets that are judged
    early: bool = False  # read on the way, so that it does not matter how long a run goes on
    worst: bool = True  # is the worst run of interest?


@dataclass(frozen=True)
class Deviation:
    """What the paper and its released code do not say alike, and the setting that decides it."""

    what: str
    paper: str
    released: str
    here: str  # what the preset "paper" does
    switch: str = ""  # a setting of the cell, or a metric; none where there is nothing to choose
    by: tuple[str, ...] = ()  # what sets it: "released", "--set", cells of the preset "paper"
    # Its measured effect, by what it is measured on: the number as it is here, and the other one;
    # where there is one only, it stands beside the published number.
    seen: dict[str, tuple[Entry, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper."""

    name: str
    title: str
    cell: type[Cell]
    cells: Callable[[str], dict[str, Cell]]  # of a preset, by name
    seeds: dict[str, int]  # runs of every cell, by preset
    settable: tuple[str, ...]  # settings that a user may change; the others make a cell what it is
    judged: tuple[str, ...] = ("paper", "released")  # presets that the published numbers are of
    by_data: tuple[str, ...] = ()  # settings that say what the data has
    enough: Callable[[dict], bool] = lambda settings: True  # data, to be judged as the paper's
    tables: tuple[Table, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    shown: tuple[str, ...] = ()  # cells whose figures are kept with the results
    derive: Callable[[list[dict]], dict[str, list]] = lambda curve: {}  # metrics from a loss curve
    # What a report keeps of the tallies (runs, counts) of a cell with such settings and seeds.
    gather: Callable[[dict, Sequence[int], dict[str, Tensor]], dict[str, Tensor]] | None = None
    # From the records of cells, by a name that tables know.
    combine: Callable[[Iterable], dict[str, Combined]] = lambda records: {}
    also: dict[str, str] = field(default_factory=dict)  # what to know of a preset
    usual: dict[str, tuple[str, ...]] = field(default_factory=dict)  # data sets, by preset
    # Readouts that are in no preset, and the cells that they make of one.
    others: tuple[tuple[str, ...], Callable[[str, str], dict[str, Cell]]] | None = None

    def what(self, preset: str) -> str:
        """What a preset is, in words."""
        return PRESETS[preset] + self.also.get(preset, "")

    def preset(
        self, name: str, datasets: Sequence[str] = (), readouts: Sequence[str] = ()
    ) -> dict[str, Cell]:
        """Its cells, on these data sets; where none are named, on the usual ones or on all. With
        these readouts; where none are named, with those of the preset."""
        cells = self.cells(nearest("preset", name, self.seeds))
        if readouts:
            cells = self._read_by(name, cells, readouts)
        known = list(dict.fromkeys(filter(None, map(_dataset, cells.values()))))
        if datasets and not known:
            raise UserError(
                f"{self.name} has no data sets to choose from, but {datasets[0]!r} was asked for; "
                "leave --dataset out."
            )
        for dataset in datasets:
            nearest("dataset", dataset, known)
        wanted = datasets or self.usual.get(name) or [*known, None]
        return {key: cell for key, cell in cells.items() if _dataset(cell) in wanted}

    def _read_by(self, preset: str, cells: dict[str, Cell], readouts) -> dict[str, Cell]:
        if self.others is None:
            raise UserError(
                f"{self.name} has no readouts to choose from, but {readouts[0]!r} was asked for; "
                "leave --readout out."
            )
        names, make = self.others
        usual = {cell.readout for cell in cells.values()}
        found: dict[str, Cell] = {}
        for readout in readouts:
            nearest("readout", readout, (*sorted(usual), *names))
            own = {key: cell for key, cell in cells.items() if cell.readout == readout}
            found |= own or make(preset, readout)
        return found

    def runs(self, preset: str, cell: str, seeds: int) -> int:
        """How many runs of a cell there are to be where so many seeds are asked for."""
        known = self.cells(preset).get(cell) if preset in self.seeds else None
        return min(seeds, known.most_runs or seeds) if known else seeds


def _dataset(cell: Cell) -> str | None:
    return getattr(cell, "dataset", None)


class Published(NamedTuple):
    """A number of the paper."""

    text: str  # as printed
    value: float
    spread: float | None  # standard deviation over runs, where one is printed
    unit: float  # one unit of the last printed digit
    share: float = 1.0  # of the runs, whose mean it is: the others did not arrive

    @classmethod
    def read(cls, text: str) -> Published:
        """``82.2 ± 2.1``, or a number alone; perhaps with ``(8 of 10)`` runs."""
        numbers, _, runs = text.partition("(")
        number, sign, spread = numbers.partition("±")
        value = float(number)
        unit = 10.0 ** Decimal(number.strip()).as_tuple().exponent
        good, _, count = runs.rstrip(")").partition(" of ")
        share = int(good) / int(count) if runs else 1.0
        return cls(text, value, float(spread) if sign else None, unit, share)


@cache
def published(name: str) -> dict[str, dict[str, Published]]:
    """A table of the paper by row and column; what it has no number for is left out."""
    table = _printed(name)
    return {
        label: {
            column: Published.read(text)
            for column, text in zip(table["columns"], texts, strict=True)
            if text != NOTHING
        }
        for label, texts in table["rows"].items()
    }


def number_of(name: str) -> str:
    """What the paper calls it, such as "Table 3"; what has no number is in its text."""
    number, colon, _ = _printed(name)["title"].partition(":")
    return number if colon and number.startswith("Table ") else ""


@cache
def _printed(name: str) -> dict:
    table = tomllib.loads((files(__package__) / "paper.toml").read_text(encoding="utf-8"))
    for part in name.split("."):
        table = table[part]
    return table
