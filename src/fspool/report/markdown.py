"""RESULTS.md: how it was made, the tables, how many of the paper's numbers were met."""

from __future__ import annotations

from pathlib import Path

from .cost import cost
from .deviations import TITLE, deviations
from .records import Collection
from .renderings import markdown_table, markdown_text
from .saving import save
from .sentences import RULE, gaps, how_made, verdict_sentence
from .tables import fill_all


def write_markdown(collection: Collection, path: Path | str) -> None:
    save(path, markdown(collection))


def markdown(collection: Collection) -> str:
    parts = ["# Results", RULE]
    for experiment in collection.experiments:
        grids = fill_all(experiment, collection)
        records = list(collection.of(experiment.name).values())
        parts += [f"## {experiment.title}", how_made(records, collection, "`", markdown_text)]
        parts += filter(None, [verdict_sentence(grids)])
        for grid in filter(None, [*grids, cost(records)]):
            parts += [f"### {grid.title}", grid.told, markdown_table(grid)]
        if differ := deviations(experiment, collection):
            parts += [f"### {TITLE}", differ]
    if missing := gaps(collection):
        parts += ["## What is missing", "\n".join(f"- {markdown_text(text)}" for text in missing)]
    return "\n\n".join(parts) + "\n"
