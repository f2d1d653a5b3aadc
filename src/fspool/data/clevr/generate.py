"""A twin of CLEVR: blocks of scenes and questions on all cores, joined to files.

The files have the names, the folders and the format of v1.0, so whatever reads that reads them. The
compact form lies beside them. A seed gives the same bytes, on any number of processes.
"""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from ...checks import UserError, check_count
from ...processes import end_with_parent
from ..files import check_writable
from . import twin_files
from .arrays import Clevr
from .blocks import Block, Made, blocks, make
from .clock import Clock
from .compact import kept_path, source_paths

FILES, COMPACT = 13_500, 800  # bytes for a scene and its questions

Progress = Callable[[str, int, int], None]  # split, scenes so far, scenes in all
Run = Callable[[list[Block]], Iterable[Made]]


class Twin(NamedTuple):
    """What was made, and how long all processes together took."""

    splits: dict[str, Clevr]
    clock: Clock


def generate(
    out: Path | str,
    scenes: dict[str, int],
    seed: int = 0,
    workers: int = 1,
    files: bool = True,
    progress: Progress = lambda *_: None,
) -> Twin:
    """Make so many scenes of each split, with ten questions each, in a folder."""
    out = Path(out)
    for split, count in scenes.items():
        check_count(f"scenes of {split}", count, 1, "a number of scenes")
    _refuse_others(out, list(scenes))
    _check_room(out, sum(scenes.values()) * (COMPACT + (FILES if files else 0)))
    clock, made = Clock(), {}
    try:
        check_writable(out)
        with _makers(workers) as run:
            for split, count in scenes.items():
                plan = blocks(seed, split, count, files)
                results = _watched(run(plan), split, count, clock, progress)
                made[split] = twin_files.write(out, split, seed, results, files)
    except BaseException as stop:
        _remove(out, list(made))  # a part of a twin is none, and the next try would find it
        if isinstance(stop, BrokenProcessPool):
            raise UserError("a process was ended from outside; run the command again.") from None
        if not isinstance(stop, OSError):
            raise
        reason = stop.strerror or stop
        raise UserError(f"{out} cannot take the twin ({reason}); choose another folder.") from None
    return Twin(made, clock)


def _remove(out: Path, splits: list[str]) -> None:
    for split in splits:
        for path in (*source_paths(out, split), kept_path(out, split)):
            path.unlink(missing_ok=True)


def _refuse_others(out: Path, splits: list[str]) -> None:
    """What is there may be the original."""
    for split in splits:
        for path in (*source_paths(out, split), kept_path(out, split)):
            if path.exists():
                raise UserError(f"{path} is there already; remove it, or choose another folder.")


def _check_room(out: Path, needed: int) -> None:
    place = next(path for path in (out, *out.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise UserError(
            f"{out} has {free / 1e6:.0f} MB of room; the twin needs {needed / 1e6:.0f} MB, so make "
            "room, or choose another folder."
        )


def _watched(
    results: Iterable[Made], split: str, total: int, clock: Clock, progress: Progress
) -> Iterator[Made]:
    done = 0
    progress(split, done, total)
    for made in results:
        done += len(made.scenes["sizes"])
        clock.update(made.clock)
        progress(split, done, total)
        yield made


@contextmanager
def _makers(workers: int) -> Iterator[Run]:
    """Make blocks here, or in other processes; in their order in any case."""
    if workers == 1:
        yield lambda plan: map(make, plan)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin)
    try:
        yield lambda plan: pool.map(make, plan)
    except BaseException:
        for process in list(pool._processes.values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """Ctrl-C is for the parent, and every core has a process already."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    end_with_parent()
