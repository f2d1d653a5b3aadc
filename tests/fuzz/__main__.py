"""``python -m tests.fuzz --minutes 60``: examples for every reader; 1 where there are findings."""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from .readers import readers
from .running import work

HEADS = ("examples", "accepted", "findings", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="in all, of all processes")
    parser.add_argument("--processes", type=int, default=1, help="that share the minutes")
    parser.add_argument("--seed", type=int, default=0, help="another one gives other files")
    parser.add_argument("--only", default="", help="only readers whose names have this in them")
    parser.add_argument("--save", type=Path, help="also write the counts as JSON")
    options = parser.parse_args()
    if not any(options.only in reader.name for reader in readers()):
        parser.error(f"no reader has {options.only!r} in its name")
    seconds = 60 * options.minutes / options.processes
    starts = [options.seed + 1_000_000 * i for i in range(options.processes)]
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        parts = list(pool.map(partial(work, options.only, seconds), starts))
    rows = {
        name: [sum(c) for c in zip(*(p[name] for p in parts), strict=True)] for name in parts[0]
    }
    print(table(rows))
    if options.save:
        counts = {name: [*row[:3], round(row[3])] for name, row in rows.items()}
        found = {"minutes": options.minutes, "seed": options.seed, "heads": HEADS, "rows": counts}
        options.save.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if any(row[2] for row in rows.values()) else 0)


def table(rows: dict[str, list]) -> str:
    lines = [f"{'reader':22}" + "".join(f"{head:>10}" for head in HEADS)]
    total = [sum(row[i] for row in rows.values()) for i in range(4)]
    for name, (tried, accepted, findings, seconds) in (rows | {"all": total}).items():
        lines.append(f"{name:22}{tried:10}{accepted:10}{findings:10}{seconds:10.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
