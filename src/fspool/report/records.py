"""What the report knows: one record a cell, all its seeds together, and what could not be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .. import storage
from ..experiments import EXPERIMENTS, Experiment
from ..experiments.experiment import Combined

DIGITS = 7  # significant ones of a measurement: one more than the paper's longest number has


class Point(NamedTuple):
    """The loss at one step, over seeds."""

    step: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Record:
    """The finished runs of one cell."""

    experiment: str
    name: str
    settings: dict
    seeds: list[int]
    metrics: dict[str, list[float | None]]  # one for every seed; None: never reached, or diverged
    curve: list[Point]
    origins: list[dict]  # provenance, one for every group of seeds
    folder: Path | None = None  # of the group with the first seed, where there are run folders
    problems: list[str] = field(default_factory=list)
    kept: dict[str, dict] = field(default_factory=dict)  # arrays, where there are no run folders
    tallies: dict[str, Tensor] = field(default_factory=dict)  # counts, as the experiment gathers
    cells: list[str] = field(default_factory=list)  # those that it comes from, where it has no runs

    @cached_property
    def arrays(self) -> dict[str, Tensor]:
        """What the first seed put out."""
        if self.folder is None:
            return {k: torch.tensor(v["values"]).reshape(v["shape"]) for k, v in self.kept.items()}
        return self._tensors("arrays.safetensors")

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Trained parameters, (G, ...) over the seeds of the first group."""
        return self._tensors("model.safetensors")

    def _tensors(self, name: str) -> dict[str, Tensor]:
        if self.folder is None or not (self.folder / name).exists():
            return {}
        try:
            return storage.read_tensors(self.folder / name)[0]
        except (storage.Damaged, OSError) as error:
            self.problems.append(
                f"{error}; the figures go without it, so remove {self.folder} and run the same "
                "command to make it again."
            )
            return {}


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    experiment: str
    preset: str
    seeds: int
    cells: list[str]
    options: dict[str, int] = field(default_factory=dict)  # of each command; its number of seeds
    runs: dict[str, int] = field(default_factory=dict)  # seeds of each cell, where they differ

    @property
    def commands(self) -> list[str]:
        begin = f"fspool run {self.experiment} --preset {self.preset}"
        options = self.options or {"": self.seeds}
        texts = [f"{begin} --seeds {seeds} {text}" for text, seeds in options.items()]
        return [text.strip().replace("`", "'") for text in texts]  # such signs are around it


@dataclass(frozen=True)
class Collection:
    """The records of one or more experiments, and what is not among them."""

    records: list[Record]
    plans: list[Plan] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)  # sentences
    damaged: list[str] = field(default_factory=list)  # sentences
    doubled: list[str] = field(default_factory=list)  # sentences on what was found twice

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def experiments(self) -> list[Experiment]:
        """Those with records, in the order of the paper."""
        names = {record.experiment for record in self}
        return [experiment for name, experiment in EXPERIMENTS.items() if name in names]

    @property
    def problems(self) -> list[str]:
        """All that is damaged or double, what was found while drawing included."""
        return [*self.doubled, *self.lost]

    @property
    def lost(self) -> list[str]:
        """All that is damaged, what was found while drawing included."""
        return [*self.damaged, *(text for record in self for text in record.problems)]

    def of(self, experiment: str) -> dict[str, Record]:
        """The records of an experiment by name."""
        return {record.name: record for record in self if record.experiment == experiment}

    def combined(self, experiment: Experiment) -> dict[str, Record]:
        """The same, and what comes from several of them, under names of its own."""
        records = self.of(experiment.name)
        found = experiment.combine(records.values())
        return records | {name: _derived(experiment.name, name, own) for name, own in found.items()}

    def planned(self, experiment: str) -> set[str]:
        """Names of the cells that were asked for."""
        return {name for plan in self.plans if plan.experiment == experiment for name in plan.cells}

    @property
    def missing(self) -> list[str]:
        """Cells that were asked for and have no, or not enough, finished runs; in words."""
        texts = []
        several = len({plan.experiment for plan in self.plans}) > 1
        for plan in self.plans:
            records = self.of(plan.experiment)
            for name in plan.cells:
                seeds = records[name].seeds if name in records else []
                wanted = plan.runs.get(name, plan.seeds)
                asked = EXPERIMENTS[plan.experiment].runs(plan.preset, name, wanted)
                done = sum(seed < asked for seed in seeds)
                if done < asked:
                    cell = f"{plan.experiment}, {name}" if several else name
                    texts.append(f"{cell}: {done} of {asked} runs are finished.")
        return texts


def _derived(experiment: str, name: str, found: Combined) -> Record:
    count = len(next(iter(found.metrics.values())))
    seeds = list(range(count))
    return Record(experiment, name, {}, seeds, found.metrics, [], [], cells=found.cells)


def shorten(value: float | None, digits: int = DIGITS) -> float | None:
    """To some significant digits. Run folders and compact files are read alike, to the last bit."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def split_origin(origin: dict) -> tuple[dict, dict]:
    """Provenance: what all groups of runs of a machine share, and what is a group's own."""
    names = ("runs", "seconds", "step_seconds", "steps", "clock")
    own = {key: origin[key] for key in names if key in origin}
    shared = ("device", "unit", "threads", "versions", "commit", "date")
    return {key: origin[key] for key in shared if key in origin}, own
