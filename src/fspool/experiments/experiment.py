"""What an experiment is made of: cells to train, and the tables that their results fill."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ..checks import nearest
from ..lab.cell import Cell

PRESETS = {
    "quick": "the same thing in a minute or two on two CPU cores",
    "paper": "the settings of the paper's text",
    "released": "the settings of the authors' released code",
}


class Entry(NamedTuple):
    """Where the number of a table's cell is found."""

    cell: str
    metric: str


@dataclass(frozen=True)
class Table:
    """A table of results: every entry is one metric of one cell.

    ``published`` names a table of ``paper.toml`` with the same rows and columns, ``known`` has rows
    whose values are a matter of mathematics.
    """

    title: str
    note: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[Entry, ...]]
    head: str = ""  # over the labels of the rows
    published: str = ""
    known: dict[str, tuple[float, ...]] = field(default_factory=dict)
    scale: float = 1.0  # measured values times this are what is printed
    digits: int = 3


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper."""

    name: str
    title: str
    cell: type[Cell]
    cells: Callable[[str], dict[str, Cell]]  # of a preset, by name
    seeds: dict[str, int]  # runs of every cell, by preset
    settable: tuple[str, ...]  # settings that a user may change; the others make a cell what it is
    tables: tuple[Table, ...] = ()
    shown: tuple[str, ...] = ()  # cells whose figures are kept with the results
    derive: Callable[[list[dict]], dict[str, list]] = lambda curve: {}  # metrics from a loss curve

    def preset(self, name: str) -> dict[str, Cell]:
        return self.cells(nearest("preset", name, self.seeds))


@cache
def published(name: str) -> dict[str, dict[str, str]]:
    """A table of the paper by row and column, as printed, so that the last digit is known."""
    text = (files(__package__) / "paper.toml").read_text()
    table = tomllib.loads(text)
    for part in name.split("."):
        table = table[part]
    return {
        label: dict(zip(table["columns"], values, strict=True))
        for label, values in table["rows"].items()
    }
