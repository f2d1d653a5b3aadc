"""The one runner: check, time, measure memory, print, keep."""

from __future__ import annotations

import argparse
import gc
import traceback
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

from . import (
    accuracy,
    chamfer,
    cold,
    floor,
    machine,
    memory,
    page,
    plot,
    pool,
    relaxed_sort,
    results,
    sweep,
    tables,
    timing,
    warm,
)
from .case import Case

BENCHMARKS = {
    "pool": pool.cases,
    "relaxed_sort": relaxed_sort.cases,
    "chamfer": chamfer.cases,
    "sweep": sweep.cases,
}
COLD = "cold"  # not of cases: it has a file of its own
NAMES = {"cpu": ["pool", "relaxed_sort", "chamfer"], "cuda": [*BENCHMARKS, COLD]}
PAGES = {"cpu": ["README.md"], "cuda": ["README.md", "docs/speed.md"]}  # that have tables
HERE = Path(__file__).parent
ROUNDS, BRIEF, QUICK = 11, 5, 3


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    kept = HERE / "results" / f"{options.device}.csv"
    if options.readme is not None:
        return write_tables(options.readme, options.device, kept)
    if options.plot:
        return plot.draw(results.read(kept), options.plot)
    out = options.out or (None if options.quick else kept)
    failed = measure(options, out)
    if COLD in options.names:
        cold.run(out and out.with_name(f"cold-{options.device}.json"))
    if failed:
        raise SystemExit(f"failed: {'; '.join(failed)}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    known = ", ".join(NAMES["cpu"])
    on_cuda = " and ".join(name for name in NAMES["cuda"] if name not in NAMES["cpu"])
    add("names", nargs="*", metavar="NAMES", help=f"of {known}, on CUDA {on_cuda}; default: all")
    add("--quick", action="store_true", help="three rounds, no memory, keeps nothing without --out")
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--out", type=Path, help="default: benchmarks/results/DEVICE.csv")
    add(
        "--readme",
        nargs="*",
        metavar="FILE",
        type=Path,
        help=f"measure nothing: fill the tables of these files from the results; default: "
        f"{PAGES['cpu'][0]}, on CUDA {' and '.join(PAGES['cuda'])}",
    )
    add(
        "--plot",
        nargs="?",
        type=Path,
        const=plot.PICTURE,
        help="measure nothing: draw time against N to this file from the results",
    )
    options = parser.parse_args(arguments)
    names = NAMES[options.device]
    unknown = [name for name in options.names if name not in names]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; expected some of {', '.join(names)}")
    options.names = options.names or names
    return options


def write_tables(paths: list[Path], device: str, kept: Path) -> None:
    """Fill the blocks of these files, or of those that the repository has."""
    rows = results.read(kept)
    if not rows:
        raise SystemExit(f"there are no results of {device} yet; run python -m benchmarks first.")
    made = {f"bench:{device}": tables.markdown(rows)}
    if device == "cuda":
        made |= page.tables(rows, cold.read(kept.with_name(f"cold-{device}.json")))
    for path in paths or [HERE.parent / name for name in PAGES[device]]:
        tables.fill(path, made)


def measure(options: argparse.Namespace, out: Path | None) -> list[str]:
    """Run the chosen benchmarks, and keep every case when it is done: a run that is killed has
    what it has. Gives back the titles of cases that failed."""
    before = [] if out is None else results.read(out)
    chosen = {n: make(options.device) for n, make in BENCHMARKS.items() if n in options.names}
    new, finished, failed = {name: [] for name in chosen}, set(), []
    if options.device == "cuda":
        warm.up([case for cases in chosen.values() for case in cases])

    def keep() -> None:
        if out is not None:
            results.write(out, results.merge(list(BENCHMARKS), before, new, finished))

    for name, cases in chosen.items():
        for case in cases:
            try:
                new[name] += run(case, options.device, options.quick)
            except (Exception, SystemExit) as problem:
                report(problem)
                failed.append(case.title)
            keep()
            release(options.device)
        finished.add(name)
        keep()
    return failed


def run(case: Case, device: str = "cpu", quick: bool = False) -> list[results.Row]:
    """All rows of a case."""
    print(f"\n{case.title}", flush=True)
    start = perf_counter()
    rounds = QUICK if quick else BRIEF if case.brief else ROUNDS
    errors = accuracy.check(case, device)
    case = replace(case, variants=tuple(v for v in case.variants if v in errors or v.name == "sum"))
    peaks = {}
    if not (quick or case.brief):
        peaks = {v: memory.peak(case, v, device) for v in case.variants}
    seconds, eager = timing.measure(case, rounds, device)
    floors = floor.seconds(case) if device == "cuda" else {}
    rows = results.rows(case, seconds, peaks, errors, eager, floors)
    print(f"{tables.table(rows)}\n({perf_counter() - start:.1f} s)", flush=True)
    return [row | {"rounds": str(rounds)} | machine.describe(device) for row in rows]


def report(problem: BaseException) -> None:
    """The reason where the package is wrong, the whole story of anything else."""
    wrong = isinstance(problem, SystemExit)
    print(problem if wrong else "".join(traceback.format_exception(problem)), flush=True)


def release(device: str) -> None:
    """The next case finds the memory empty."""
    gc.collect()
    if device == "cuda":
        torch.compiler.reset()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
