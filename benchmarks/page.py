"""The tables of docs/speed.md: all that was measured on CUDA, eager calls, first calls."""

from __future__ import annotations

from .cold import PROCESSES
from .results import ERRORS, Row
from .tables import NAMES, OPERATORS, caption, grid, names, over, peers, short

HEAD = (NAMES[0], NAMES[2])  # shorter than in the README: there are more columns
EAGER = {"fspool": "fspool", "plain": "plain", "compiled": "compiled", "sum": "sum pooling"}


def tables(rows: list[Row], first_calls: dict) -> dict[str, str]:
    """By the names of their blocks."""
    rows = [row for row in rows if row["benchmark"] in OPERATORS]
    made = {"bench:cuda:all": everything(rows), "bench:cuda:eager": eager_calls(rows)}
    return made | ({"bench:cuda:first": first(first_calls)} if first_calls else {})


def everything(rows: list[Row]) -> str:
    head = ("ms", "eager ms", "faster than plain", "faster than compiled", "times sum")
    head += ("times floor", "peak MB", "value error", "gradient error")
    body = [_label(row) + _numbers(row, rows) for row in rows if row["variant"] == "fspool"]
    return f"{grid(HEAD + head, body, len(HEAD))}\n\n{caption(rows)}"


def _label(row: Row) -> tuple[str, str]:
    operator, _, shape = names(row)
    return operator if row["layout"] == "full" else f"{operator}, {row['layout']}", shape


def _numbers(row: Row, rows: list[Row]) -> tuple[str, ...]:
    same = peers(row, rows)
    return (
        short(row["seconds"], 1e3),
        short(row["eager_seconds"], 1e3) or "-",
        _times(same.get("plain"), row),
        _times(same.get("compiled"), row),
        _times(row, same.get("sum")),
        _times(row, same.get("floor")),
        short(row["peak_bytes"], 1e-6) or "-",
        *(f"{float(row[name]):.0e}" for name in ERRORS),
    )


def _times(a: Row | None, b: Row | None) -> str:
    ratio = over(a, b, "seconds")
    return f"{short(str(ratio))}x" if ratio else "-"


def eager_calls(rows: list[Row]) -> str:
    """Milliseconds of the package's graph, then of the calls of all."""
    body = []
    for row in rows:
        if row["variant"] == "fspool":
            same = peers(row, rows) | {"fspool": row}
            called = (short(same[v]["eager_seconds"], 1e3) if v in same else "-" for v in EAGER)
            body.append((*_label(row), short(row["seconds"], 1e3), *called))
    return grid((*HEAD, "fspool, replayed", *EAGER.values()), body, len(HEAD))


def first(found: dict) -> str:
    head = ("forward, s", "backward, s", "kernels", "compiling them, s", "again, ms")
    body = [_label(call) + _call(call) for call in found["calls"]]
    made = found["machine"]
    where = f"{made['machine']}, torch {made['torch']}, triton {made['triton']}, {made['date']}"
    note = f"{where}. {PROCESSES} processes ran side by side: these are upper bounds."
    return f"{grid(HEAD + head, body, len(HEAD))}\n\n{note}"


def _call(call: dict) -> tuple[str, ...]:
    compiling = sum(kernel["seconds"] for kernel in call["kernels"])
    return (
        f"{call['forward_seconds']:.1f}",
        f"{call['backward_seconds']:.1f}",
        str(len(call["kernels"])),
        f"{compiling:.1f}",
        f"{call['again_seconds'] * 1e3:.1f}",
    )
