"""From cells to finished run folders: what is left to do, in which groups, on which processes."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import current_thread, main_thread
from typing import NamedTuple

import torch

from ..checks import UserError, nearest
from ..processes import end_with_parent
from ..storage import Damaged, read_json
from . import parallel, trainer
from .cell import Cell
from .runs import (
    FORMAT,
    NoFolder,
    RunFolder,
    State,
    bears,
    differing,
    folder_name,
    mark_of,
    other_configuration,
    seeds_of,
)
from .tensorboard import writer

ROOM = {"cpu": 1 << 20, "cuda": 1 << 28}  # numbers in the largest tensor of a group
STORAGE_ERRORS = {
    getattr(errno, name)
    for name in "ENOSPC EDQUOT EFBIG EIO EROFS EACCES EPERM EEXIST ENOTDIR EISDIR".split()
}


@dataclass(frozen=True)
class Job:
    """A group of seeds of one cell, to be brought to a result in one run folder."""

    experiment: str
    name: str
    cell: Cell
    seeds: tuple[int, ...]
    path: Path

    @property
    def label(self) -> str:
        first, last = self.seeds[0], self.seeds[-1]
        return f"{self.name} ({f'seed {first}' if first == last else f'seeds {first}-{last}'})"

    @property
    def config(self) -> dict:
        return {
            "format": FORMAT,
            "experiment": self.experiment,
            "cell": self.cell.settings(),
            "seeds": list(self.seeds),
        }

    @property
    def finished(self) -> bool:
        """Is there a result of just this configuration? Looks, and changes nothing."""
        config, result = (_look(self.path / name) for name in ("config.json", "result.json"))
        if config is None or result is None or differing(config, self.config):
            return False
        return bears(result, mark_of(config))


@dataclass(frozen=True)
class Options:
    """How jobs are run; none of it changes a result."""

    device: str = "cpu"
    threads: int = 1
    save_every: float = 10.0
    overwrite: bool = False
    tensorboard: bool = False
    patience: float | None = None  # seconds that others get to let go of a folder


class Event(NamedTuple):
    """What a job tells the display. ``kind``: start, step, evaluate, done, failed, say."""

    job: Job
    kind: str
    step: int = 0
    loss: float | None = None
    text: str = ""


def find_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, index = name.partition(":")
    kind = nearest("device", kind, ("auto", "cpu", "cuda"))
    if colon and not (kind == "cuda" and index.isdecimal()):
        raise UserError(f"device is {name!r}; expected auto, cpu, cuda or, say, cuda:0.")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise UserError(
            f"device is {name!r}, but torch sees {found or 'no'} CUDA device{'s' * (found > 1)}; "
            "pass --device cpu."
        )
    return torch.device(name)


def group_size(cell: Cell, device: torch.device) -> int:
    """How many runs to train as one: as many as the cache, or the device, has room for."""
    return max(1, ROOM[device.type] // cell.footprint)


def jobs_of(
    experiment: str, name: str, cell: Cell, count: int, out: Path, device: torch.device
) -> list[Job]:
    """Seeds 0 to count - 1. Groups that were begun stay together; the rest is divided anew."""
    folder = out / name
    begun = [seeds_of(path) for path in sorted(folder.iterdir())] if folder.is_dir() else []
    groups = [tuple(seeds) for seeds in begun if seeds]
    taken = {seed for seeds in groups for seed in seeds}
    count = min(count, cell.most_runs or count)
    rest = [seed for seed in range(count) if seed not in taken]
    for block in _neighbours(rest):
        pieces = math.ceil(len(block) / group_size(cell, device))
        cuts = [round(i * len(block) / pieces) for i in range(pieces + 1)]
        groups += [tuple(block[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
    return [
        Job(experiment, name, cell, seeds, folder / folder_name(list(seeds)))
        for seeds in groups
        if seeds[0] < count
    ]


def _neighbours(seeds: list[int]) -> list[list[int]]:
    blocks: list[list[int]] = []
    for seed in seeds:
        if blocks and blocks[-1][-1] == seed - 1:
            blocks[-1].append(seed)
        else:
            blocks.append([seed])
    return blocks


def refuse_others(jobs: list[Job]) -> None:
    """Before anything is written: a folder with runs of other settings is refused as a whole."""
    for job in jobs:
        found = _look(job.path / "config.json")
        if found is not None and (difference := differing(found, job.config)):
            raise UserError(other_configuration(job.path, difference))


def _look(path: Path) -> dict | None:
    try:
        return read_json(path)
    except (Damaged, OSError):
        return None


def bundles(jobs: list[Job], device: torch.device) -> list[list[Job]]:
    """Jobs to train as one, on CUDA: a step of many runs takes hardly longer than one of few."""
    if device.type != "cuda":
        return [[job] for job in jobs]
    alike: dict[tuple, list[Job]] = {}
    for job in jobs:
        alike.setdefault(job.cell.likeness(), []).append(job)
    found = []
    for group in alike.values():
        room = 0
        for job in group:
            if room < len(job.seeds):
                found.append([])
                room = group_size(job.cell, device)
            found[-1].append(job)
            room -= len(job.seeds)
    return found


def perform(jobs: Sequence[Job], options: Options, post: Callable[[Event], None]) -> list[Job]:
    """Bring jobs that are alike to their results, trained as one; return those that failed."""
    failed: list[Job] = []
    with ExitStack() as held:
        runs = {job: run for job in jobs if (run := _join(job, options, post, held, failed))}
        runs = _abreast(runs) if parallel.team().size == 1 else runs
        for step in sorted({run.state.step for run in runs.values()}):
            together = {job: run for job, run in runs.items() if run.state.step == step}
            failed += _train(together, options, post)
    return failed


def _abreast(runs: dict[Job, trainer.Run]) -> dict[Job, trainer.Run]:
    """Killed between two saves, some are a state ahead: the others would train without them."""
    if len({run.state.step for run in runs.values()}) < 2:
        return runs
    common = set.intersection(*(run.folder.saved_steps() for run in runs.values()))
    if not common:
        return runs
    last = max(common)
    return {
        job: run._replace(state=run.folder.restore(last) or State()) for job, run in runs.items()
    }


def _join(
    job: Job, options: Options, post: Callable[[Event], None], held: ExitStack, failed: list[Job]
) -> trainer.Run | None:
    """The first process takes the job's folder; the others follow it."""
    run = None
    if parallel.team().rank == 0:
        run = _claim(job, options, post, held, failed)
    step = parallel.agreed(run.state.step if run else None, options.device)
    if parallel.team().rank and step is not None:
        return trainer.Run(job.cell, job.seeds, NoFolder(), State(step))
    return run


def _claim(
    job: Job, options: Options, post: Callable[[Event], None], held: ExitStack, failed: list[Job]
) -> trainer.Run | None:
    """Take the job's folder, and see how far it is; None where there is nothing to do."""
    folder = RunFolder(job.path, lambda text: post(Event(job, "say", text=text)))
    try:
        ways = {"overwrite": options.overwrite, "patience": options.patience}
        held.enter_context(folder.claim(job.config, **ways))
        if folder.finished:
            post(Event(job, "done", text="was finished"))
            return None
        post(Event(job, "start"))
        state = folder.restore() or State()
        chart = held.enter_context(writer(job.path, job.seeds)) if options.tensorboard else None
        return trainer.Run(job.cell, job.seeds, folder, state, _reporter(job, post, chart))
    except Exception as error:
        failed.append(job)
        post(Event(job, "failed", text=_explain(error, job.path)))
    return None


def _train(
    runs: dict[Job, trainer.Run], options: Options, post: Callable[[Event], None]
) -> list[Job]:
    """Train all as one; where that fails, one by one: a defect must not take the others with it."""
    began = time.monotonic()
    try:
        device = torch.device(options.device)
        # A recording has streams of torch's current device, whatever that of its tensors is.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            trainer.run_together(list(runs.values()), device, save_every=options.save_every)
    except Exception as error:
        if parallel.team().size > 1:  # the others are in the middle of a step
            raise
        if len(runs) == 1:
            (job,) = runs
            post(Event(job, "failed", text=_explain(error, job.path)))
            return [job]
        first, *others = runs
        why = f"trained with {len(others)} others as one it failed, so each goes on by itself: "
        post(Event(first, "say", text=why + _explain(error, first.path)))
    else:
        for job in runs:
            post(Event(job, "done", job.cell.steps, text=f"{time.monotonic() - began:.0f} s"))
        return []
    return [job for each in runs for job in _train_again(each, runs[each], options, post)]


def _train_again(job: Job, run: trainer.Run, options: Options, post) -> list[Job]:
    """By itself, from its last saved state."""
    if run.folder.finished:
        post(Event(job, "done", job.cell.steps, text="was finished"))
        return []
    run = run._replace(state=run.folder.restore() or State())
    return _train({job: run}, options, post)


def _reporter(
    job: Job, post: Callable[[Event], None], chart: Callable[[int, list[float]], None] | None
) -> Callable[[int, list[float] | None], None]:
    """What a trainer calls after every chunk of steps, and without losses before it evaluates."""

    def report(step: int, losses: list[float] | None) -> None:
        if losses is None:
            return post(Event(job, "evaluate", step))
        if chart:
            chart(step, losses)
        post(Event(job, "step", step, sum(losses) / len(losses)))

    return report


def _explain(error: Exception, path: Path) -> str:
    """A sentence where the user can put it right, the whole story of a defect."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno in STORAGE_ERRORS:
        return (
            f"cannot write {path}: {error.strerror}; the last saved state is whole, so put that "
            "right and run the same command again."
        )
    return traceback.format_exc()


def cores() -> int:
    """Those that this process may use; where the system does not say, as on macOS, all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def launch(
    jobs: list[Job], options: Options, workers: int, handle: Callable[[Event], None]
) -> list[Job]:
    """Run the jobs, the largest first; return those that failed."""
    groups = largest_first(bundles(jobs, torch.device(options.device)))
    workers = max(1, min(workers, len(groups)))
    threads = min(torch.get_num_threads(), cores() // workers)  # OMP_NUM_THREADS may ask for less
    options = replace(options, threads=max(1, threads))
    if workers == 1:
        torch.set_num_threads(options.threads)
        return [job for group in groups for job in perform(group, options, handle)]
    return _launch_processes(groups, options, workers, handle)


@contextmanager
def interrupted_once():
    """A second Ctrl-C must not break off what the first one began: the end of the processes."""

    def once(*_) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    if current_thread() is not main_thread():  # Ctrl-C does not come here
        yield
        return
    before = signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@interrupted_once()
def _launch_processes(groups, options, workers, handle) -> list[Job]:
    """Whoever loses a process loses all that were at work, as Python ends them. Those groups go on
    one by one after the others: a process that is lost then was lost by its own group."""
    failed: list[Job] = []
    suspects: list[list[Job]] = []
    begun: set[Job] = set()

    def watch(event: Event) -> None:
        if event.kind == "start":
            begun.add(event.job)
        elif event.kind in ("done", "failed"):
            begun.discard(event.job)
        handle(event)

    while groups or suspects:
        alone = not groups
        batch = [suspects.pop(0)] if alone else groups
        begun.clear()
        bad, lost, error = _in_processes(batch, options, 1 if alone else workers, watch)
        failed += bad
        if alone:
            for job in sum(lost, []):
                handle(Event(job, "failed", text=_ended(error)))
                failed.append(job)
            continue
        hit = [group for group in lost if begun & set(group)] or lost
        for group in hit:
            text = f"The process of {group[0].label} ended ({_reason(error)}); it is tried again."
            handle(Event(group[0], "say", text=text))
        suspects += hit
        groups = [group for group in lost if group not in hit]
    return failed


def _in_processes(
    groups: list[list[Job]], options: Options, workers: int, handle: Callable[[Event], None]
) -> tuple[list[Job], list[list[Job]], BaseException | None]:
    """Jobs that failed; groups whose process ended or never was, and why."""
    context = multiprocessing.get_context("spawn")
    events = context.SimpleQueue()
    pool = ProcessPoolExecutor(
        workers, context, initializer=_begin_worker, initargs=(events, options.threads)
    )
    try:
        futures = _submit(pool, groups, options)
        while not all(future.done() for future in futures):
            while not events.empty():
                handle(events.get())
            time.sleep(0.05)
        while not events.empty():
            handle(events.get())
        errors = {future: future.exception() for future in futures}
        failed = [job for future in futures if not errors[future] for job in future.result()]
        lost = [group for future, group in futures.items() if errors[future]]
        return failed, lost, next(filter(None, errors.values()), None)
    except KeyboardInterrupt:
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _reason(error: BaseException) -> str:
    return str(error).rstrip(".")


def _ended(error: BaseException) -> str:
    return (
        f"its process ended ({_reason(error)}); run the same command again, with fewer --workers "
        "if memory is short."
    )


def _submit(pool: ProcessPoolExecutor, groups: list[list[Job]], options: Options) -> dict:
    """Processes inherit that Ctrl-C is held back: it is for the parent, however early it comes."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return {pool.submit(_work, group, options): group for group in groups}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_post: Callable[[Event], None] | None = None


def _begin_worker(events, threads: int) -> None:
    global _post
    _post = events.put
    torch.set_num_threads(threads)
    end_with_parent()


def _work(jobs: list[Job], options: Options) -> list[Job]:
    return perform(jobs, options, _post)


def largest_first(groups: list[list[Job]]) -> list[list[Job]]:
    return sorted(groups, key=_effort, reverse=True)


def _effort(jobs: list[Job]) -> int:
    return sum(job.cell.steps * job.cell.footprint * len(job.seeds) for job in jobs)
