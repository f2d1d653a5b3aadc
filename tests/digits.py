"""A small experiment that measures accuracies, with numbers that were made up."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from fspool.experiments.experiment import Entry, Experiment, Table
from fspool.experiments.polygons import Polygons

from .folders import write_run

POOLS = {"FSPool": "fspool", "Sum": "sum", "Mean": "mean", "Max": "max"}
SETTINGS = tuple(field.name for field in fields(Polygons))  # which nobody looks at here
COLUMNS = ("1 frozen", "1 unfrozen", "1 random")


def table(**settings) -> Table:
    return Table(
        title="Accuracy",
        note="In %; more is better.",
        columns=COLUMNS,
        rows={
            label: tuple(Entry(f"{pool}-{name.split()[1]}", "accuracy") for name in COLUMNS)
            for label, pool in POOLS.items()
        },
        published="mnist.classification.noise5",
        scale=100,
        digits=1,
        **{"higher_is_better": True, "welch": True} | settings,
    )


def experiment(*tables: Table) -> Experiment:
    return Experiment(
        name="digits",
        title="Digits as sets",
        cell=Polygons,
        cells=lambda preset: {},
        seeds={"paper": 3},
        settable=(),
        by_data=SETTINGS,
        tables=tables or (table(),),
    )


def write(out: Path, name: str, percent: list[float | None], **settings) -> None:
    values = [None if value is None else value / 100 for value in percent]
    seeds = list(range(len(values)))
    write_run(out, name, seeds, {"accuracy": values}, experiment="digits", **settings)
