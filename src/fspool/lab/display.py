"""What the user sees while runs are trained: bars in a terminal, lines anywhere else."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from .launch import Event, Job

PAUSE = 10.0  # seconds between two lines about the same job


def display(console: Console, jobs: list[Job]) -> Bars | Lines:
    return Bars(console, jobs) if console.is_terminal else Lines(console, jobs)


class Bars:
    """One bar for each group that is being trained and one for all."""

    def __init__(self, console: Console, jobs: list[Job]) -> None:
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self.tasks: dict[str, TaskID] = {}
        self.all = self.progress.add_task("groups of runs", total=len(jobs), note="")

    def __enter__(self) -> Bars:
        self.progress.start()
        return self

    def __exit__(self, *_) -> None:
        self.progress.stop()

    def handle(self, event: Event) -> None:
        label = event.job.label
        if event.kind == "start":
            self._remove(label)  # it starts again where its worker was lost
            steps = event.job.cell.steps or None
            self.tasks[label] = self.progress.add_task(label, total=steps, note="")
        elif event.kind == "step":
            note = f"loss {event.loss:.3g}"
            self.progress.update(self.tasks[label], completed=event.step, note=note)
        elif event.kind == "evaluate":
            self.progress.update(self.tasks[label], note="evaluating")
        elif event.kind == "say":
            self.progress.console.print(event.text, markup=False, highlight=False)
        else:
            self._end(event)

    def _remove(self, label: str) -> None:
        if (task := self.tasks.pop(label, None)) is not None:
            self.progress.remove_task(task)

    def _end(self, event: Event) -> None:
        self._remove(event.job.label)
        self.progress.advance(self.all)
        if event.kind == "failed":
            text = f"{event.job.label} failed: {event.text}"
            self.progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class Lines:
    """A line when a group starts or ends, and now and then in between."""

    def __init__(self, console: Console, jobs: list[Job]) -> None:
        self.console, self.count, self.ended = console, len(jobs), 0
        self.began: dict[str, tuple[float, int]] = {}  # time and step of a group's first record
        self.spoke: dict[str, float] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_) -> None:
        pass

    def handle(self, event: Event) -> None:
        label, now = event.job.label, time.monotonic()
        if event.kind == "start":
            self.spoke[label] = now
            self.began.pop(label, None)
        elif event.kind == "step":
            began, first = self.began.setdefault(label, (now, event.step))
            if now - self.spoke[label] >= PAUSE and event.step > first:
                self.spoke[label] = now
                left = (now - began) / (event.step - first) * (event.job.cell.steps - event.step)
                steps = f"step {event.step} of {event.job.cell.steps}"
                self._print(f"{label}: {steps}, loss {event.loss:.3g}, {left:.0f} s left")
        elif event.kind == "say":
            self._print(event.text)
        elif event.kind in ("done", "failed"):
            self.ended += 1
            self._print(f"[{self.ended}/{self.count}] {label} {event.kind}: {event.text}")

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
