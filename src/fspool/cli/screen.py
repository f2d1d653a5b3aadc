"""What the command says: lines, and bars while one waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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
        except KeyboardInterrupt:
            bars.stop()
            console.print(stopped)
            raise typer.Exit(130) from None


def _shown(bars: Progress) -> Callable:
    tasks: dict[str, TaskID] = {}

    def progress(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bars.add_task(name, total=total)
        bars.update(tasks[name], completed=done, total=total)

    return progress
