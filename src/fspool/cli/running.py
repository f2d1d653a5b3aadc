"""``fspool run``: from cells to runs, tables and a page; ``list`` and ``report`` beside it."""

from __future__ import annotations

import dataclasses
import fnmatch
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from .. import report
from ..checks import UserError, nearest
from ..experiments import EXPERIMENTS, Experiment, find
from ..lab import on_ray, parallel
from ..lab.cell import Cell
from ..lab.display import display
from ..lab.launch import Event, Job, Options, cores, find_device, jobs_of, launch, refuse_others
from ..lab.plans import write_plan
from . import completion
from .screen import console, say, stoppable, warn

Start = Callable[[list[Job], Options, Callable[[Event], None]], list[Job]]  # returns what failed


def list_experiments(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="EXPERIMENT",
            help="Its cells, and the settings that --set changes.",
            autocompletion=completion.experiments,
            show_default=False,
        ),
    ] = None,
) -> None:
    """The experiments, their presets and how many runs these are; or all of one."""
    if name is not None:
        return _list_one(find(name))
    table = Table("experiment", "preset", "cells", "seeds", "what it is", box=None)
    for experiment in EXPERIMENTS.values():
        for preset, seeds in experiment.seeds.items():
            cells = str(len(experiment.preset(preset)))
            table.add_row(experiment.name, preset, cells, str(seeds), experiment.what(preset))
    console.print(table)
    console.print("\nfspool run EXPERIMENT --preset PRESET", highlight=False)


def _list_one(experiment: Experiment) -> None:
    presets = {name: experiment.preset(name) for name in experiment.seeds}
    table = Table("--set", *presets, box=None)
    for key in experiment.settable:
        known = (
            dict.fromkeys(str(getattr(c, key)) for c in own.values()) for own in presets.values()
        )
        table.add_row(key, *(", ".join(values) for values in known))
    console.print(table)
    for preset, cells in presets.items():
        console.print(f"\n[bold]cells of {preset}[/bold]\n{', '.join(cells)}", highlight=False)


@stoppable()
def run(
    name: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT", help="See fspool list.", autocompletion=completion.experiments
        ),
    ],
    preset: Annotated[
        str, typer.Option(help="quick, paper or released.", autocompletion=completion.presets)
    ] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs (default: runs/EXPERIMENT-PRESET)")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Only this data set, such as MUTAG.", autocompletion=completion.datasets),
    ] = None,
    readout: Annotated[
        list[str] | None,
        typer.Option(
            help="For graphs: only this readout, also one of PyG's.",
            autocompletion=completion.readouts,
        ),
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this task of dspn: boxes or states.", autocompletion=completion.tasks
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of every cell.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only cells of this name, such as 'fspool-n*'.", autocompletion=completion.cells
        ),
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Another setting, such as steps=2000.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data sets (default: $FSPOOL_DATA, or data).")
    ] = None,
    encoders: Annotated[
        Path | None,
        typer.Option(help="Runs of mnist-reconstruction to start from (default: beside --out)."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (default: one a core, one on CUDA).")
    ] = None,
    launcher: Annotated[str, typer.Option(help="local, or ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None,
        typer.Option(help="Of a Ray cluster: HOST:PORT, or auto."),
    ] = None,
    cpus: Annotated[
        float | None, typer.Option(min=0.01, help="With Ray: cores of a group (default: 1).")
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="With Ray: part of a GPU (default: 1)."),
    ] = None,
    save_every: Annotated[float, typer.Option(min=0, help="Seconds between saved states.")] = 10.0,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write loss curves for it.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace runs of other settings.")
    ] = False,
    page: Annotated[
        bool, typer.Option(help="Write report.html or not.", show_default=False)
    ] = True,
) -> None:
    """Run an experiment, or go on with it: tables beside the published ones, and a page.

    Finished runs are kept, runs that were stopped continue where they were. Options that take a
    list may be repeated.
    """
    experiment = find(name)
    cells = experiment.preset(preset, dataset or [], readout or [])
    cells = choose(of_tasks(cells, name, task or []), experiment, only or [], change or [])
    out = out or Path("runs") / f"{experiment.name}-{preset}"
    places = {"data": data, "encoders": encoders or out.parent / f"mnist-reconstruction-{preset}"}
    count = seeds or experiment.seeds[preset]
    asked = {"--dataset": dataset, "--readout": readout, "--task": task}
    asked |= {"--only": only, "--set": change}
    extra = [word for name, texts in asked.items() for text in texts or [] for word in (name, text)]
    share = {"address": address, "cpus": cpus, "gpus": gpus}
    with machines(launcher, device, workers, share) as (where, start):
        console.quiet = parallel.team().rank > 0
        cells = parallel.first_then_others(
            lambda: {key: cell.at(**places) for key, cell in cells.items()}, where
        )
        options = Options(
            device=str(where), save_every=save_every, tensorboard=tensorboard, overwrite=overwrite
        )
        jobs = [
            job
            for cell_name, cell in cells.items()
            for job in jobs_of(experiment.name, cell_name, cell, count, out, where)
        ]
        if not overwrite:
            refuse_others(jobs)
        left = [job for job in jobs if not job.finished]
        for job in left:
            job.cell.check(job.seeds)
        plan = {"experiment": experiment.name, "preset": preset, "seeds": count}
        plan |= {"cells": list(cells), "options": {shlex.join(extra): count}}
        if parallel.team().rank == 0:
            write_plan(out, plan, overwrite, warn)
        if len(left) < len(jobs):
            console.print(
                f"{len(jobs) - len(left)} of {len(jobs)} groups of runs were finished before."
            )
        failed = watch(follow(left, where), options, start)
        if len(failed) < len(jobs) and parallel.team().rank == 0:
            show(report.collect(out), out / "report.html" if page else None)
    if failed:
        raise UserError(f"{len(failed)} of {len(jobs)} groups of runs failed; see above.")


@contextmanager
def machines(
    launcher: str, device: str, workers: int | None, share: dict[str, object]
) -> Iterator[tuple[torch.device, Start]]:
    """What the runs are trained on, and what launches them there."""
    given = {name: value for name, value in share.items() if value is not None}
    if nearest("launcher", launcher, ("local", "ray")) == "ray":
        with on_ray.cluster(on_ray.Ask(workers=workers, **given), device) as found:
            yield found
        return
    if given:
        (name, value), *_ = given.items()
        raise UserError(f"{name} is {value!r}, which only Ray needs; pass --launcher ray too.")
    with parallel.joined(find_device(device)) as where:
        alone = where.type == "cuda" or parallel.team().size > 1
        count = workers or (1 if alone else cores())
        yield where, lambda jobs, options, handle: launch(jobs, options, count, handle)


def follow(jobs: list[Job], device: torch.device) -> list[Job]:
    """Of several processes that train together, all do what the first one found to be done."""
    said = parallel.agreed([[job.name, list(job.seeds)] for job in jobs], device)
    known = {(job.name, job.seeds): job for job in jobs}
    try:
        return [known[name, tuple(seeds)] for name, seeds in said]
    except KeyError as error:
        raise UserError(
            f"this process does not know the runs {error}; give all of them the same --out, in a "
            "folder that they share."
        ) from None


def show(results: report.Collection, page: Path | None) -> None:
    """Tables in the terminal, the rest on a page."""
    report.render_terminal(results, console)
    if page:
        known = results.problems
        report.write_page(results, page)  # may find more while it draws
        say([text for text in results.problems if text not in known], "yellow")
        say([f"Open {page} in a browser."])


def watch(jobs: list[Job], options: Options, start: Start) -> list[Job]:
    """Launch under a display."""
    with display(console, jobs) as view:
        return start(jobs, options, view.handle)


def of_tasks(cells: dict[str, Cell], experiment: str, tasks: Sequence[str]) -> dict[str, Cell]:
    """The cells of these tasks; all where none is named."""
    known = list(dict.fromkeys(cell.task for cell in cells.values() if hasattr(cell, "task")))
    if tasks and not known:
        raise UserError(
            f"{experiment} has no tasks to choose from, but {tasks[0]!r} was asked for; leave "
            "--task out."
        )
    wanted = [nearest("task", task, known) for task in tasks]
    return {name: cell for name, cell in cells.items() if not wanted or cell.task in wanted}


def choose(
    cells: dict[str, Cell], experiment: Experiment, only: list[str], changes: list[str]
) -> dict[str, Cell]:
    """The cells that were asked for, with the settings that were asked for."""
    for pattern in only:
        if not fnmatch.filter(cells, pattern):
            nearest("only", pattern, cells)
    if only:
        cells = {n: c for n, c in cells.items() if any(fnmatch.fnmatch(n, p) for p in only)}
    new = dict(read_setting(experiment, text) for text in changes)
    return {name: change_cell(cell, new) for name, cell in cells.items()}


def read_setting(experiment: Experiment, text: str) -> tuple[str, int | float | str]:
    """``steps=2000`` to a name and a value of the right type."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"set is {text!r}; expected NAME=VALUE, such as steps=2000.")
    name = nearest("set", name, experiment.settable)
    kind = type(next(f.default for f in dataclasses.fields(experiment.cell) if f.name == name))
    if kind is bool:
        return name, nearest(name, value, ("yes", "no")) == "yes"
    try:
        return name, kind(value)
    except ValueError:
        raise UserError(f"{name} is {value!r}; expected {kind.__name__}.") from None


def change_cell(cell: Cell, new: dict) -> Cell:
    """What is not trained has no steps to change."""
    new = {name: value for name, value in new.items() if name != "steps" or cell.steps}
    try:
        return dataclasses.replace(cell, **new)
    except ValueError as error:
        raise UserError(str(error)) from None


def make_report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="What run wrote, or a compact result file; several are put together.",
        ),
    ],
    page: Annotated[
        Path | None, typer.Option(help="The page (default: report.html in the first folder)")
    ] = None,
    compact: Annotated[
        Path | None, typer.Option(help="Write all results as one small JSON file instead.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the tables as Markdown instead.")
    ] = None,
) -> None:
    """Tables beside the paper's, and one page with tables, curves and figures."""
    results, folder = report.collect(*folders), folders[0]
    if compact:
        report.compact(results, compact)
    if markdown:
        report.write_markdown(results, markdown)
    if page or not (compact or markdown):
        show(results, page or (folder if folder.is_dir() else folder.parent) / "report.html")
    else:
        say(results.problems, "yellow")
