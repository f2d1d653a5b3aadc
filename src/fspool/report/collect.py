"""Reading run folders and compact result files. Nothing is changed, nothing is made up."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .. import storage
from ..checks import UserError
from ..experiments import EXPERIMENTS
from ..lab.runs import bears, differing, mark_of
from . import forms
from .compact import FORMAT, read_compact
from .records import Collection, Plan, Point, Record, shorten


def collect(*paths: Path | str) -> Collection:
    """All finished runs of a folder of runs; or those in compact JSON, in a file or in folders.

    Several of them are put together: each cell is that of the first one that has it.
    """
    parts = [_collect(Path(path)) for path in paths]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Collection]) -> Collection:
    there, found = {record.name for part in parts for record in part}, Collection([])
    for part in parts:
        elsewhere = there - {record.name for record in part}
        found.records.extend(part.records)
        found.plans.extend(part.plans)
        found.damaged.extend(part.damaged)
        found.doubled.extend(part.doubled)
        found.unfinished.extend(t for t in part.unfinished if t.split("/")[0] not in elsewhere)
    return _checked(found)


def _collect(path: Path) -> Collection:
    if path.is_file():
        found = _read_compact_files([path])
    elif not path.is_dir():
        raise UserError(f"{str(path)!r} is not there; expected a folder of runs or a result file.")
    elif folders := [folder for folder in path.glob("*/seeds-*") if folder.is_dir()]:
        found = _read_folders(path, sorted(folders, key=_by_number))
    else:
        found = _read_compact_files(sorted([*path.glob("*.json"), *path.glob("*/*.json")]))
    if not found.records:
        raise UserError(_nothing(path, found))
    return found


def _by_number(path: Path) -> list[str | int]:
    """2 points before 16."""
    parts = re.split(r"(\d+)", f"{path.parent.name}/{path.name}")
    return [int(part) if part.isdecimal() else part for part in parts]


def _nothing(path: Path, found: Collection) -> str:
    text = f"{str(path)!r} has no finished runs"
    if found.unfinished:
        return f"{text}: {len(found.unfinished)} wait for the command that began them to go on."
    if found.damaged:
        return f"{text}: {found.damaged[0]}"
    inside = [each.parent.parent for each in path.glob("*/*/seeds-*")] if path.is_dir() else []
    return f"{text}; perhaps you mean {str(inside[0])!r}." if inside else f"{text}."


def _read_compact_files(paths: list[Path]) -> Collection:
    records, plans, unfinished, damaged = [], [], [], []
    for path in paths:
        try:
            data = storage.read_json(path)
            if data.get("format") != FORMAT:
                continue  # another JSON file, such as a plan
            part = read_compact(data)
        except (storage.Damaged, OSError) as error:
            damaged.append(f"{error}; it is left out.")
        except ValueError as error:
            damaged.append(f"{path} lacks what a result file has ({error}); it is left out.")
        else:
            records += part.records
            plans += part.plans
            unfinished += part.unfinished
            damaged += part.damaged
    return _checked(Collection(records, plans, unfinished, damaged))


def _checked(found: Collection) -> Collection:
    """Each cell once, and only of experiments that this version knows."""
    found.plans[:] = [plan for plan in found.plans if plan.experiment in EXPERIMENTS]
    kept: dict[tuple[str, str], Record] = {}
    for record in found:
        key = record.experiment, record.name
        if record.experiment not in EXPERIMENTS:
            found.damaged.append(_unknown(record.name, record.experiment))
        elif key in kept:
            found.doubled.append(f"{record.name} is there twice; the second one is left out.")
        else:
            kept[key] = record
    found.records[:] = kept.values()
    return found


def _unknown(name: str, experiment: object) -> str:
    return f"{name} belongs to the experiment {experiment!r}, unknown here; it is left out."


# --------------------------------------------------------------------------------------------------
# Run folders


@dataclass(frozen=True)
class _Group:
    """One finished run folder."""

    folder: Path
    config: dict
    metrics: dict[str, list]
    curve: list[dict]
    origin: dict
    tallies: dict[str, Tensor]  # (seeds, counts), where the experiment gathers them


def _read_folders(path: Path, folders: list[Path]) -> Collection:
    found = Collection([])
    groups: dict[tuple[str, str], list[_Group]] = {}
    for folder in folders:
        if group := _read_group(folder, found):
            key = group.config["experiment"], folder.parent.name
            groups.setdefault(key, []).append(group)
    for (experiment, name), members in groups.items():
        found.records.append(_merge(experiment, name, members, found))
    found.plans.extend(_read_plan(path, found))
    return found


def _read_plan(path: Path, found: Collection) -> list[Plan]:
    data = _read(path / "plan.json", found)
    if data is None:
        return []
    if not forms.plan(data) or data["experiment"] not in EXPERIMENTS:
        found.damaged.append(f"{path / 'plan.json'} is not a plan; what is missing is not known.")
        return []
    names = ("experiment", "preset", "seeds", "cells")
    return [Plan(*(data[name] for name in names), data.get("options", {}), data.get("runs", {}))]


def _read(path: Path, found: Collection) -> dict | None:
    """A JSON file, or None with a word on why."""
    try:
        return storage.read_json(path)
    except FileNotFoundError:
        return None
    except (storage.Damaged, OSError) as error:
        found.damaged.append(f"{error}; it is left out.")
        return None


def _read_group(folder: Path, found: Collection) -> _Group | None:
    config = _read(folder / "config.json", found)
    if config is None:
        if (folder / "result.json").exists() and not (folder / "config.json").exists():
            found.damaged.append(f"{folder} has lost its config.json; it is left out.")
        return None
    name, experiment = f"{folder.parent.name}/{folder.name}", config.get("experiment")
    if not forms.config(config):
        found.damaged.append(f"{folder / 'config.json'} is not a configuration; it is left out.")
        return None
    if experiment not in EXPERIMENTS:
        found.damaged.append(_unknown(name, experiment))
        return None
    if not (folder / "result.json").exists():
        found.unfinished.append(f"{name} is at step {_reached(folder)} of {_steps(config)}.")
        return None
    result = _read(folder / "result.json", found)
    if result is None:
        return None
    if text := _misfit(config, result):
        found.damaged.append(f"{folder / 'result.json'} {text}; it is left out.")
        return None
    curve = result["curve"]
    derived = EXPERIMENTS[experiment].derive(curve) if curve else {}  # before it is thinned
    origin = _read(folder / "provenance.json", found) or {}
    if not forms.provenance(origin):
        found.damaged.append(f"{folder / 'provenance.json'} is of another form; it is left out.")
        origin = {}
    tallies = _read_tallies(folder, len(config["seeds"]), experiment, found)
    if tallies is None:
        return None
    return _Group(folder, config, result["metrics"] | derived, curve, origin, tallies)


def _read_tallies(
    folder: Path, runs: int, experiment: str, found: Collection
) -> dict[str, Tensor] | None:
    """Counts of every run; None, with a word on why, where they should be there and are not."""
    known, path = EXPERIMENTS[experiment], folder / "arrays.safetensors"
    if known.gather is None:
        return {}
    try:
        arrays = storage.read_tensors(path)[0]
        tallies = {name: arrays[name] for name in known.cell.tallies}
    except (storage.Damaged, OSError, KeyError) as error:
        text = error if isinstance(error, storage.Damaged) else f"{path} has no counts ({error!r})"
        found.damaged.append(f"{text}; its runs are left out.")
        return None
    if any(tally.ndim != 2 or len(tally) != runs for tally in tallies.values()):
        found.damaged.append(f"{path} does not have counts of {runs} runs; they are left out.")
        return None
    return tallies


def _misfit(config: dict, result: dict) -> str:
    """What is wrong with a result; empty for nothing."""
    seeds = config["seeds"]
    if not forms.result(result):
        return "has no metrics or no curve"
    lists = [*result["metrics"].values(), *(record["loss"] for record in result["curve"])]
    if not all(len(values) == len(seeds) for values in lists):
        return f"does not have one number for each of the {len(seeds)} seeds"
    if not bears(result, mark_of(config)):
        return "is of another configuration than the config.json beside it"
    return ""


def _steps(config: dict) -> int | str:
    return config["cell"].get("steps", "?")


def _reached(folder: Path) -> int:
    """The last step of an unfinished run, by its metrics file, whose last line may be torn."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if forms.count(step):
            return step
    return 0


def _merge(experiment: str, name: str, groups: list[_Group], found: Collection) -> Record:
    """The groups of one cell as one record, each seed once, in order."""
    groups = sorted(groups, key=lambda group: (min(group.config["seeds"]), group.folder.name))
    first, kept = groups[0], []
    for group in groups:
        if difference := differing(group.config["cell"], first.config["cell"]):
            found.damaged.append(
                f"{group.folder} is left out, for its {difference}, in {first.folder}."
            )
        else:
            kept.append(group)
    place = {}  # seed -> its group and its place there
    for group in kept:
        for index, seed in enumerate(group.config["seeds"]):
            place.setdefault(seed, (group, index))
    places = [place[seed] for seed in sorted(place)]
    names = [key for key in first.metrics if all(key in group.metrics for group in kept)]
    return Record(
        experiment,
        name,
        first.config["cell"],
        sorted(place),
        {key: [shorten(group.metrics[key][i]) for group, i in places] for key in names},
        _summary(places),
        [_origin(group) for group in kept],
        first.folder,
        tallies=_gathered(experiment, first.config["cell"], sorted(place), places),
    )


def _gathered(
    experiment: str, settings: dict, seeds: list[int], places: list[tuple[_Group, int]]
) -> dict[str, Tensor]:
    gather = EXPERIMENTS[experiment].gather
    if gather is None:
        return {}
    names = places[0][0].tallies
    rows = {n: torch.stack([group.tallies[n][i] for group, i in places]) for n in names}
    return gather(settings, seeds, rows)


def _origin(group: _Group) -> dict:
    seconds = group.origin.get("seconds", {})
    seconds = {key: shorten(value, 4) for key, value in seconds.items()}
    return group.origin | {"seconds": seconds, "runs": len(group.config["seeds"])} | _clock(group)


def _clock(group: _Group) -> dict:
    clock = group.origin.get("clock")
    return {"clock": [[round(t, 1) for t in times] for times in clock]} if clock else {}


def _summary(places: list[tuple[_Group, int]]) -> list[Point]:
    """The loss over seeds at every step; a seed that diverged is not part of it."""
    losses: dict[int, list[float]] = {}
    for group, index in places:
        for record in group.curve:
            loss = record["loss"][index]
            if loss is not None and math.isfinite(loss):
                losses.setdefault(record["step"], []).append(loss)
    return [
        Point(step, sum(values) / len(values), min(values), max(values))
        for step, values in sorted(losses.items())
    ]
