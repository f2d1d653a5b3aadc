"""What the counts of right answers after every epoch say: how good, how soon, in what time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

from ..lab.seconds import seconds_of
from .clevr_tables import MILESTONES, MODELS, tests_of
from .experiment import Combined
from .welch import p_value

LAST = 11  # epochs, 340 to 350, that the published accuracies are the means of
ENOUGH = 5  # runs of both models from which on they are tested against one another

Metrics = dict[str, list[float | None]]


class Trained(Protocol):
    """The finished runs of a cell, as a report knows them."""

    name: str
    settings: dict
    seeds: list[int]
    origins: list[dict]
    tallies: dict[str, Tensor]


def by_epoch(records: Iterable[Trained]) -> dict[str, Combined]:
    """By cell, such as "fspool by epoch", and the tests of FSPool against each other model."""
    known = [record for record in records if "right" in record.tallies]
    curves = {record.name: curve_of(record) for record in known}
    times = _times(known)
    found = {
        f"{record.name} by epoch": Combined(
            _metrics(curves[record.name], times[record.name]), [record.name]
        )
        for record in known
    }
    return found | _tests({name: curve[:, -1].tolist() for name, curve in curves.items()})


def curve_of(record: Trained) -> Tensor:
    """Per cent that are right, (runs, epochs)."""
    return 100 * record.tallies["right"].double() / record.settings["tried"]


def first_epoch(curve: list[float], milestone: float) -> int | None:
    """From 1; the first that is as good, in two decimals. None where there is none."""
    reached = (i for i, value in enumerate(curve, 1) if round(value, 2) >= milestone)
    return next(reached, None)


def _metrics(curve: Tensor, hours: float | None) -> Metrics:
    rows = curve.tolist()
    found: Metrics = {
        "last": curve[:, -1].tolist(),
        "last epochs": curve[:, -LAST:].mean(-1).tolist(),
    }
    for milestone in MILESTONES:
        epochs = [first_epoch(row, float(milestone)) for row in rows]
        found[f"epochs to {milestone}"] = epochs
    if hours is not None:
        count = curve.shape[1]
        found["hours"] = [hours]  # shared out, so there is nothing that varies
        final = found[f"epochs to {MILESTONES[-1]}"]
        found[f"hours to {MILESTONES[-1]}"] = [e and hours * e / count for e in final]
    return found


def _times(records: list[Trained]) -> dict[str, float | None]:
    """Hours of a run: what all runs of a cell took of their device, shared out among them."""
    origins = [(record.name, origin) for record in records for origin in record.origins]
    seconds = seconds_of([origin for _, origin in origins])
    found: dict[str, float | None] = {}
    for record in records:
        own = [s for (name, _), s in zip(origins, seconds, strict=True) if name == record.name]
        good = [s for s in own if s is not None]
        found[record.name] = sum(good) / 3600 / len(record.seeds) if good else None
    return found


def _tests(last: dict[str, list[float]]) -> dict[str, Combined]:
    """Of FSPool's accuracy against that of each other model."""
    lead, found = last.get("fspool", []), {}
    for name in MODELS.values():
        other = last.get(name, [])
        if name != "fspool" and min(len(lead), len(other)) >= ENOUGH:
            p = p_value(lead, other)
            if not math.isnan(p):
                found[tests_of(name)] = Combined({"p": [p]}, ["fspool", name])
    return found
