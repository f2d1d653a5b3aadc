"""Tables filled from records, beside what the paper prints."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import storage
from ..experiments.experiment import Entry, Experiment, Published, Table, number_of, published
from ..lab.cell import Cell
from . import welch
from .grids import NONE, Grid, Place, Row, digits_for, show
from .records import Collection, Record
from .verdicts import Sample, against_closed_form, against_published
from .worst import worst_seeds

COUNTS = ("steps", "epochs to", "hours to")  # where some runs may not arrive


def fill_all(experiment: Experiment, collection: Collection) -> list[Grid]:
    """All tables of an experiment; after the paper's ones that of their worst runs."""
    grids = _fill(experiment, collection)
    count = sum(grid.published for grid in grids)
    return [*grids[:count], *worst_seeds(grids), *grids[count:]]


def _fill(experiment: Experiment, collection: Collection) -> list[Grid]:
    """Only the tables that say something which no table before them said."""
    shown: set[Entry] = set()
    grids = []
    records, planned = collection.combined(experiment), collection.planned(experiment.name)
    known = {name: experiment.cells(name) for name in experiment.judged}
    for table in experiment.tables:
        free = {"steps"} if table.early else set()
        presets = [known[table.preset]] if table.preset else list(known.values())
        changed = {name for name, r in records.items() if _is_changed(experiment, presets, r, free)}
        # What comes from several cells is as good as the worst of them.
        changed |= {name for name, r in records.items() if not changed.isdisjoint(r.cells)}
        filler = _Filler(table, records, planned, changed)
        if not filler.entries <= shown:
            grids.append(filler.grid())
        shown |= filler.entries
    return sorted(grids, key=lambda grid: not grid.published)


def _is_changed(
    experiment: Experiment, presets: list[dict[str, Cell]], record: Record, free: set[str]
) -> bool:
    """Are settings, but for those that are free, not as in the presets that follow the paper?"""
    if 0 in record.metrics.get("whole", []):  # a choice from only a part of what is searched
        return True
    free = free | {*experiment.by_data}
    own = {name: value for name, value in record.settings.items() if name not in free}
    if not own:
        return False
    known = [cells.get(record.name) for cells in presets]
    asked = [storage.plain(cell.settings()) for cell in known if cell is not None]
    alike = any(own.items() <= settings.items() for settings in asked)
    return not (alike and experiment.enough(record.settings))


@dataclass
class _Filler:
    """Fills one table."""

    table: Table
    records: dict[str, Record]
    planned: set[str]
    changed: set[str]  # cells that are shown beside the paper's numbers, and not judged by them
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
        values = tuple(None if value is None else value * scale for value in values)
        return Sample(values, self.table.higher_is_better)

    def is_trained(self, entry: Entry) -> bool:
        return self.records[entry.cell].settings.get("steps") != 0

    def grid(self) -> Grid:
        table = self.table
        rows = []
        for label, entries in table.rows.items():
            if any(entry in self.entries or entry.cell in self.planned for entry in entries):
                rows.append(self.row(label, entries))
        rows += [self.known(label, values) for label, values in table.known.items()]
        rows += [self.reference(label) for label in table.reference]
        rows += self.tests() if table.welch else []
        return Grid(
            table.title,
            table.note,
            table.head,
            [table.columns[i] for i in self.columns],
            rows,
            bool(table.published),
            lead=next(iter(table.rows)),
            higher_is_better=table.higher_is_better,
            worst=table.worst,
            judged=table.judged,
            source=number_of(table.published) if table.published else "",
        )

    def row(self, label: str, entries: tuple[Entry, ...]) -> Row:
        paper = published(self.table.published).get(label, {}) if self.table.published else {}
        columns = self.table.columns
        places = [self.place(entries[i], paper.get(columns[i])) for i in self.columns]
        counts = any(entry.metric.startswith(COUNTS) for entry in entries)
        word = "reached" if counts else "finite"
        return Row(label, places, reached=word)

    def place(self, entry: Entry, paper: Published | None) -> Place:
        sample, printed = self.sample(entry), paper.text if paper else ""
        if sample is None:
            return Place(published=printed)
        trained = self.is_trained(entry)
        judged = paper and self.table.judged and entry.cell not in self.changed
        verdict = against_published(sample, paper, trained=trained) if judged else ""
        runs, good = len(sample.values), sample.good
        reached = "" if sample.complete else f"{len(good)}/{runs}"
        if not good:  # all have diverged
            return Place(runs=runs, reached=reached, published=printed, verdict=verdict)
        digits = digits_for(sample.mean, self.table.digits)
        return Place(
            show(sample.mean, digits),
            show(sample.spread, digits) if len(good) > 1 else "",
            show(sample.worst, digits_for(sample.worst, self.table.digits)),
            runs,
            reached,
            printed,
            verdict,
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

    def reference(self, label: str) -> Row:
        """What the paper quotes of others."""
        paper = published(self.table.published)[label]
        names = [self.table.columns[i] for i in self.columns]
        places = [Place(paper[name].text if name in paper else NONE) for name in names]
        return Row(label, places, measured=False)

    def tests(self) -> list[Row]:
        """The first model against the best other one that was trained, in every column."""
        (lead, entries), *others = self.table.rows.items()
        places = []
        for i in self.columns:
            samples = {label: self.trained_sample(row[i]) for label, row in others}
            known = {label: sample for label, sample in samples.items() if sample}
            places.append(welch.compare(self.trained_sample(entries[i]), known))
        tested = any(place.value != NONE for place in places)
        return [Row(welch.label(lead), places, measured=False)] if tested else []

    def trained_sample(self, entry: Entry) -> Sample | None:
        sample = self.sample(entry)
        return sample if sample and self.is_trained(entry) else None
