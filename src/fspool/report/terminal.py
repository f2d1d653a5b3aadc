"""The tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from .records import Collection
from .renderings import fitting, rich_table
from .sentences import gaps, verdict_sentence
from .tables import fill_all


def render_terminal(collection: Collection, console: Console) -> None:
    for experiment in collection.experiments:
        grids = fill_all(experiment, collection)
        console.print(Text(experiment.title, "bold underline"), soft_wrap=True)
        if not grids:  # a table of graphs wants all folds of a repeat
            console.print("The finished runs fill no table yet; run more seeds or cells.")
        for grid in grids:
            for piece in fitting(grid, console.width):
                console.print()
                console.print(rich_table(piece))
        if sentence := verdict_sentence(grids):
            console.print()
            console.print(Text(sentence))
    for text in gaps(collection):
        console.print(Text(text, "yellow"), soft_wrap=True)
