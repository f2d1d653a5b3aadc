"""Where the paper and its released code differ: the switches, and what they were seen to do."""

from __future__ import annotations

from ..experiments.experiment import Deviation, Entry, Experiment
from .grids import Place
from .records import Collection
from .renderings import markdown_text
from .tables import fill_all

TITLE = "Where paper and released code differ"
HEAD = ("", "paper", "released code", "here", "switch")

Places = dict[Entry, tuple[str, Place]]  # where each number is shown first: title and place


def deviations(experiment: Experiment, collection: Collection) -> str:
    """In Markdown; empty without runs of the preset "paper", which it is about."""
    presets = {plan.preset for plan in collection.plans if plan.experiment == experiment.name}
    if not experiment.deviations or "paper" not in presets:
        return ""
    rows = [HEAD, ("---",) * len(HEAD)]
    for own in experiment.deviations:
        texts = map(markdown_text, (own.what, own.paper, own.released, own.here))
        rows.append((*texts, _switch(own, experiment)))
    note = (
        "*Here* is what the preset `paper` does. A switch is a setting of "
        f"`{experiment.cell.__name__}`; after it comes what sets it."
    )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    places = _places(experiment, collection)
    seen = [text for own in experiment.deviations if (text := _seen(own, places))]
    head = "Measured, here → the other way, in the unit of the table that is named:"
    return "\n\n".join([note, table, *([head, "\n".join(seen)] if seen else [])])


def _places(experiment: Experiment, collection: Collection) -> Places:
    grids = {grid.title: grid for grid in fill_all(experiment, collection)}
    found: Places = {}
    for table in experiment.tables:
        grid = grids.get(table.title)
        for row in grid.rows if grid else []:
            shown = dict(zip(grid.columns, row.places, strict=True))
            for column, entry in zip(table.columns, table.rows.get(row.label, ()), strict=False):
                if column in shown and shown[column].runs:
                    found.setdefault(entry, (grid.title, shown[column]))
    return found


def _switch(own: Deviation, experiment: Experiment) -> str:
    if not own.switch:
        return "none"
    if not hasattr(experiment.cell, own.switch):
        return f"`{own.switch}`, a metric of every run"
    words = {"released": "preset `released`", "--set": f"`--set {own.switch}=…`"}
    ways = [words.get(way, f"cells `{way}`") for way in own.by]
    return ": ".join(filter(None, (f"`{own.switch}`", ", ".join(ways))))


def _seen(own: Deviation, places: Places) -> str:
    """An item of a list: numbers, and the table where they are from."""
    texts, title = [], ""
    for label, entries in own.seen.items():
        if all(entry in places for entry in entries):
            shown = [places[entry][1] for entry in entries]
            text = " → ".join(" ± ".join(filter(None, (p.value, p.spread))) for p in shown)
            paper = f", in the paper {shown[0].published}" if len(shown) == 1 else ""
            texts.append(f"{label}: {text}{paper}")
            title = places[entries[-1]][0]
    what, numbers, title = map(markdown_text, (own.what, "; ".join(texts), title))
    return f"- **{what}**, {numbers} (*{title}*)" if texts else ""
