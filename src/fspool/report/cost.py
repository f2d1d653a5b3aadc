"""What it cost: seconds of training and evaluation, a line for each family of cells."""

from __future__ import annotations

from itertools import takewhile

from .grids import NONE, Grid, Place, Row, show
from .records import Record

TITLE = "What it cost"
NOTE = (
    "Seconds of wall clock, added up over groups of runs; the runs of a group are trained at once."
)
FAMILIES = 8  # more than these are told apart by their first word only
COLUMNS = ["cells", "runs", "training, s", "evaluation, s", "device"]

Part = tuple[str, dict]  # the name of a cell, and the provenance of one group of its runs


def cost(records: list[Record]) -> Grid | None:
    """By the first words of the names of cells, and by device; None where no times are known."""
    families = families_of([record.name for record in records])
    parts = [(record.name, origin) for record in records for origin in record.origins]
    if not any(origin.get("seconds") for _, origin in parts):
        return None
    sorts: dict[tuple[str, str], list[Part]] = {}
    for name, origin in parts:
        sorts.setdefault((families[name], _device(origin)), []).append((name, origin))
    rows = [Row(family, _places(some, device)) for (family, device), some in sorts.items()]
    if len(rows) > 1:
        devices = ", ".join(dict.fromkeys(device for _, device in sorts))
        rows.append(Row("all", _places(parts, devices), measured=False))
    return Grid(TITLE, " ".join([NOTE, *_resumed(parts)]), "cells named", COLUMNS, rows)


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


def _device(origin: dict) -> str:
    return str(origin.get("device") or NONE)


def _places(parts: list[Part], device: str) -> list[Place]:
    cells = len({name for name, _ in parts})
    runs = sum(origin.get("runs", 0) for _, origin in parts)
    times = [_seconds(parts, key) for key in ("training", "evaluation")]
    return [Place(text) for text in (str(cells), str(runs), *times, device)]


def _seconds(parts: list[Part], key: str) -> str:
    times = [origin.get("seconds", {}).get(key) for _, origin in parts]
    times = [time for time in times if time is not None]
    return show(sum(times), 0) if times else NONE


def _resumed(parts: list[Part]) -> list[str]:
    count = sum(bool(origin.get("steps", [0])[0]) for _, origin in parts)
    if not count:
        return []
    return [f"{count} of them went on after a stop: only the time since then is known."]
