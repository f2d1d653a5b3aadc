"""The training loop: a group of runs, from the first step to their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..checks import UserError
from ..data.draws import seed_of
from . import parallel
from .capture import Recorder, Steps
from .cell import Cell, Chunk
from .provenance import describe
from .replicas import select, stack
from .runs import RunFolder, State
from .several import Several, join, part_of, part_of_record
from .tallies import Tallies, tallies_of

CHUNK = 64  # steps, at least, between two records of the loss, and two looks at the clock
BLOCK = 16  # of them in one graph
RECORDS = 1024  # about as many as a long run has


def build(cell: Cell, seeds: Sequence[int], device: torch.device) -> nn.Module:
    """One model of all runs; each has the initial weights that its seed alone decides."""
    models = []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(seed, "weights"))
            models.append(cell.model().to(cell.torch_dtype))
    model = stack(models).to(device)
    cell.begin(model, seeds)
    return model


def train(
    model: nn.Module,
    cell: Cell,
    seeds: Sequence[int],
    device: torch.device,
    state: State | None = None,
) -> Iterator[State]:
    """Train the model; after every chunk yield where it stands, in tensors that go on changing."""
    optimiser = make_optimiser(model, cell, device)
    tallies = Tallies(model, cell, seeds, device)
    tensors = live_tensors(model, optimiser) | tallies.tensors
    state = state or State()
    _check_fit(state, tensors)
    for name, value in state.tensors.items():
        tensors[name].copy_(value)
    parallel.make_same(list(tensors.values()))
    team = parallel.team()
    total = torch.zeros(len(seeds), dtype=cell.torch_dtype, device=device)

    def forward(batch) -> Tensor:
        return cell.output(model, batch)

    def update(output: Tensor, batch, matched: Tensor | None) -> None:
        optimiser.zero_grad()
        losses = cell.loss(output, batch, matched)
        losses.sum().backward()  # runs do not share parameters: each gets its own gradient
        parameters = [p for p in model.parameters() if p.grad is not None]
        parallel.add_up([p.grad for p in parameters])
        if cell.largest_gradient is not None:
            cut_gradients(parameters, cell.largest_gradient)
        optimiser.step()
        total.add_(losses.detach())

    on_graphs = device.type == "cuda" and cell.recordable
    kind = Recorder if on_graphs else Steps
    recorder = kind(forward, cell.match, update, [*tensors.values(), total])
    curve, begin, rate = list(state.curve), state.step, None
    while begin < cell.steps:
        steps = range(begin, _chunk_end(cell, begin))
        for piece, batches in _pieces(cell, seeds, steps, device, recorder):
            cell.adjust(model, piece[0])
            if cell.rate(piece[0]) != rate:
                rate = cell.rate(piece[0])
                set_rate(optimiser, rate)
            if isinstance(batches, Chunk):
                recorder.block(batches)
            else:
                recorder.step(batches if team.size == 1 else cell.share(batches, *team))
            tallies.after(piece.stop)
        parallel.add_up([total])
        curve.append({"step": steps.stop, "loss": (total / len(steps)).tolist()})
        total.zero_()
        if steps.stop in cell.milestones:
            curve[-1]["metrics"] = _probe(model, cell, seeds, device, steps.stop)
        yield State(steps.stop, tensors, curve)
        begin = steps.stop


def _pieces(
    cell: Cell, seeds: Sequence[int], steps: range, device: torch.device, recorder: Steps
) -> Iterator[tuple[range, Any]]:
    """The batches of these steps: as blocks where they can be one graph, else one by one."""
    batches = cell.batches(seeds, steps, device)
    if isinstance(batches, Tensor):
        batches = Chunk(batches)
    if not isinstance(batches, Chunk):
        yield from ((range(n, n + 1), batch) for n, batch in zip(steps, batches, strict=True))
        return
    each, first = batches.each(), 0
    while first < len(steps):
        block = steps[first : first + BLOCK]
        if recorder.takes_blocks and len(block) == BLOCK and _is_quiet(cell, block):
            yield block, batches.part(first, first + BLOCK)
            first += BLOCK
        else:
            yield steps[first : first + 1], each[first]
            first += 1


def _is_quiet(cell: Cell, steps: range) -> bool:
    """Nobody wants to write or to count anything between these steps."""
    counted = bool(cell.tallies) and steps[0] // cell.tally_every != steps[-1] // cell.tally_every
    steady = all(cell.rate(step) == cell.rate(steps[0]) for step in steps)
    return steady and not counted and not cell.adjusts


def _check_fit(state: State, tensors: dict[str, Tensor]) -> None:
    """Is a state one of this model? That of another version of it may not be."""
    if not state.step:
        return
    for name in sorted(tensors.keys() | state.tensors.keys()):
        there, here = state.tensors.get(name), tensors.get(name)
        if there is None or here is None or there.shape != here.shape or there.dtype != here.dtype:
            raise UserError(
                f"the saved state of step {state.step} does not fit the model in {name}; it is of "
                "another version, so remove it, or choose another --out."
            )


def _chunk_end(cell: Cell, begin: int) -> int:
    """The steps that are done in one go end where somebody wants to look at the model."""
    chunk = max(CHUNK, cell.steps // RECORDS)
    return min([begin + chunk, cell.steps, *(m for m in cell.milestones if m > begin)])


@torch.no_grad()
def _probe(model: nn.Module, cell: Cell, seeds, device, step: int) -> dict[str, list[float]]:
    metrics = cell.probe(model.eval(), seeds, device, step)
    model.train()
    return metrics


def make_optimiser(model: nn.Module, cell: Cell, device: torch.device) -> torch.optim.Adam | None:
    """Adam, with its state in place from the start so that it can be written over."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        return None
    cuda = device.type == "cuda"
    # A tensor can be written while a step is a recorded graph.
    rate = torch.tensor(cell.learning_rate, device=device) if cuda else cell.learning_rate
    optimiser = torch.optim.Adam(parameters, rate, fused=True, capturable=cuda)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()  # with no gradient nothing moves
    for values in optimiser.state.values():
        for value in values.values():
            value.zero_()
    for group in optimiser.param_groups:
        group["weight_decay"] = cell.weight_decay
    return optimiser


def cut_gradients(parameters: Sequence[nn.Parameter], largest: float) -> None:
    """Every run's gradient, of all its parameters together, to this norm where it is longer."""
    norms = torch.cat([p.grad.flatten(1) for p in parameters], 1).norm(dim=1)
    if len(norms) == 1:
        nn.utils.clip_grads_with_norm_(parameters, largest, norms[0])
        return
    factors = (largest / (norms + 1e-6)).clamp(max=1)
    for p in parameters:
        p.grad.mul_(factors.view(-1, *[1] * (p.ndim - 1)))


def set_rate(optimiser: torch.optim.Adam, rate: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def live_tensors(model: nn.Module, optimiser) -> dict[str, Tensor]:
    """All that training changes, by name."""
    tensors = {f"model.{name}": value.detach() for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser.{name}.{key}"] = value
    return tensors


class Run(NamedTuple):
    """Some seeds of a cell, and the claimed folder that they are to be brought to a result in."""

    cell: Cell
    seeds: Sequence[int]
    folder: RunFolder
    state: State  # where they stand
    report: Callable[[int, list[float] | None], None] = lambda step, loss: None


def run(
    cell: Cell,
    seeds: Sequence[int],
    device: torch.device,
    folder: RunFolder,
    report: Callable[[int, list[float] | None], None] = lambda step, loss: None,
    *,
    save_every: float = 10.0,
) -> None:
    """Bring a claimed run folder to its result, from wherever it stands."""
    one = Run(cell, seeds, folder, folder.restore() or State(), report)
    run_together([one], device, save_every=save_every)


def run_together(runs: Sequence[Run], device: torch.device, *, save_every: float = 10.0) -> None:
    """Bring runs of cells that are alike, and that have come equally far, to their results."""
    began, saved, clock = time.perf_counter(), time.monotonic(), time.time()
    cell = Several([run.cell for run in runs], [len(run.seeds) for run in runs])
    seeds = [seed for run in runs for seed in run.seeds]
    parts = [part for _, part in cell.parts]
    torch.set_float32_matmul_precision(cell.matmul_precision)
    model = build(cell, seeds, device)
    state = join([run.state for run in runs])
    first = done = state.step
    paces, mark = [], time.perf_counter()  # seconds of a step, chunk by chunk
    for state in train(model, cell, seeds, device, state):  # noqa: B020 - from the last one on
        paces.append((time.perf_counter() - mark) / (state.step - done))
        # The last state too: an evaluation that is killed need not train again.
        due = state.step == cell.steps or time.monotonic() - saved >= save_every
        for run, part in zip(runs, parts, strict=True):
            record = part_of_record(state.curve[-1], part)
            run.folder.log(record)
            run.report(state.step, record["loss"])
            if due:
                worked = [*run.state.clock, [clock, time.time()]]
                run.folder.save(replace(part_of(state, part), clock=worked))
        saved = time.monotonic() if due else saved
        done, mark = state.step, time.perf_counter()
    training = (time.perf_counter() - began) / len(seeds)
    for run, part in zip(runs, parts, strict=True):
        notes = {"steps": [first, state.step], "clock": [*run.state.clock, [clock]]}
        notes["seconds"] = {"training": training * len(run.seeds)}  # shared out by runs
        if paces:
            notes["step_seconds"] = median(paces)  # of all runs together
        _finish(run, select(model, part), part_of(state, part), describe(device) | notes, device)


def _finish(
    run: Run, model: nn.Module, state: State, provenance: dict, device: torch.device
) -> None:
    """Evaluate, and write the result."""
    began = time.perf_counter()
    run.report(state.step, None)
    with torch.no_grad():
        evaluation = run.cell.evaluate(model.eval(), run.seeds, device)
    for record in state.curve:
        evaluation.metrics.update(record.get("metrics", {}))
    evaluation.arrays.update(tallies_of(state.tensors))
    provenance["seconds"]["evaluation"] = time.perf_counter() - began
    provenance["clock"][-1].append(time.time())
    provenance |= {"places": run.cell.places()} if run.cell.places() else {}
    provenance |= run.cell.origins(run.seeds)
    run.folder.finish(model.state_dict(), evaluation, state.curve, provenance)
