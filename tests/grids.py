"""What a report shows, for tests to look into: the terminal's text, tables by their titles."""

from __future__ import annotations

import io

from rich.console import Console

from fspool import report
from fspool.report.grids import Grid
from fspool.report.tables import fill_all


def terminal(collection, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    report.render_terminal(collection, console)
    return console.file.getvalue()


def grids_of(experiment, collection) -> dict[str, Grid]:
    return {grid.title: grid for grid in fill_all(experiment, collection)}


def row_of(grid: Grid, label: str):
    return next(row for row in grid.rows if row.label == label)
