"""Graphs: what a step of many trainings costs, and the protocol of the paper; the packed readout.

``python -m benchmarks.graphs --data DIR [--device cpu]``, with the archives in DIR/tu. A step is
timed as the laboratory makes it, batches and all. Runs of one shape train as one: all folds and
repeats of both dropouts. What there was no time for is left out, and said.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from fspool.data import tu
from fspool.data.files import find_root
from fspool.experiments.folds import FOLDS, RUNS
from fspool.experiments.graph_tables import BASES, BIO, PAPER
from fspool.experiments.graphs import GraphCell, grid
from fspool.functional import fspool
from fspool.lab import trainer
from fspool.lab.capture import Recorded
from fspool.lab.launch import group_size
from fspool.lab.several import Several

from . import machine, timing
from .baselines import plain_pool
from .case import Case, Inputs, Variant

RESULTS = Path(__file__).parent / "results"
SETS = ("MUTAG", "NCI1", "REDDIT-MULTI-5K", "PROTEINS")
ONE_REPEAT = ("REDDIT-BINARY", "REDDIT-MULTI-5K", "COLLAB")  # in ten of them is no sense in a day
CHUNKS = 2  # of 64 steps that are timed
KERNELS = 14  # of a step that are shown


class Quiet(GraphCell):
    """A step alone: what is counted after an epoch is timed by itself."""

    tallies: ClassVar[tuple[str, ...]] = ()


# --------------------------------------------------------------------------------------------------
# Steps


def runs_of(dataset: str) -> int:
    """Trainings of one shape."""
    return 2 * (FOLDS if dataset in ONE_REPEAT else RUNS)


def cells_of(dataset: str, readout: str, data: str) -> list[GraphCell]:
    """One for each shape: by width and batch."""
    found = grid(readout, dataset, (0.5,), readout=readout).values()
    return [replace(cell, data=data) for cell in found]


def bundle(cell: GraphCell, runs: int) -> tuple[Several, list[int]]:
    """So many trainings as one, half of them without dropout; and their seeds."""
    half = runs // 2
    cells = [Quiet(**{**vars(replace(cell, dropout=p)), "steps": 0}) for p in (0.0, 0.5)]
    return Several(cells, [half, runs - half]), [*range(half), *range(runs - half)]


def chunks(cell: Several, model, seeds: list[int], device: torch.device) -> Iterator[float]:
    """Seconds of a step, chunk by chunk; each ends by reading the loss: all of it is done."""
    training, done = trainer.train(model, cell, seeds, device), 0
    while True:
        began = time.perf_counter()
        state = next(training, None)
        if state is None:
            return
        yield (time.perf_counter() - began) / (state.step - done)
        done = state.step


def measure(cell: GraphCell, runs: int, device: torch.device, shown: bool) -> dict:
    """Milliseconds of a step and of a count, the best of few: the machine does other things too."""
    began = time.perf_counter()
    cells, seeds = bundle(cell, runs)
    torch.set_float32_matmul_precision(cell.matmul_precision)
    model = trainer.build(cells, seeds, device)
    steps = chunks(cells, model, seeds, device)
    first = next(steps)  # compiles, and records its graphs
    times = [next(steps, first) for _ in range(CHUNKS)]
    row = {
        "dataset": cell.dataset,
        "readout": cell.readout,
        "width": cell.width,
        "batch": cell.batch,
        "runs": runs,
        "ms_step": round(min(times) * 1e3, 3),
        "ms_count": round(count(cell, model, seeds, device) * 1e3, 3),
    }
    if device.type == "cuda":
        row["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        torch.cuda.reset_peak_memory_stats()
        if shown:
            row |= kernels(steps)
    print(json.dumps({k: v for k, v in row.items() if k != "kernels"}), flush=True)
    for name, share in row.get("kernels", {}).items():
        print(f"    {share:6.1%}  {name}", flush=True)
    print(f"    ({time.perf_counter() - began:.1f} s)", flush=True)
    return row


def count(cell: GraphCell, model, seeds: list[int], device: torch.device) -> float:
    """Seconds of a look at validation and test."""
    model.eval()
    with torch.no_grad():
        trials = cell.trials(seeds, device)
        look = Recorded(lambda: cell.tally(model, trials)) if device.type == "cuda" else None
        return min(_timed(look or (lambda: cell.tally(model, trials)), device) for _ in range(3))


def _timed(go, device: torch.device) -> float:
    began = time.perf_counter()
    go()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def kernels(steps: Iterator[float]) -> dict:
    """What the device does in a chunk: launches of a step, its busy time, the largest shares."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        wall = next(steps)
    rows = [event for event in seen.key_averages() if event.self_device_time_total]
    busy = sum(event.self_device_time_total for event in rows)
    rows.sort(key=lambda event: -event.self_device_time_total)
    return {
        "ms_busy": round(busy / trainer.CHUNK / 1e3, 3),
        "ms_profiled": round(wall * 1e3, 3),
        "launches": round(sum(event.count for event in rows) / trainer.CHUNK),
        "kernels": {
            f"{event.key[:70]} x{event.count / trainer.CHUNK:g}": event.self_device_time_total
            / busy
            for event in rows[:KERNELS]
        },
    }


# --------------------------------------------------------------------------------------------------
# The readout


def readouts(data: str, batch: int, device: str, rounds: int) -> dict:
    """Packed, beside padding to the largest graph and sorting: forward and backward.

    The largest of the batch, and the largest of the set, which a shape for all batches needs; what
    the padding itself costs is not counted.
    """
    graphs = tu.load(find_root(data), "REDDIT-MULTI-5K")
    sizes = graphs.offsets.diff()
    longest = int(sizes.max())

    def make(shape: tuple, layout: str, generator: torch.Generator) -> Inputs:
        order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(batch))
        own = sizes[order[:batch]].to(device)
        rows, largest = int(own.sum()), int(own.max()) if layout == "batch" else longest
        lead = (rows,) if layout == "packed" else (batch, largest)
        x = torch.randn(*lead, shape[1], generator=generator, device=device)
        weight = torch.randn(shape[1], 5, generator=generator, device=device)
        upstream = torch.randn(batch, shape[1], generator=generator, device=device)
        offsets = torch.nn.functional.pad(own.cumsum(0), (1, 0))
        given = {"offsets": offsets} if layout == "packed" else {"sizes": own}
        return Inputs({"x": x, "weight": weight}, given, (upstream,))

    def packed(x: Tensor, weight: Tensor, offsets: Tensor) -> tuple[Tensor]:
        return (fspool(x, weight, offsets=offsets),)

    def padded(x: Tensor, weight: Tensor, sizes: Tensor) -> tuple[Tensor]:
        return (plain_pool(x, weight, sizes),)

    variants = (
        Variant("fspool", packed, "packed"),
        *(Variant("plain", padded, layout) for layout in ("batch", "set")),
    )
    case = Case("graphs", (batch, 64, longest), make, variants, padded, 1e-5, brief=True)
    seconds = timing.measure(case, rounds, device)[0]
    found = {variant.layout: seconds[variant] for variant in variants}
    row = {"graphs": batch} | {f"ms_{name}": round(s * 1e3, 3) for name, s in found.items()}
    for name in ("batch", "set"):
        row[f"times_faster_than_{name}"] = round(found[name] / found["packed"], 1)
    print(json.dumps(row), flush=True)
    return row


# --------------------------------------------------------------------------------------------------
# The protocol


def minutes(dataset: str, readout: str, rows: list[dict], data: str, device) -> tuple[float, bool]:
    """Of all trainings of one model, and whether its own steps were measured.

    The steps of a set that was not measured are those of another one of its kind, and take longer
    as it has more nodes, or features, in a batch.
    """
    total, own = 0.0, True
    for cell in cells_of(dataset, readout, data):
        row, scale = _nearest(cell, rows)
        own &= scale == 1
        bundles = math.ceil(runs_of(dataset) / min(runs_of(dataset), group_size(cell, device)))
        share = runs_of(dataset) / bundles / row["runs"]
        epoch = cell.tally_every * row["ms_step"] * scale + row["ms_count"] * _trials(cell, row)
        total += bundles * cell.epochs * epoch * share
    return total / 60e3, own


def _nearest(cell: GraphCell, rows: list[dict]) -> tuple[dict, float]:
    """A measured step, and what its time is to be multiplied with."""

    def load(name: str, width: int, batch: int) -> float:
        counts = tu.SOURCES[name].counts
        return batch * counts.nodes / counts.graphs * width

    def distance(row: dict) -> tuple:
        kind = (row["dataset"] in BIO) != (cell.dataset in BIO)
        other = row["dataset"] != cell.dataset, row["readout"] != cell.readout
        return *other, kind, row["width"] != cell.width, row["batch"] != cell.batch, -row["runs"]

    row = min(rows, key=distance)
    scale = load(cell.dataset, cell.width, cell.batch) / load(
        row["dataset"], row["width"], row["batch"]
    )
    return row, scale


def _trials(cell: GraphCell, row: dict) -> float:
    """How much more there is to look at than in the count that was measured."""
    nodes = tu.SOURCES[cell.dataset].counts.nodes / tu.SOURCES[row["dataset"]].counts.nodes
    return nodes * cell.width / row["width"]


# --------------------------------------------------------------------------------------------------


def plan(options: argparse.Namespace) -> list[tuple[str, str, int, int, bool]]:
    """Set, readout, place among the shapes, runs, profiled? The most wanted first."""
    found = []
    for name in options.sets:
        runs = options.runs or runs_of(name)
        last = len(cells_of(name, "fspool", options.data)) - 1
        found.append((name, "fspool", last, runs, True))
    for name in options.sets:
        runs = options.runs or runs_of(name)
        last = len(cells_of(name, "fspool", options.data)) - 1
        found += [(name, BASES[name], last, runs, False), (name, "fspool", 0, runs, False)]
    for name in options.sets:  # is a larger bundle worth it?
        runs = options.runs or runs_of(name)
        last = len(cells_of(name, "fspool", options.data)) - 1
        found += [(name, "fspool", last, max(2, runs // 4), False)]
        found += [(name, "fspool", place, runs, False) for place in range(1, last)]
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graphs", description=__doc__)
    add = parser.add_argument
    add("--data", default="data")
    add("--device", choices=["cpu", "cuda"])
    add("--sets", nargs="+", default=list(SETS), choices=list(tu.SOURCES), metavar="SET")
    add("--runs", type=int, help="default: those of the protocol")
    add("--epochs", type=int, help="for a trial; default: those of the paper")
    add("--seconds", type=float, default=130, help="after which nothing new is begun")
    add("--out", type=Path, help="default on CUDA: benchmarks/results/graphs-cuda.json")
    options = parser.parse_args(arguments)
    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device, began = torch.device(name), time.perf_counter()

    def late() -> bool:
        return time.perf_counter() - began > options.seconds

    results: dict = {"machine": machine.describe(name), "readout": [], "steps": [], "left_out": []}
    if "REDDIT-MULTI-5K" in options.sets:
        rounds = 5 if name == "cuda" else 1
        results["readout"] = [readouts(options.data, b, name, rounds) for b in (32, 100)]
    for dataset, readout, place, runs, shown in plan(options):
        cell = cells_of(dataset, readout, options.data)[place]
        if options.epochs:
            cell = replace(cell, epochs=options.epochs)
        if late():
            results["left_out"].append([dataset, readout, cell.width, cell.batch, runs])
            continue
        results["steps"].append(measure(cell, runs, device, shown))
        gc.collect()
        if name == "cuda":
            torch.cuda.empty_cache()
    results["minutes"] = {
        f"{readout} {dataset}": minutes(dataset, readout, results["steps"], options.data, device)
        for dataset in (PAPER if results["steps"] else ())
        for readout in ("fspool", BASES[dataset])
    }
    report(results, began)
    out = options.out or (RESULTS / "graphs-cuda.json" if name == "cuda" else None)
    if out:
        out.write_text(json.dumps(results, indent=1) + "\n")


def report(results: dict, began: float) -> None:
    print("\nminutes of all trainings of a model (one repeat of RDT and COLLAB, ten of the others)")
    for name, (value, own) in results["minutes"].items():
        print(f"{value:8.1f}  {name}{'' if own else ', scaled from another set or shape'}")
    for row in results["left_out"]:
        print("left out for want of time:", *row)
    print(f"({time.perf_counter() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
