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
    """Two digits, three from 10 on, or the integer where it has more; empty stays empty."""
    if not text:
        return ""
    value = float(text) * scale
    return f"{value:.0f}" if value >= 99.95 else f"{value:.{3 if value >= 10 else 2}g}"


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
    body = [tuple(cells[name] for name in head) for cells in ours]
    return f"{grid(head, body, len(head))}\n\n{caption(rows)}"


def grid(head: tuple[str, ...], body: list[tuple[str, ...]], texts: int) -> str:
    """A table in markdown: some columns of text, then numbers."""
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))


def names(row: Row) -> tuple[str, str, str]:
    """What a line is about: the cells of NAMES."""
    sizes = "all N" if row["layout"] == "full" else f"1 to N, {row['layout']}"
    return OPERATORS[row["benchmark"]], sizes, f"{row['B']}, {row['D']}, {row['N']}"


def peers(row: Row, rows: list[Row]) -> dict[str, Row]:
    """What was measured together with a row, by variant: in its layout, where there is that.

    All plain forms have one name here.
    """
    same = [r for r in rows if case_of(r) == case_of(row)]
    same.sort(key=lambda r: r["layout"] == row["layout"])  # the last ones stay
    return {"plain" if r["variant"] in PLAIN else r["variant"]: r for r in same}


def _cells(row: Row, rows: list[Row]) -> dict[str, str]:
    """All that can be said of a row of the package, by column."""
    same = peers(row, rows)
    plain = _faster(same.get("plain"), row)
    return dict(zip(NAMES, names(row), strict=True)) | {
        "against plain eager": plain if plain == "-" else f"**{plain}**",
        "against fixed-size eager": _faster(same.get("fixed"), row),
        "against `torch.compile`": _faster(same.get("compiled"), row),
        "against sum pooling": _faster(same.get("sum"), row),
        "peak memory": _memory(row, same.get("plain")),
    }


def _faster(other: Row | None, row: Row) -> str:
    ratio = over(other, row, "seconds")
    return compared(ratio, "faster", "slower", "as fast") if ratio else "-"


def _memory(row: Row, plain: Row | None) -> str:
    if not row["peak_bytes"]:
        return "-"
    ratio = over(plain, row, "peak_bytes")
    size = f"{short(row['peak_bytes'], 1e-6)} MB"
    return f"{size}, {compared(ratio, 'less', 'more', 'as much')}" if ratio else size


def compared(ratio: float, above: str, below: str, even: str) -> str:
    """A ratio in words, with a number of at least one."""
    times = short(str(max(ratio, 1 / ratio)))
    return even if times == "1" else f"{times}x {above if ratio > 1 else below}"


def over(a: Row | None, b: Row | None, column: str) -> float | None:
    """How many times more a took than b; None where one was not measured."""
    if a is None or b is None or not a[column] or not b[column]:
        return None
    return float(a[column]) / float(b[column])


def caption(rows: list[Row]) -> str:
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
        f"{machine}, {_dates(rows)}. "
        f"The plain form of {_dense(rows)} stores dense matrices. "
        f"Largest relative error of a value or gradient against float64: {worst:.0e}."
    )


def _dates(rows: list[Row]) -> str:
    """Benchmarks may be measured again one at a time."""
    first, last = min(row["date"] for row in rows), max(row["date"] for row in rows)
    return first if first == last else f"{first} to {last}"


def _dense(rows: list[Row]) -> str:
    chamfer = any(row["benchmark"] == "chamfer" for row in rows)
    return "the relaxed sort" + (" and of the Chamfer loss" if chamfer else "")


def fill(path: Path, made: dict[str, str]) -> None:
    """Put tables, by name, between ``<!-- name -->`` and ``<!-- /name -->`` of a text file."""
    text = path.read_text()
    present = [name for name in made if f"<!-- {name} -->" in text]
    if not present:
        expected = " or ".join(f"<!-- {name} -->" for name in made)
        raise SystemExit(f"{path.name} has no block {expected}.")
    for name in present:
        text = _filled(text, name, made[name], path.name)
    path.write_text(text)


def _filled(text: str, name: str, content: str, file: str) -> str:
    start, stop = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(start) != 1 or text.count(stop) != 1:
        raise SystemExit(f"{file}: block {start} ... {stop}; expected exactly one.")
    pattern = re.compile(f"{re.escape(start)}.*{re.escape(stop)}", re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n{content}\n{stop}", text)
