"""Many runs as one: what G polygon auto-encoders trained together cost, against one alone.

``python -m benchmarks.replicas [--device cuda]``. The groups take turns, 64 steps each, so that
whatever else the machine does hits all of them; ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

from fspool.experiments.polygons import Polygons
from fspool.lab import trainer

from . import machine

RUNS, SIZES = 8, (4, 16)
RESULTS = Path(__file__).parent / "results"


def chunks(cell: Polygons, runs: int, device: torch.device) -> Iterator[float]:
    """Milliseconds for a step, chunk by chunk of a training."""
    seeds = range(runs)
    training = trainer.train(trainer.build(cell, seeds, device), cell, seeds, device)
    while True:
        began = time.perf_counter()
        next(training)  # ends by reading the loss, which waits for the device
        yield (time.perf_counter() - began) / trainer.CHUNK * 1e3


def compare(points: int, device: torch.device, rounds: int) -> dict:
    cell = Polygons(points=points, steps=trainer.CHUNK * trainer.RECORDS)
    groups = {runs: chunks(cell, runs, device) for runs in (1, RUNS)}
    for group in groups.values():  # the first chunk allocates, and records its CUDA graphs
        next(group)
    times = {runs: [] for runs in groups}
    for _ in range(rounds):
        for runs, group in groups.items():
            times[runs].append(next(group))
    alone, together = (median(times[runs]) for runs in groups)
    return {
        "points": points,
        "runs": RUNS,
        "ms_alone": round(alone, 3),
        "ms_together": round(together, 3),
        "ratio": round(together / alone, 2),
    }


def whole(points: int, runs: int, device: torch.device) -> dict:
    """Seconds of a whole training with the paper's settings, everything included."""
    cell, seeds = Polygons(points=points), range(runs)
    began = time.perf_counter()
    for _ in trainer.train(trainer.build(cell, seeds, device), cell, seeds, device):
        pass
    seconds = round(time.perf_counter() - began, 2)
    return {"points": points, "runs": runs, "steps": cell.steps, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replicas", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    device = torch.device(options.device)
    results = {
        "machine": machine.describe(options.device),
        "steps": [compare(n, device, options.rounds) for n in SIZES],
    }
    if device.type == "cuda":
        results["training"] = whole(16, 10, device)
    text = json.dumps(results, indent=1) + "\n"
    print(text)
    (RESULTS / f"replicas-{options.device}.json").write_text(text)


if __name__ == "__main__":
    main()
