"""What a step of question answering costs: recorded and many runs as one, against plain eager.

``python -m benchmarks.clevr [--device cuda] [--pools fspool sum] [--profile]``. Questions are drawn
at random, as long as CLEVR's are. A step has everything in it: its batch is made, and all is
updated. From a step and a validation follow the minutes of the whole training, 350 epochs of 1094
steps. A way that cannot run here is named with its reason and left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from fspool.data.clevr.batches import Desk
from fspool.data.clevr.vocabulary import ANSWERS, OBJECTS, WORDS
from fspool.experiments.clevr import ClevrCell
from fspool.functional.lstm import lstm
from fspool.lab import trainer
from fspool.lab.tallies import Tallies

from . import machine
from .baselines import plain_pool

EPOCHS, LONGEST = 350, 43
RESULTS = Path(__file__).parent / "results"
WAYS = [("tf32", 1), ("tf32", 2), ("tf32", 5), ("bfloat16", 1), ("bfloat16", 2), ("bfloat16", 5)]


@dataclass(frozen=True, kw_only=True)
class Timed(ClevrCell):
    """Questions that were drawn at random, in place of those of a file."""

    def desk(self, split: str, device: torch.device) -> Desk:
        return _desk(self.questions if split == "train" else self.tried, str(device))


@lru_cache(maxsize=2)
def _desk(count: int, device: str) -> Desk:
    scenes = -(-count // 10)
    draw = torch.Generator().manual_seed(count)
    sizes = torch.randint(3, OBJECTS + 1, (scenes,), generator=draw)
    lengths = (20 + 7 * torch.randn(count, generator=draw)).round().clamp(6, LONGEST).long()
    lengths[0] = LONGEST
    words = torch.randint(1, len(WORDS) + 1, (count, LONGEST), generator=draw, dtype=torch.uint8)
    words *= torch.arange(LONGEST) >= LONGEST - lengths.unsqueeze(-1)
    features = torch.randn(scenes, OBJECTS, 7, generator=draw)
    scene = torch.arange(count) // 10
    answers = torch.randint(len(ANSWERS), (count,), generator=draw)
    return Desk(*(t.to(device) for t in (features, sizes, scene, words, lengths, answers)))


# --------------------------------------------------------------------------------------------------
# Ways to train


def chunks(cell: ClevrCell, runs: int, device: torch.device) -> Iterator[float]:
    """Milliseconds of a step, chunk by chunk of a training."""
    torch.set_float32_matmul_precision(cell.matmul_precision)
    seeds = range(runs)
    done = 0
    training = trainer.train(trainer.build(cell, seeds, device), cell, seeds, device)
    while True:
        began = time.perf_counter()
        state = next(training)  # ends by reading the loss, which waits for the device
        yield (time.perf_counter() - began) / (state.step - done) * 1e3
        done = state.step


class Plain(nn.Module):
    """As one would write it: cuDNN's LSTM, the question beside every object, a plain pool."""

    def __init__(self, cell: ClevrCell) -> None:
        super().__init__()
        width = cell.width
        self.embedding = nn.Embedding(len(WORDS) + 1, cell.embedding)
        self.lstm = nn.LSTM(cell.embedding, cell.hidden, batch_first=True)
        inputs = [7 + cell.hidden, *[width] * 3]
        self.g = nn.Sequential(*(m for n in inputs for m in (nn.Linear(n, width), nn.ReLU())))
        self.weight = nn.Parameter(torch.ones(width, cell.knots))
        self.f = nn.Sequential(
            *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2 * width)),
            *(nn.Dropout(cell.dropout), nn.ReLU(), nn.Linear(2 * width, len(ANSWERS))),
        )

    def forward(self, objects: Tensor, sizes: Tensor, words: Tensor) -> Tensor:
        question = self.lstm(self.embedding(words.int()))[1][0][0]
        objects = pad(objects, (0, 0, 0, 12 - objects.shape[1]))
        shown = question.unsqueeze(1).expand(-1, objects.shape[1], -1)
        x = self.g(torch.cat((objects, shown), -1))
        return self.f(plain_pool(x, self.weight, sizes) * 12)


def eager(cell: ClevrCell, device: torch.device, steps: int = 32) -> Iterator[float]:
    """The same in plain eager torch; batches are made before the clock starts."""
    torch.set_float32_matmul_precision(cell.matmul_precision)
    model = Plain(cell).to(device)
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, weight_decay=cell.decay)
    batches = [(b, int(b.start[0, 0])) for b in cell.batches([0], range(steps), device)]
    while True:
        _wait(device)
        began = time.perf_counter()
        for batch, start in batches:
            optimiser.zero_grad()
            scores = model(batch.objects[0], batch.sizes[0], batch.words[0, :, start:])
            cross_entropy(scores, batch.answers[0], ignore_index=-1).backward()
            nn.utils.clip_grad_norm_(model.parameters(), cell.clip)
            optimiser.step()
        _wait(device)
        yield (time.perf_counter() - began) / steps * 1e3


def validation(cell: ClevrCell, runs: int, device: torch.device) -> float:
    """Milliseconds of a count of all right answers."""
    torch.set_float32_matmul_precision(cell.matmul_precision)
    tallies = Tallies(trainer.build(cell, range(runs), device), cell, range(runs), device)
    times = []
    for _ in range(3):  # the first makes the trials and records
        _wait(device)
        began = time.perf_counter()
        tallies.after(cell.tally_every)
        _wait(device)
        times.append(time.perf_counter() - began)
    return min(times[1:]) * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# --------------------------------------------------------------------------------------------------
# The LSTM alone


def lstm_alone(cell: ClevrCell, runs: int, device: torch.device) -> float:
    """Milliseconds of the LSTM, there and back, replayed where there are graphs."""
    torch.set_float32_matmul_precision(cell.matmul_precision)
    width = cell.hidden
    x = torch.randn(runs, len(WORDS) + 1, 4 * width, device=device, requires_grad=True)
    weight = torch.randn(runs, 4 * width, width, device=device) / width**0.5
    weight = weight.to(torch.bfloat16 if cell.precision == "bfloat16" else torch.float32)
    weight.requires_grad_()
    batch = next(iter(cell.batches(range(runs), range(1), device)))

    def step() -> None:
        hidden = lstm(x, weight, words=batch.words, start=batch.start)[0]
        torch.autograd.grad(hidden.sum(), (x, weight))

    if device.type == "cuda":
        from fspool.lab.capture import Recorded

        step = Recorded(step)
    step()
    _wait(device)
    began = time.perf_counter()
    for _ in range(10):
        step()
    _wait(device)
    return (time.perf_counter() - began) * 100


# --------------------------------------------------------------------------------------------------


def measured(cell: ClevrCell, runs: int, device: torch.device, rounds: int) -> dict:
    group = chunks(cell, runs, device)
    next(group)  # it allocates, compiles and records
    step = median(next(group) for _ in range(rounds))
    trial = validation(cell, runs, device)
    minutes = EPOCHS * (cell.tally_every * step + trial) / 60e3
    return {
        "ms_step": round(step, 3),
        "ms_validation": round(trial, 1),
        "ms_lstm": round(lstm_alone(cell, runs, device), 3),
        "minutes": round(minutes, 2),
        "minutes_a_run": round(minutes / runs, 2),
    }


def profile(cell: ClevrCell, device: torch.device) -> str:
    """Where the time of a step goes, kernel by kernel."""
    group = chunks(cell, 1, device)
    next(group)
    with torch.profiler.profile() as found:
        next(group)
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    return found.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=80)


def attempt(name: str, function, *arguments) -> dict | None:
    try:
        found = function(*arguments)
    except Exception as problem:
        print(f"{name}: {(str(problem).splitlines() or [type(problem).__name__])[0]}", flush=True)
        return None
    print(f"{name}: {found}", flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clevr", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pools", nargs="+", default=["fspool"])
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--profile", action="store_true", help="only show where the time goes")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/clevr-DEVICE.json")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    small = {"questions": 2560, "tried": 640, "hidden": 32, "width": 32, "batch": 64, "epochs": 40}
    base = small if options.tiny else {}
    if options.profile:
        for precision in ("tf32", "bfloat16"):
            print(profile(Timed(precision=precision, **base), device))
        return
    rows = []
    for pool in options.pools:
        for precision, runs in WAYS:
            cell = Timed(pool=pool, precision=precision, **base)
            name = f"{pool}, {precision}, {runs} runs"
            if found := attempt(name, measured, cell, runs, device, options.rounds):
                rows.append({"pool": pool, "precision": precision, "runs": runs} | found)
    cell, pause = Timed(precision="tf32", **base), 2 if options.tiny else 32
    plain = eager(cell, device, pause)
    next(plain)
    step = round(median(next(plain) for _ in range(options.rounds)), 3)
    minutes = round(EPOCHS * cell.tally_every * step / 60e3, 2)
    print(f"plain eager, tf32, without validation: {step} ms a step, {minutes} minutes")
    results = {
        "machine": machine.describe(options.device),
        "ways": rows,
        "plain": {"ms_step": step, "minutes_without_validation": minutes},
    }
    out = options.out or RESULTS / f"clevr-{options.device}.json"
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
