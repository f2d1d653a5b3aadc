"""The worst run of the model that the paper's tables are about: a mean may hide one."""

from __future__ import annotations

from .grids import NONE, Grid, Place, Row


def worst_seeds(grids: list[Grid]) -> list[Grid]:
    """One table for all of the paper's tables that can stand together."""
    sorts: list[list[Grid]] = []
    for grid in grids:
        if grid.published and grid.worst and _lead(grid):
            alike = next((each for each in sorts if _alike(each[0], grid)), None)
            alike.append(grid) if alike else sorts.append([grid])
    return [_worst(each, alone=len(sorts) == 1) for each in sorts]


def _lead(grid: Grid) -> Row | None:
    """None where there are not several runs, of which one would be the worst."""
    rows = (row for row in grid.rows if row.label == grid.lead)
    return next((row for row in rows if any(place.runs > 1 for place in row.places)), None)


def _alike(one: Grid, other: Grid) -> bool:
    """The note holds for all rows: it says the unit, and which values are better."""
    same = all(getattr(one, name) == getattr(other, name) for name in ("lead", "head", "note"))
    shared = not set(one.columns).isdisjoint(other.columns)
    return same and shared and one.higher_is_better == other.higher_is_better


def _worst(grids: list[Grid], alone: bool) -> Grid:
    first, columns = grids[0], list(dict.fromkeys(name for grid in grids for name in grid.columns))
    rows, runs = [], set()
    for grid in grids:
        pairs = zip(grid.columns, _lead(grid).places, strict=True)
        places = {name: place for name, place in pairs if place.runs > 1}
        runs |= {place.runs for place in places.values()}
        worst = [places[name].worst if name in places else "" for name in columns]
        rows.append(Row(grid.title, [Place(text or NONE) for text in worst]))
    among = f"{min(runs)} to {max(runs)}" if len(runs) > 1 else max(runs)
    which = "smallest" if first.higher_is_better else "largest"
    note = f"The {which} value among {among} runs. {first.note}".strip()
    title = f"The worst run of {first.lead}"
    title = title if alone else f"{title}: {first.title}"
    return Grid(title, note, first.head, columns, rows)
