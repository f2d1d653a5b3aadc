"""Tables filled from records: plain text in every place, which all renderings share."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from ..experiments.experiment import Entry, Experiment, Table, published
from .records import Collection, Record
from .verdicts import Sample, against_closed_form, against_published

NONE = "–"


@dataclass(frozen=True)
class Place:
    """One place of a table, as it is printed."""

    value: str = NONE  # mean over runs
    spread: str = ""  # standard deviation over runs
    worst: str = ""
    runs: int = 0
    reached: str = ""  # "7/10" where some runs diverged or did not arrive
    published: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Row:
    label: str
    places: list[Place]
    measured: bool = True  # False for a closed form
    reached: str = ""  # what the fractions count


@dataclass(frozen=True, eq=False)
class Grid:
    """A filled table."""

    title: str
    note: str
    head: str
    columns: list[str]
    rows: list[Row]
    published: bool = False  # does the paper have this table?
    lead: str = ""  # the row that the table is about

    def verdicts(self, label: str = "") -> Counter:
        """How often the paper's numbers were met, missed or beaten, by one model or by all."""
        rows = [row for row in self.rows if row.measured and label in ("", row.label)]
        return Counter(place.verdict for row in rows for place in row.places if place.verdict)


def fill_all(experiment: Experiment, collection: Collection) -> list[Grid]:
    """All tables of an experiment; after the paper's ones that of their worst runs."""
    grids = _fill(experiment, collection)
    count = sum(grid.published for grid in grids)
    worst = worst_seeds(grids)
    return [*grids[:count], *([worst] if worst else []), *grids[count:]]


def _fill(experiment: Experiment, collection: Collection) -> list[Grid]:
    """Only the tables that say something which no table before them said."""
    shown: set[Entry] = set()
    grids = []
    for table in experiment.tables:
        filler = _Filler(table, collection.of(experiment.name), collection.planned(experiment.name))
        if not filler.entries <= shown:
            grids.append(filler.grid())
        shown |= filler.entries
    return sorted(grids, key=lambda grid: not grid.published)


def worst_seeds(grids: list[Grid]) -> Grid | None:
    """The worst run of the model that each table of the paper is about."""
    of_paper = [grid for grid in grids if grid.published]
    lead = {grid: row for grid in of_paper for row in grid.rows if row.label == grid.lead}
    if not lead:
        return None
    columns = list(dict.fromkeys(name for grid in lead for name in grid.columns))
    rows = []
    for grid, row in lead.items():
        worst = {name: p.worst for name, p in zip(grid.columns, row.places, strict=True)}
        rows.append(Row(grid.title, [Place(worst.get(name) or NONE) for name in columns]))
    first, places = next(iter(lead)), [place for row in lead.values() for place in row.places]
    runs = max(place.runs for place in places)
    note = f"The largest value among {runs} runs. {first.note}"
    return Grid(f"The worst run of {first.lead}", note, first.head, columns, rows)


def digits_for(value: float, digits: int) -> int:
    """As many as the table has; up to five, so that a small number keeps two significant."""
    if not digits or not value or not math.isfinite(value):
        return digits
    return max(digits, min(5, 1 - math.floor(math.log10(abs(value)))))


def show(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return "∞"
    text = f"{value:.{digits}f}"
    return f"<{10.0**-digits:.{digits}f}" if value > 0 and float(text) == 0 else text


@dataclass
class _Filler:
    """Fills one table."""

    table: Table
    records: dict[str, Record]
    planned: set[str]
    columns: list[int] = field(init=False)  # those with data
    entries: set[Entry] = field(init=False)  # that there are data for

    def __post_init__(self) -> None:
        rows = self.table.rows.values()
        self.entries = {entry for row in rows for entry in row if self.sample(entry)}
        count = range(len(self.table.columns))
        self.columns = [i for i in count if any(row[i] in self.entries for row in rows)]

    def sample(self, entry: Entry) -> Sample | None:
        record = self.records.get(entry.cell)
        if record is None or not record.metrics.get(entry.metric):
            return None
        scale = self.table.scale
        values = record.metrics[entry.metric]
        return Sample(tuple(None if value is None else value * scale for value in values))

    def grid(self) -> Grid:
        table = self.table
        rows = []
        for label, entries in table.rows.items():
            if any(entry in self.entries or entry.cell in self.planned for entry in entries):
                rows.append(self.row(label, entries))
        rows += [self.known(label, values) for label, values in table.known.items()]
        names = [table.columns[i] for i in self.columns]
        lead = next(iter(table.rows))
        return Grid(table.title, table.note, table.head, names, rows, bool(table.published), lead)

    def row(self, label: str, entries: tuple[Entry, ...]) -> Row:
        paper = published(self.table.published).get(label, {}) if self.table.published else {}
        columns = self.table.columns
        places = [self.place(entries[i], paper.get(columns[i], "")) for i in self.columns]
        word = "reached" if entries[0].metric.startswith("steps") else "finite"
        return Row(label, places, reached=word)

    def place(self, entry: Entry, printed: str) -> Place:
        sample = self.sample(entry)
        if sample is None:
            return Place(published=printed)
        runs, good = len(sample.values), sample.good
        reached = "" if sample.complete else f"{len(good)}/{runs}"
        if not good:  # all have diverged
            verdict = against_published(sample, printed, trained=True) if printed else ""
            return Place(runs=runs, reached=reached, published=printed, verdict=verdict)
        digits = digits_for(sample.mean, self.table.digits)
        trained = self.records[entry.cell].settings.get("steps") != 0
        return Place(
            show(sample.mean, digits),
            show(sample.spread, digits) if len(good) > 1 else "",
            show(sample.worst, digits_for(sample.worst, self.table.digits)),
            runs,
            reached,
            printed,
            against_published(sample, printed, trained=trained) if printed else "",
        )

    def known(self, label: str, values: tuple[float, ...]) -> Row:
        """A closed form, with a verdict on the row that it is the closed form of."""
        measured = self.table.rows.get(label.partition(",")[0])
        places = []
        for i in self.columns:
            digits = digits_for(values[i], self.table.digits)
            sample = self.sample(measured[i]) if measured else None
            verdict = against_closed_form(sample, values[i], digits) if sample else ""
            places.append(Place(show(values[i], digits), verdict=verdict))
        return Row(label, places, measured=False)
