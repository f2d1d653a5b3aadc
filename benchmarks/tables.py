"""Rows as text: a table for a terminal, a block of the README."""

from __future__ import annotations

import re
from pathlib import Path

from .results import ERRORS, PLAIN, Row, case_of


def table(rows: list[Row]) -> str:
    """Aligned columns, for a terminal; without those that are empty."""
    head = ("variant", "layout", "ms", "eager ms", "faster than plain", "times sum", "peak MB")
    columns = zip(head + ERRORS, *map(_line, rows), strict=True)
    columns = [column for column in columns if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return "\n".join(
        "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(cells))
        for cells in (zip(line, widths, strict=True) for line in zip(*columns, strict=True))
    )


def _line(row: Row) -> tuple[str, ...]:
    return (
        row["variant"],
        row["layout"],
        short(row["seconds"], 1e3),
        short(row["eager_seconds"], 1e3),
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


# --------------------------------------------------------------------------------------------------
# The README

OPERATORS = {
    "pool": "hard pool",
    "relaxed_sort": "relaxed pool + unpool",
    "chamfer": "Chamfer loss",
}
NAMES = ("operator", "sizes", "B, D, N")
SHOWN = {
    "cpu": ("against plain eager", "against fixed-size eager", "against sum pooling"),
    "cuda": ("against plain eager", "against `torch.compile`", "against sum pooling"),
}


def markdown(rows: list[Row]) -> str:
    """The short table of the README: a line for each thing that the package computes."""
    rows = [row for row in rows if row["benchmark"] in OPERATORS]
    head = (*NAMES, *SHOWN[rows[0]["device"]], "peak memory")
    ours = [_cells(row, rows) for row in rows if row["variant"] == "fspool"]
    lines = [head, ("---",) * len(head), *([cells[name] for name in head] for cells in ours)]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), "", _caption(rows)])


def _cells(row: Row, rows: list[Row]) -> dict[str, str]:
    """All that can be said of a row of the package, by column."""
    same = {r["variant"]: r for r in rows if case_of(r) == case_of(row)}
    plain = next((same[name] for name in PLAIN if name in same), None)
    times_sum = short(row["times_sum"])
    return {
        "operator": OPERATORS[row["benchmark"]],
        "sizes": "all N" if row["layout"] == "full" else f"1 to N, {row['layout']}",
        "B, D, N": f"{row['B']}, {row['D']}, {row['N']}",
        "against plain eager": _faster(plain, row, "**"),
        "against fixed-size eager": _faster(same.get("fixed"), row),
        "against `torch.compile`": _faster(same.get("compiled"), row),
        "against sum pooling": f"{times_sum}x slower" if times_sum else "-",
        "peak memory": _memory(row, plain),
    }


def _faster(other: Row | None, row: Row, mark: str = "") -> str:
    ratio = _over(other, row, "seconds")
    return f"{mark}{ratio}x faster{mark}" if ratio else "-"


def _memory(row: Row, plain: Row | None) -> str:
    if not row["peak_bytes"]:
        return "-"
    ratio = _over(plain, row, "peak_bytes")
    size = f"{short(row['peak_bytes'], 1e-6)} MB"
    return f"{size}, {ratio}x less" if ratio else size


def _over(a: Row | None, b: Row, column: str) -> str:
    """How many times more a took than b; empty where one was not measured."""
    if a is None or not a[column] or not b[column]:
        return ""
    return short(str(float(a[column]) / float(b[column])))


def _caption(rows: list[Row]) -> str:
    first = rows[0]
    ours = [row for row in rows if row["variant"] == "fspool"]
    worst = max(float(row[name]) for row in ours for name in ERRORS)
    if first["device"] == "cuda":
        method = "float32 by replay of CUDA graphs"
        machine = f"{first['machine']}, torch {first['torch']}, triton {first['triton']}"
    else:
        method = "float32"
        machine = (
            f"{first['machine']}, {first['threads']} threads, torch {first['torch']}, "
            f"numpy {first['numpy']}"
        )
    return (
        f"Forward + backward in {method}, medians of {first['rounds']} interleaved rounds; "
        f"{machine}, {first['date']}. "
        f"The plain form of {_dense(rows)} stores dense matrices. "
        f"Largest relative error of a value or gradient against float64: {worst:.0e}."
    )


def _dense(rows: list[Row]) -> str:
    chamfer = any(row["benchmark"] == "chamfer" for row in rows)
    return "the relaxed sort" + (" and of the Chamfer loss" if chamfer else "")


def fill(path: Path, rows: list[Row], block: str) -> None:
    """Put the table between ``<!-- block -->`` and ``<!-- /block -->`` of a text file."""
    start, stop = f"<!-- {block} -->", f"<!-- /{block} -->"
    text = path.read_text()
    if text.count(start) != 1 or text.count(stop) != 1:
        raise SystemExit(f"{path.name} has no block {start} ... {stop}; expected exactly one.")
    if not rows:
        raise SystemExit(f"there are no results for {block} yet; run python -m benchmarks first.")
    pattern = re.compile(f"{re.escape(start)}.*{re.escape(stop)}", re.DOTALL)
    filled = f"{start}\n{markdown(rows)}\n{stop}"
    path.write_text(pattern.sub(lambda _: filled, text))
