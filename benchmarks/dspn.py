"""Training throughput of a network that predicts sets, beside the plain eager form of the same.

``python -m benchmarks.dspn [--device cuda] [--batch 32 64 128]``. Plain eager: inner steps by
``autograd.grad`` with ``create_graph``, all pairs as one tensor, FSPool by ``torch.sort``, scipy's
assignment on the host, float32, no CUDA graph. The package: as ``fspool run dspn`` trains, with
float32 and as the preset ``paper`` does, with bfloat16 maps and TF32 products.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from fspool.experiments.dspn import IDSPN, SetPrediction, cells
from fspool.experiments.dspn_data import load_pictured
from fspool.lab import trainer

from . import machine
from .baselines import plain_pool

RESULTS = Path(__file__).parent / "results"
SCENES = 2000  # pictures to draw batches from


class Plain:
    """The model of the package, trained as one would write it first."""

    def __init__(self, cell: SetPrediction, device: torch.device) -> None:
        torch.manual_seed(0)
        self.cell, self.device = cell, device
        self.model = cell.model().to(device)
        self.optimiser = torch.optim.Adam(self.model.parameters(), cell.learning_rate)

    def encode(self, x: Tensor) -> Tensor:
        encoder, n = self.model.sets.encoder, x.shape[1]
        one, other = x.unsqueeze(2).expand(-1, n, n, -1), x.unsqueeze(1).expand(-1, n, n, -1)
        pairs = torch.cat((one, other), -1).flatten(1, 2)
        out = encoder.second(encoder.first(pairs).relu()) / n**2
        if encoder.kind == "fspool":
            sizes = torch.full((len(x),), n * n, device=x.device)
            return plain_pool(out, encoder.pool.weight, sizes)
        return out.sum(1) if encoder.kind == "sum" else out.amax(1)

    def step(self, images: Tensor, true: Tensor) -> None:
        model, count = self.model, len(images)
        z = model.images(images)
        x = model.sets.start.expand(count, -1, -1)
        mask = model.sets.start_mask.clamp(0, 1).expand(count, -1, -1)
        for _ in range(self.cell.iterations):
            y = self.encode(torch.cat((x, mask), -1))
            distance = smooth_l1_loss(y, z)
            dx, dm = torch.autograd.grad(distance, (x, mask), create_graph=True)
            x, mask = x - 800 * dx, (mask - 800 * dm).clamp(0, 1)
        found = torch.cat((x, mask), -1)
        one, other = torch.broadcast_tensors(found.unsqueeze(2), true.unsqueeze(1))
        costs = smooth_l1_loss(one, other, reduction="none").mean(-1)
        pairs = [linear_sum_assignment(c) for c in costs.detach().cpu().numpy()]
        columns = torch.stack([torch.from_numpy(p[1]) for p in pairs]).to(self.device)
        loss = costs.gather(2, columns.unsqueeze(-1)).mean()
        loss = loss + 0.1 * smooth_l1_loss(self.encode(true), z)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()


def plain(cell: SetPrediction, device: torch.device) -> Callable[[], None]:
    """As many steps as the package does at once."""
    made, data = Plain(cell, device), cell._data("train", device)

    def chunk() -> None:
        for first in range(0, cell.batch * trainer.CHUNK, cell.batch):
            rows = torch.arange(first, first + cell.batch, device=device) % len(data.images)
            made.step(data.images[rows], data.sets[rows])
        _wait(device)

    return chunk


def package(cell: SetPrediction, device: torch.device) -> Callable[[], None]:
    torch.set_float32_matmul_precision(cell.matmul_precision)
    training: Iterator = trainer.train(trainer.build(cell, [0], device), cell, [0], device)
    return lambda: next(training)  # ends by reading the loss, which waits for the device


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def throughput(
    make: Callable, cell: SetPrediction, device: torch.device, rounds: int
) -> dict[str, float]:
    """Images in a second, the best of some chunks of steps; and the most memory."""
    torch.set_float32_matmul_precision("highest")
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    chunk = make(cell, device)
    chunk()  # allocates, and records CUDA graphs
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        chunk()
        seconds.append(time.perf_counter() - began)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
    rate = cell.batch * trainer.CHUNK / min(seconds)
    return {"images_per_second": round(rate, 1), "gib": round(memory, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dspn", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[32])
    parser.add_argument("--task", choices=["boxes", "states"], default="states")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="tiny pictures, to try it on a CPU")
    options = parser.parse_args()
    device = torch.device(options.device)
    preset = cells("quick" if options.tiny else "paper")[f"{options.task}-fspool"]
    if options.tiny:
        trainer.CHUNK = 2
    scenes = 32 if options.tiny else SCENES
    steps = trainer.CHUNK * trainer.RECORDS  # so that records are a chunk apart
    base = replace(preset, steps=steps, decay=0.0, scenes=scenes, learning_rate=1e-5)
    began = time.perf_counter()
    load_pictured(base.source, base.data, "train", base.scenes, base.size, base.task, device)
    _wait(device)
    rows = [{"pictures": base.scenes, "seconds": round(time.perf_counter() - began, 2)}]
    exact = {"precision": "float32", "tf32": False}
    ways = {
        "plain eager": (plain, exact),
        "fspool, float32": (package, exact),
        "fspool, as trained": (package, {}),
        "sum, as trained": (package, {"pool": "sum"}),
        "max, as trained": (package, {"pool": "max"}),
        "idspn, as trained": (package, IDSPN),
    }
    for batch in options.batch:
        for name, (make, changes) in ways.items():
            cell = replace(base, batch=batch, **changes)
            found = throughput(make, cell, device, options.rounds)
            rows.append({"batch": batch, "what": name} | found)
            print(json.dumps(rows[-1]), flush=True)
    results = {"machine": machine.describe(options.device), "task": options.task, "rows": rows}
    name = f"dspn-{options.device}{'-tiny' * options.tiny}.json"
    (RESULTS / name).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
