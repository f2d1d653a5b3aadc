"""The one runner: check, time, measure memory, print, keep."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import accuracy, machine, memory, pool, relaxed_sort, results, timing
from .case import Case

BENCHMARKS = {"pool": pool.cases, "relaxed_sort": relaxed_sort.cases}
HERE = Path(__file__).parent
ROUNDS = 11


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    kept = HERE / "results" / f"{options.device}.csv"
    if options.readme:
        return results.fill(options.readme, results.read(kept), f"bench:{options.device}")
    out = options.out or (None if options.quick else kept)
    rows = []
    for name, cases in BENCHMARKS.items():
        if name in options.names:
            for case in cases():
                rows += run(case, options.device, options.quick)
        elif out is not None and out.exists():  # some were chosen: the others stay
            rows += [row for row in results.read(out) if row["benchmark"] == name]
    if out is not None:
        results.write(out, rows)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAMES", help=f"some of {', '.join(BENCHMARKS)}; default: all")
    add("--quick", action="store_true", help="three rounds, no memory, keeps nothing without --out")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--out", type=Path, help="default: benchmarks/results/DEVICE.csv")
    add(
        "--readme",
        nargs="?",
        type=Path,
        const=HERE.parent / "README.md",
        help="measure nothing: fill the table of this file (default: README.md) from the results",
    )
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; expected some of {', '.join(BENCHMARKS)}")
    options.names = options.names or list(BENCHMARKS)
    return options


def run(case: Case, device: str = "cpu", quick: bool = False) -> list[results.Row]:
    """All rows of a case."""
    print(f"\n{case.title}", flush=True)
    rounds = 3 if quick else ROUNDS
    errors = accuracy.check(case, device)
    seconds = timing.measure(case, rounds, device)
    peaks = {} if quick else {v: memory.peak(case, v, device) for v in case.variants}
    rows = results.rows(case, seconds, peaks, errors)
    print(results.table(rows), flush=True)
    return [row | {"rounds": str(rounds)} | machine.describe(device) for row in rows]


if __name__ == "__main__":
    main()
