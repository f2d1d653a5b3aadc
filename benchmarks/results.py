"""Rows of measurements: a CSV to keep, a table to read, a block of the README."""

from __future__ import annotations

import csv
import os
import re
from pathlib import Path

from .accuracy import Errors
from .case import Case, Variant

Row = dict[str, str]

PLAIN = ("plain", "dense")  # the plain form of the hard pool, of the relaxed one
# Of the plain form's time over that of the variant; of the variant's time over that of the sum.
MEASURED = ("seconds", "speedup_over_plain", "times_sum", "peak_bytes")
ERRORS = ("value_error", "gradient_error")


def rows(
    case: Case,
    seconds: dict[Variant, float],
    peaks: dict[Variant, int],
    errors: dict[Variant, Errors],
) -> list[Row]:
    """One row a variant; empty where something was not measured."""
    plain = [seconds[v] for v in case.variants if v.name in PLAIN]
    sums = {v.layout: seconds[v] for v in case.variants if v.name == "sum"}

    def row(v: Variant) -> Row:
        speedup = plain[0] / seconds[v] if plain and v.name != "sum" else None
        measured = (seconds[v], speedup, seconds[v] / sums[v.layout], peaks.get(v))
        names = {"benchmark": case.benchmark, "layout": v.layout, "variant": v.name}
        return (
            names
            | {axis: str(length) for axis, length in zip("BDN", case.shape, strict=True)}
            | dict(zip(MEASURED, map(_text, measured), strict=True))
            | dict(zip(ERRORS, map(_text, errors.get(v, (None, None))), strict=True))
        )

    return [row(v) for v in case.variants]


def _text(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def write(path: Path, rows: list[Row]) -> None:
    """All or nothing: a run that is stopped leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    os.replace(temporary, path)


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------------------------------
# Text


def table(rows: list[Row]) -> str:
    """Aligned columns, for a terminal."""
    head = ("variant", "layout", "ms", "faster than plain", "times sum", "peak MB", *ERRORS)
    lines = [head, *(_line(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(cells))
        for cells in (zip(line, widths, strict=True) for line in lines)
    )


def _line(row: Row) -> tuple[str, ...]:
    return (
        row["variant"],
        row["layout"],
        short(row["seconds"], 1e3),
        short(row["speedup_over_plain"]),
        short(row["times_sum"]),
        short(row["peak_bytes"], 1e-6),
        *(row[name] and f"{float(row[name]):.1e}" for name in ERRORS),
    )


def short(text: str, scale: float = 1.0) -> str:
    """Two digits, or the integer where it has more; empty stays empty."""
    if not text:
        return ""
    value = float(text) * scale
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


HEAD = (
    "operator",
    "sizes",
    "B, D, N",
    "against plain eager",
    "against fixed-size eager",
    "against sum pooling",
    "peak memory",
)
OPERATORS = {"pool": "hard pool", "relaxed_sort": "relaxed pool + unpool"}


def markdown(rows: list[Row]) -> str:
    """The short table of the README: a line for each thing that the package computes."""
    ours = [_cells(row, rows) for row in rows if row["variant"] == "fspool"]
    lines = [HEAD, ("---",) * len(HEAD), *ours]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", _caption(rows)])


def _cells(row: Row, rows: list[Row]) -> tuple[str, ...]:
    same = [r for r in rows if all(r[k] == row[k] for k in ("benchmark", "B", "D", "N"))]
    same = [r for r in same if (r["layout"] == "full") == (row["layout"] == "full")]
    other = {r["variant"]: r for r in same if r["layout"] == row["layout"]}
    plain = next((r for r in same if r["variant"] in PLAIN), None)
    fixed = other.get("fixed")
    return (
        OPERATORS[row["benchmark"]],
        "all N" if row["layout"] == "full" else f"1 to N, {row['layout']}",
        f"{row['B']}, {row['D']}, {row['N']}",
        f"**{short(row['speedup_over_plain'])}x faster**" if plain else "-",
        f"{short(_over(fixed, row, 'seconds'))}x faster" if fixed else "-",
        f"{short(row['times_sum'])}x slower",
        _memory(row, plain),
    )


def _memory(row: Row, plain: Row | None) -> str:
    if not row["peak_bytes"]:
        return "-"
    size = f"{short(row['peak_bytes'], 1e-6)} MB"
    return f"{size}, {short(_over(plain, row, 'peak_bytes'))}x less" if plain else size


def _over(a: Row, b: Row, column: str) -> str:
    return str(float(a[column]) / float(b[column]))


def _caption(rows: list[Row]) -> str:
    first = rows[0]
    ours = [row for row in rows if row["variant"] == "fspool"]
    worst = max(float(row[name]) for row in ours for name in ERRORS)
    return (
        f"Forward + backward in float32, medians of {first['rounds']} interleaved rounds; "
        f"{first['machine']}, {first['threads']} threads, torch {first['torch']}, "
        f"numpy {first['numpy']}, {first['date']}. "
        "The plain form of the relaxed sort stores dense matrices. "
        f"Largest relative error of a value or gradient against float64: {worst:.0e}."
    )


def fill(path: Path, rows: list[Row], block: str) -> None:
    """Put the table between ``<!-- block -->`` and ``<!-- /block -->`` of a text file."""
    start, stop = f"<!-- {block} -->", f"<!-- /{block} -->"
    text = path.read_text()
    if text.count(start) != 1 or text.count(stop) != 1:
        raise SystemExit(f"{path.name} has no block {start} ... {stop}; expected exactly one.")
    pattern = re.compile(f"{re.escape(start)}.*{re.escape(stop)}", re.DOTALL)
    filled = f"{start}\n{markdown(rows)}\n{stop}"
    path.write_text(pattern.sub(lambda _: filled, text))
