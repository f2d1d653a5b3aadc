"""What it cost: seconds of training and evaluation, a line for each family of cells."""

from __future__ import annotations

from itertools import takewhile

from ..lab.seconds import device_of, may_have_moved, seconds_of
from .grids import NONE, Grid, Place, Row, show
from .records import Record

TITLE = "What it cost"
ADDED = "Seconds of wall clock, added up over groups of runs, also where they ran at once."
SHARED = (
    "Seconds of wall clock. Groups of runs that were worked on at once, on one device, share the "
    "time out among them, so that the sum is the time that passed."
)
MOVED = (
    "Seconds of wall clock. Groups of runs that were worked on at once, on one device, share the "
    "time out among them. Runs that went on after a stop count as if the last device had done all "
    "of it, so that the sum is at least the time that passed."
)
FAMILIES = 8  # more than these are told apart by their first word only
COLUMNS = ["cells", "runs", "seconds", "seconds a run", "device"]

Part = tuple[str, dict]  # the name of a cell, and the provenance of one group of its runs


def cost(records: list[Record]) -> Grid | None:
    """By the first words of the names of cells, and by device; None where no times are known."""
    families = families_of([record.name for record in records])
    parts = [(record.name, origin) for record in records for origin in record.origins]
    origins = [origin for _, origin in parts]
    seconds = seconds_of(origins)
    if not any(seconds):
        return None
    sorts: dict[tuple[str, str], list[int]] = {}
    for index, (name, origin) in enumerate(parts):
        sorts.setdefault((families[name], device_of(origin)), []).append(index)
    rows = [
        Row(family, _places([parts[i] for i in some], [seconds[i] for i in some], device))
        for (family, device), some in sorts.items()
    ]
    if len(rows) > 1:
        devices = ", ".join(dict.fromkeys(device for _, device in sorts))
        rows.append(Row("all", _places(parts, seconds, devices), measured=False))
    timed = all("clock" in origin for origin in origins)
    note = ADDED if not timed else MOVED if may_have_moved(origins) else SHARED
    return Grid(TITLE, note, "cells named", COLUMNS, rows)


def families_of(names: list[str]) -> dict[str, str]:
    """``mlp-chamfer-sum-h16-n16`` belongs to ``mlp-chamfer`` where there is ``mlp-chamfer-n2``."""
    stems = {name: _stem(name) for name in names}
    short = sorted(set(stems.values()), key=len)
    families = {
        name: next(each for each in short if f"{stem}-".startswith(f"{each}-"))
        for name, stem in stems.items()
    }
    if len(set(families.values())) <= FAMILIES:
        return families
    return {name: name.partition("-")[0] for name in names}


def _stem(name: str) -> str:
    """The words before the first with a number, which is a setting."""
    first, *rest = name.split("-")
    return "-".join([first, *takewhile(lambda word: not any(map(str.isdigit, word)), rest)])


def _places(parts: list[Part], seconds: list[float | None], device: str) -> list[Place]:
    cells = len({name for name, _ in parts})
    runs = sum(origin.get("runs", 0) for _, origin in parts)
    known = [time for time in seconds if time is not None]
    total = sum(known)
    times = (show(total, 0), show(total / runs, 2)) if known and runs else (NONE, NONE)
    return [Place(text) for text in (str(cells), str(runs), *times, device)]
