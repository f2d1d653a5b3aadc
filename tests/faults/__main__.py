"""``python -m tests.faults --count 200 --seed 0``: the tally, and 1 where anything is not zero."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from .kinds import Kind, kinds
from .trial import Trial, Undisturbed, undisturbed

HEADS = ("fault", "injected", "finished work lost", "wrong numbers", "unclear messages")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="faults in all, at least one a kind")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other moments")
    parser.add_argument("--only", help="only kinds whose names have this in them")
    parser.add_argument("--save", type=Path, help="also write the tally as JSON")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "FSPOOL_COMMIT": "0123456789ab"}
    chosen = [kind for kind in kinds() if (options.only or "") in kind.name]
    if not chosen:
        parser.error(f"no kind has {options.only!r} in its name")
    folder = Path(tempfile.mkdtemp(prefix="fspool-faults-"))
    began = time.monotonic()
    expected = undisturbed(folder / "undisturbed")
    rows = [
        (kind.name, count, *tally(kind, count, options.seed, folder, expected))
        for kind, count in zip(chosen, shares(chosen, options.count, options.seed), strict=True)
        if count
    ]
    total = [sum(column) for column in list(zip(*rows, strict=True))[1:]]
    print(table([HEADS, *rows, ("all", *total)]))
    seconds = round(time.monotonic() - began)
    print(f"seed {options.seed}, {seconds} s")
    if options.save:
        tally_of = {"seed": options.seed, "seconds": seconds, "heads": HEADS, "rows": rows}
        options.save.write_text(json.dumps(tally_of, indent=1) + "\n")
    if any(total[1:]):
        sys.exit(f"Look at what is left in {folder}.")
    shutil.rmtree(folder)


def shares(chosen: list[Kind], count: int, seed: int) -> list[int]:
    """As many of each kind as its share says, one at least; the first kinds have the rest.

    A few faults are of as many kinds, drawn at random.
    """
    if count < len(chosen):
        drawn = random.Random(seed).sample(range(len(chosen)), count)
        return [int(i in drawn) for i in range(len(chosen))]
    whole = sum(kind.share for kind in chosen)
    found = [max(1, count * kind.share // whole) for kind in chosen]
    for i in range(max(0, count - sum(found))):
        found[i % len(found)] += 1
    return found


def tally(
    kind: Kind, count: int, seed: int, folder: Path, expected: Undisturbed
) -> tuple[int, int, int]:
    """Trials with lost work, with wrong numbers and with unclear messages."""
    found = [0, 0, 0]
    for number in range(count):
        name = f"{kind.name}-{number}".replace(" ", "-").replace(",", "")
        trial = Trial(folder / name, random.Random(f"{seed} {name}"), expected)
        trial.folder.mkdir()
        kind.disturb(trial)
        troubles = trial.lost, trial.wrong, trial.unclear
        for place, texts in enumerate(troubles):
            found[place] += bool(texts)
            for text in texts:
                print(f"{name}: {text}", file=sys.stderr)
        if not any(troubles):
            shutil.rmtree(trial.folder)
    print(f"{kind.name}: {count} injected", file=sys.stderr, flush=True)
    return tuple(found)


def table(rows: list[tuple]) -> str:
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            [
                str(row[0]).ljust(widths[0]),
                *(str(c).rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)),
            ]
        )
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:-1], "-" * len(lines[0]), lines[-1]])


if __name__ == "__main__":
    main()
