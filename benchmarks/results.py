"""Rows of measurements, and the CSV that keeps them."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from .accuracy import Errors
from .case import Case, Variant

Row = dict[str, str]

PLAIN = ("plain", "dense")  # the plain form of the hard pool, of the others
# "seconds" are those of a graph on CUDA, with those of eager calls beside it. The speedup is the
# plain form's time over that of the variant; then the variant's time over that of the sum.
MEASURED = ("seconds", "eager_seconds", "speedup_over_plain", "times_sum", "peak_bytes")
ERRORS = ("value_error", "gradient_error")


def rows(
    case: Case,
    seconds: dict[Variant, float],
    peaks: dict[Variant, int],
    errors: dict[Variant, Errors],
    eager: dict[Variant, float] | None = None,
    floors: dict[str, float] | None = None,
) -> list[Row]:
    """One row a variant, then the floor of each layout; empty where something was not measured."""
    plain = next((seconds.get(v) for v in case.variants if v.name in PLAIN), None)
    sums = {v.layout: seconds.get(v) for v in case.variants if v.name == "sum"}

    def of_variant(v: Variant) -> Row:
        own = seconds.get(v)
        speedup = None if v.name == "sum" else _ratio(plain, own)
        times_sum = _ratio(own, sums.get(v.layout))
        measured = (own, (eager or {}).get(v), speedup, times_sum, peaks.get(v))
        return row(v.name, v.layout, measured, errors.get(v, (None, None)))

    def row(name: str, layout: str, measured: tuple, wrong: tuple) -> Row:
        return (
            {"benchmark": case.benchmark, "layout": layout, "variant": name}
            | {axis: str(length) for axis, length in zip("BDN", case.shape, strict=True)}
            | dict(zip(MEASURED, map(_text, measured), strict=True))
            | dict(zip(ERRORS, map(_text, wrong), strict=True))
        )

    nothing = (None,) * (len(MEASURED) - 1)
    return [of_variant(v) for v in case.variants] + [
        row("floor", layout, (least, *nothing), (None, None))
        for layout, least in (floors or {}).items()
    ]


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def merge(
    names: list[str], before: list[Row], new: dict[str, list[Row]], finished: set[str]
) -> list[Row]:
    """All rows, benchmark by benchmark: the new ones, and the old ones of cases that have none.

    A benchmark that is finished keeps nothing old.
    """
    merged = []
    for name in names:
        fresh = new.get(name, [])
        again = {case_of(row) for row in fresh}
        old = [row for row in before if row["benchmark"] == name and name not in finished]
        merged += fresh + [row for row in old if case_of(row) not in again]
    return merged


def case_of(row: Row) -> tuple:
    """What rows that were measured together have in common."""
    return (*(row[name] for name in ("benchmark", "B", "D", "N")), row["layout"] == "full")


def write(path: Path, rows: list[Row]) -> None:
    """All or nothing: a run that is stopped leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    columns = max(rows, key=len, default={})  # rows of an older version have fewer
    with temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    os.replace(temporary, path)


def read(path: Path) -> list[Row]:
    """No rows where there is no file; columns of later versions are empty in older files."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [dict.fromkeys(MEASURED, "") | row for row in csv.DictReader(file)]
