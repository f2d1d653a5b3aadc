"""Run folders as the laboratory leaves them, with numbers that were made up."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch

from fspool import storage
from fspool.data.polygons import polygons
from fspool.experiments.polygons import Polygons
from fspool.lab.runs import folder_name

ANGLES = 720
LISTS = {
    "mlp-chamfer": {"decoder": "list", "objective": "chamfer"},
    "mlp-assignment": {"decoder": "list", "objective": "assignment"},
}
PROVENANCE = {
    "device": "A machine",
    "threads": 2,
    "versions": {"fspool": "0.1.0", "torch": "2.13.0"},
    "commit": "0123456789ab",
    "date": "2026-01-02",
    "seconds": {"training": 12.345678, "evaluation": 1.5},
    "steps": [0, 128],
}


def cell_of(name: str, **settings) -> Polygons:
    """The cell that a name such as ``mlp-chamfer-n4`` stands for."""
    model, _, n = name.rpartition("-n")
    base = Polygons(points=int(n) if n.isdigit() else 4, **settings)
    if model == "random":
        return replace(base, decoder="random", steps=0)
    return replace(base, **LISTS.get(model, {}))


def write_run(
    out: Path,
    name: str,
    seeds: list[int],
    metrics: dict[str, list],
    *,
    curve: list[dict] | None = None,
    finished: bool = True,
    provenance: dict = PROVENANCE,
    experiment: str = "polygons",
    **settings,
) -> Path:
    """One run folder. The curve falls tenfold a record where none is given."""
    cell = cell_of(name, **settings)
    folder = out / name / folder_name(seeds)
    folder.mkdir(parents=True)
    config = {"experiment": experiment, "cell": cell.settings(), "seeds": seeds}
    storage.write_json(folder / "config.json", config)
    if curve is None:
        curve = [{"step": 64 * (i + 1), "loss": [10.0**-i] * len(seeds)} for i in range(4)]
    if not finished:
        (folder / "metrics.jsonl").write_text('{"step": 64, "loss": [1.0]}\n{"step": 1')
        return folder
    if cell.steps == 0:
        curve = []
    storage.write_tensors(folder / "arrays.safetensors", _arrays(cell))
    storage.write_tensors(folder / "model.safetensors", _weights(cell, len(seeds)))
    storage.write_json(folder / "provenance.json", provenance)
    storage.write_json(folder / "result.json", {"metrics": metrics, "curve": curve})
    return folder


def write_plan(out: Path, cells: list[str], seeds: int, preset: str = "quick") -> None:
    plan = {"experiment": "polygons", "preset": preset, "seeds": seeds, "cells": cells}
    storage.write_json(out / "plan.json", plan)


def flat(value: float | None, seeds: int = 3, spread: float = 0.0) -> dict[str, list]:
    """Every metric the same."""
    values = [value + spread * (i - (seeds - 1) / 2) for i in range(seeds)]
    names = ("mse", "chamfer", "assignment", "variance", "speed", "worst")
    return {name: values for name in names}


def write_all(out: Path, sizes: tuple[int, ...] = (2, 4, 16), seeds: int = 3) -> Path:
    """The four models of the tables, their losses differing by powers of ten."""
    for n in sizes:
        for power, model in enumerate(("fspool", "mlp-chamfer", "mlp-assignment", "random")):
            metrics = flat(10.0 ** (power - 5) / n, seeds, spread=10.0 ** (power - 7))
            write_run(out, f"{model}-n{n}", list(range(seeds)), metrics)
    return out


def _arrays(cell: Polygons) -> dict[str, torch.Tensor]:
    """FSPool follows perfectly. A list follows for 1 / n of a turn and then starts again."""
    n = cell.points
    angle = torch.arange(ANGLES, dtype=torch.float64) * (2 * math.pi / ANGLES)
    followed = angle if cell.decoder == "set" else angle % (2 * math.pi / n)
    examples = polygons(torch.arange(6, dtype=torch.float64), n).float()
    arrays = {"input": examples, "output": examples * 0.9}
    if n <= 16 and cell.decoder != "random":
        arrays["sweep"] = polygons(followed, n).float()
    return arrays


def _weights(cell: Polygons, runs: int) -> dict[str, torch.Tensor]:
    if cell.decoder != "set":
        return {}
    knots = torch.linspace(-1, 1, cell.knots).expand(runs, cell.hidden, -1)
    return {"encoder.pool.weight": knots, "decoder.unpool.weight": -knots}
