"""``python -m tests.fuzz --minutes 60``: examples for every reader; 1 where there are findings."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import torch

from .readers import Reader, readers
from .running import fuzz

HEADS = ("examples", "accepted", "findings", "seconds")
SLICE = 40  # examples of a reader, then it is another one's turn


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="in all")
    parser.add_argument("--seed", type=int, default=0, help="another one gives other files")
    parser.add_argument("--only", default="", help="only readers whose names have this in them")
    parser.add_argument("--save", type=Path, help="also write the counts as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [reader for reader in readers() if options.only in reader.name]
    rows = {reader.name: [0, 0, 0, 0.0] for reader in chosen}
    deadline, turn = time.monotonic() + 60 * options.minutes, options.seed * 1_000_000
    while time.monotonic() < deadline:
        # Whoever had the least time so far: slow readers get as much as fast ones.
        reader = min(chosen, key=lambda reader: rows[reader.name][3])
        take_turn(reader, rows[reader.name], turn)
        turn += 1
    print(table(rows))
    if options.save:
        counts = {name: [*row[:3], round(row[3])] for name, row in rows.items()}
        found = {"minutes": options.minutes, "seed": options.seed, "heads": HEADS, "rows": counts}
        options.save.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(1 if any(row[2] for row in rows.values()) else 0)


def take_turn(reader: Reader, row: list, seed: int) -> None:
    began = time.monotonic()
    try:
        tried, accepted = fuzz(reader, SLICE, seed)
        row[0] += tried
        row[1] += accepted
    except BaseException as finding:
        if isinstance(finding, KeyboardInterrupt):
            raise
        row[0] += SLICE
        row[2] += 1
        print(f"{reader.name}, --seed {seed}: a finding", file=sys.stderr)
        traceback.print_exc()
        sys.stderr.flush()
    row[3] += time.monotonic() - began


def table(rows: dict[str, list]) -> str:
    lines = [f"{'reader':22}" + "".join(f"{head:>10}" for head in HEADS)]
    total = [sum(row[i] for row in rows.values()) for i in range(4)]
    for name, (tried, accepted, findings, seconds) in (rows | {"all": total}).items():
        lines.append(f"{name:22}{tried:10}{accepted:10}{findings:10}{seconds:10.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
