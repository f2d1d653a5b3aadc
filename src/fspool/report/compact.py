"""All results in one small JSON file, to be committed: the same tables come out of it."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .. import storage
from ..experiments import EXPERIMENTS
from . import forms
from .records import Collection, Plan, Point, Record, shorten, split_origin
from .saving import save

FORMAT = "fspool results 1"
PARTS = ("plans", "unfinished", "damaged", "machines", "cells")
PLAN = tuple(field.name for field in fields(Plan))
POINTS = 64  # of a loss curve, at most
CURVE_DIGITS = 3
LARGEST = 1 << 28  # bytes of counts
ROWS, DECIMALS = 360, 3  # of the arrays that a figure needs


def compact(collection: Collection, path: Path | str) -> None:
    """Write settings, seeds, metrics, a thinned loss curve and provenance of every cell."""
    machines: list[dict] = []  # the same for many cells, so written once
    cells = [_cell(record, machines) for record in collection]
    data = {
        "format": FORMAT,
        "plans": [asdict(plan) for plan in collection.plans],
        "unfinished": collection.unfinished,
        "damaged": collection.lost,  # the arrays have been read by now
        "machines": machines,
        "cells": cells,
    }
    data = json.loads(json.dumps(data))  # as it will be read, for the checksum
    text = json.dumps({**data, storage.KEY: storage.digest(data)}, indent=1)
    save(path, _one_line_lists(text) + "\n")


def read_compact(data: dict) -> Collection:
    """What :func:`compact` wrote; ValueError for anything else."""
    _check(data)
    return Collection(
        [_record(cell, data["machines"]) for cell in data["cells"]],
        [Plan(**{name: plan[name] for name in PLAN if name in plan}) for plan in data["plans"]],
        data["unfinished"],
        data["damaged"],
    )


def _check(data: dict) -> None:
    if not forms.results(data):
        names = [name for name in PARTS if name not in data] or ["the right form"]
        raise ValueError(" and ".join(names))
    for cell in data["cells"]:
        if any(
            group.get("machine", -1) not in range(len(data["machines"])) for group in cell["groups"]
        ):
            raise ValueError(f"a machine for {cell['name']}")
        if len({len(cell["curve"][name]) for name in Point._fields}) > 1:
            raise ValueError(f"a whole curve of {cell['name']}")
        if any(len(values) != len(cell["seeds"]) for values in cell["metrics"].values()):
            raise ValueError(f"one number for each of the seeds of {cell['name']}")
        if any(len(a["values"]) != math.prod(a["shape"]) for a in cell["arrays"].values()):
            raise ValueError(f"arrays of {cell['name']} in their shapes")


def _cell(record: Record, machines: list[dict]) -> dict:
    curve = [_round(point) for point in _thinned(record.curve)]
    tallies = {name: _packed(counts) for name, counts in record.tallies.items()}
    return {
        "experiment": record.experiment,
        "name": record.name,
        "settings": record.settings,
        "seeds": record.seeds,
        "metrics": record.metrics,
        "curve": {name: [getattr(p, name) for p in curve] for name in Point._fields},
        "arrays": _arrays(record),
        "groups": [_group(origin, machines) for origin in record.origins],
    } | ({"tallies": tallies} if tallies else {})


def _record(cell: dict, machines: list[dict]) -> Record:
    columns = [cell["curve"][name] for name in Point._fields]
    return Record(
        cell["experiment"],
        cell["name"],
        cell["settings"],
        cell["seeds"],
        cell["metrics"],
        [Point(*values) for values in zip(*columns, strict=True)],
        [machines[group["machine"]] | split_origin(group)[1] for group in cell["groups"]],
        kept=cell["arrays"],
        tallies={name: _unpacked(counts) for name, counts in cell.get("tallies", {}).items()},
    )


def _arrays(record: Record) -> dict[str, dict]:
    """Of the cells that are worth it, thinned to so many rows, evenly: a turn stays a turn."""
    experiment = EXPERIMENTS.get(record.experiment)
    if experiment is None or record.name not in experiment.shown:
        return {}
    kept = {}
    for name, rows in record.arrays.items():
        rows = rows[:: max(1, len(rows) // ROWS)].double().round(decimals=DECIMALS)
        kept[name] = {"shape": list(rows.shape), "values": rows.flatten().tolist()}
    return kept


def _packed(counts: Tensor) -> dict:
    """Thousands of small integers, as differences to the one before, which are smaller still."""
    steps = np.diff(counts.numpy(), axis=-1, prepend=0).astype("<i4")
    packed = zlib.compress(steps.tobytes(), 9)
    return {"shape": list(counts.shape), "zlib": base64.b64encode(packed).decode()}


def _unpacked(packed: dict) -> Tensor:
    size = 4 * math.prod(packed["shape"])
    if size > LARGEST:
        raise ValueError(f"counts of at most {LARGEST} bytes")
    try:  # no more than there should be, whatever would come out
        content = zlib.decompressobj().decompress(base64.b64decode(packed["zlib"]), size + 1)
    except zlib.error as error:
        raise ValueError(f"counts that can be unpacked: {error}") from None
    if len(content) != size:
        raise ValueError("counts in their shapes")
    steps = np.frombuffer(content, "<i4").reshape(packed["shape"])
    return torch.from_numpy(steps.cumsum(-1, dtype=np.int32))


def _group(origin: dict, machines: list[dict]) -> dict:
    machine, own = split_origin(origin)
    if machine not in machines:
        machines.append(machine)
    return {"machine": machines.index(machine)} | own


def _thinned(curve: list[Point]) -> list[Point]:
    """Evenly, first and last point included."""
    last = len(curve) - 1
    if last < POINTS:
        return curve
    return [curve[round(i * last / (POINTS - 1))] for i in range(POINTS)]


def _round(point: Point) -> Point:
    return Point(point.step, *(shorten(float(value), CURVE_DIGITS) for value in point[1:]))


def _one_line_lists(text: str) -> str:
    """Lists of numbers on one line each: readable, and a changed number is a changed line.

    No string is touched: there is no bare line break in one.
    """
    pattern = r"\[\n\s*([\s\d.,e+\-nul]*?)\s*\]"
    return re.sub(pattern, lambda match: f"[{' '.join(match[1].split())}]", text)
