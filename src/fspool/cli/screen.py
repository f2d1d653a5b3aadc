"""What the command says: lines, and bars while one waits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import current_thread, main_thread

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TimeRemainingColumn,
)

console = Console()


def say(texts: list[str], style: str | None = None) -> None:
    for text in texts:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def warn(text: str) -> None:
    say([text], "yellow")


class Terminated(KeyboardInterrupt):
    """SIGTERM, by which a cluster takes a machine back."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, with a sentence, and only once."""

    def end(*_) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    # One of several that train together may be waiting for the others, and hear nothing.
    together = os.environ.get("WORLD_SIZE", "1") != "1"
    if together or current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stoppable() -> Iterator[None]:
    """Whoever stops runs is told how they go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        console.print("Stopped. The same command goes on from the last saved states.")
        raise typer.Exit(_code(stop)) from None


def _code(stop: KeyboardInterrupt) -> int:
    """As shells have it."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def working(stopped: str) -> AbstractContextManager[Callable]:
    """Bars for what is made, as a function that shows progress."""
    return _bars(MofNCompleteColumn(), stopped)


def downloading() -> AbstractContextManager[Callable]:
    """The same for downloads."""
    return _bars(DownloadColumn(), "Stopped. The same command goes on with the download.")


@contextmanager
def _bars(column: ProgressColumn, stopped: str) -> Iterator[Callable]:
    columns = ("{task.description}", BarColumn(), column, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        try:
            yield _shown(bars)
        except KeyboardInterrupt as stop:
            bars.stop()
            console.print(stopped)
            raise typer.Exit(_code(stop)) from None


def _shown(bars: Progress) -> Callable:
    tasks: dict[str, TaskID] = {}

    def progress(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total)
        bars.update(tasks[name], completed=done, total=total)

    return progress
