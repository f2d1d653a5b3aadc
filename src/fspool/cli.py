"""The command ``fspool``: parses, and calls `experiments`, `lab`, `report`."""

from __future__ import annotations

import dataclasses
import fnmatch
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

try:
    import matplotlib  # noqa: F401
    import safetensors  # noqa: F401
    import scipy  # noqa: F401
    import typer
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TimeRemainingColumn,
    )
    from rich.table import Table
except ImportError as error:
    raise SystemExit(f"{error.name} is not installed; pip install fspool[lab]") from None

from torch import Tensor

from . import __version__, report
from .checks import UserError, nearest
from .data import clevr, mnist, tu
from .data.clevr.compact import find as find_clevr
from .data.clevr.generate import generate
from .data.clevr.questions import BLOCK
from .data.clevr.relations import agreeing
from .data.clevr.vocabulary import SPLITS
from .data.files import find_root
from .experiments import EXPERIMENTS, Experiment, find
from .experiments.experiment import PRESETS
from .lab.cell import Cell
from .lab.display import display
from .lab.launch import Job, Options, cores, find_device, jobs_of, launch, refuse_others
from .storage import Damaged, read_json, write_json

app = typer.Typer(
    help="The experiments of the FSPool paper, each as one command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()


@app.command("list")
def list_experiments() -> None:
    """The experiments, their presets and how many runs these are."""
    table = Table("experiment", "preset", "cells", "seeds", "what it is", box=None)
    for experiment in EXPERIMENTS.values():
        for preset, seeds in experiment.seeds.items():
            cells = str(len(experiment.preset(preset)))
            table.add_row(experiment.name, preset, cells, str(seeds), PRESETS[preset])
    console.print(table)
    console.print("\nfspool run EXPERIMENT --preset PRESET", highlight=False)


@app.command()
def run(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="See fspool list.")],
    preset: Annotated[str, typer.Option(help="quick, paper or released.")] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs (default: runs/EXPERIMENT-PRESET)")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Only this data set, such as MUTAG; may be repeated.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="Only this task of dspn: boxes or states.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of every cell.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    only: Annotated[
        list[str] | None, typer.Option(help="Only cells of this name, such as 'fspool-n*'.")
    ] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Another setting, such as steps=2000.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Root of the data sets (default: FSPOOL_DATA, or data).")
    ] = None,
    encoders: Annotated[
        Path | None,
        typer.Option(help="Runs of mnist-reconstruction to start from (default: beside --out)."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes (default: one a core, one on CUDA).")
    ] = None,
    save_every: Annotated[float, typer.Option(min=0, help="Seconds between saved states.")] = 10.0,
    tensorboard: Annotated[bool, typer.Option(help="Also write loss curves for it.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace runs of other settings.")] = False,
    page: Annotated[bool, typer.Option(help="Write report.html into the folder.")] = True,
) -> None:
    """Run an experiment, or go on with it: tables beside the published ones, and a page.

    Finished runs are kept, runs that were stopped continue where they were.
    """
    experiment = find(name)
    cells = choose(experiment, preset, only or [], change or [], dataset or [], task or [])
    where = find_device(device)
    out = out or Path("runs") / f"{experiment.name}-{preset}"
    places = {"data": data, "encoders": encoders or out.parent / f"mnist-reconstruction-{preset}"}
    cells = {key: cell.at(**places) for key, cell in cells.items()}
    count = seeds or experiment.seeds[preset]
    jobs = [
        job
        for cell_name, cell in cells.items()
        for job in jobs_of(experiment.name, cell_name, cell, count, out, where)
    ]
    if not overwrite:
        refuse_others(jobs)
    asked = {"--dataset": dataset, "--task": task, "--only": only, "--set": change}
    extra = [word for name, texts in asked.items() for text in texts or [] for word in (name, text)]
    plan = {"experiment": experiment.name, "preset": preset, "seeds": count, "cells": list(cells)}
    write_plan(out, plan | {"options": {shlex.join(extra): count}}, overwrite)
    options = Options(
        device=str(where), save_every=save_every, tensorboard=tensorboard, overwrite=overwrite
    )
    workers = workers or (cores() if where.type == "cpu" else 1)
    left = [job for job in jobs if not job.finished]
    if len(left) < len(jobs):
        console.print(
            f"{len(jobs) - len(left)} of {len(jobs)} groups of runs were finished before."
        )
    failed = watch(left, options, workers)
    if len(failed) < len(jobs):
        show(report.collect(out), out / "report.html" if page else None)
    if failed:
        raise UserError(f"{len(failed)} of {len(jobs)} groups of runs failed; see above.")


def show(results: report.Collection, page: Path | None) -> None:
    """Tables in the terminal, the rest on a page."""
    report.render_terminal(results, console)
    if page:
        known = results.problems
        report.write_page(results, page)  # may find more while it draws
        say([text for text in results.problems if text not in known], "yellow")
        say([f"Open {page} in a browser."])


def say(texts: list[str], style: str | None = None) -> None:
    for text in texts:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def watch(jobs: list[Job], options: Options, workers: int) -> list[Job]:
    """Launch under a display."""
    try:
        with display(console, jobs) as view:
            return launch(jobs, options, workers, view.handle)
    except KeyboardInterrupt:
        console.print("Stopped. The same command goes on from the last saved states.")
        raise typer.Exit(130) from None


def choose(
    experiment: Experiment,
    preset: str,
    only: list[str],
    changes: list[str],
    datasets: Sequence[str] = (),
    tasks: Sequence[str] = (),
) -> dict[str, Cell]:
    """The cells of a preset that were asked for, with the settings that were asked for."""
    cells = of_tasks(experiment.preset(preset, datasets), experiment.name, tasks)
    for pattern in only:
        if not fnmatch.filter(cells, pattern):
            nearest("only", pattern, cells)
    if only:
        cells = {n: c for n, c in cells.items() if any(fnmatch.fnmatch(n, p) for p in only)}
    new = dict(read_setting(experiment, text) for text in changes)
    return {name: change_cell(cell, new) for name, cell in cells.items()}


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


def read_setting(experiment: Experiment, text: str) -> tuple[str, int | float | str]:
    """``steps=2000`` to a name and a value of the right type."""
    name, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"set is {text!r}; expected NAME=VALUE, such as steps=2000.")
    name = nearest("set", name, experiment.settable)
    kind = type(next(f.default for f in dataclasses.fields(experiment.cell) if f.name == name))
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


def write_plan(out: Path, plan: dict, overwrite: bool) -> None:
    """What was asked for, so far, so that a report can say what is missing, and how it was made."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with suppress(Damaged, FileNotFoundError, KeyError, TypeError, ValueError):
            before = read_json(out / "plan.json")
            if all(before[key] == plan[key] for key in ("experiment", "preset")):
                plan = plan | _joined(before, plan, overwrite)
        write_json(out / "plan.json", plan)
    except OSError as error:
        raise UserError(f"out is {str(out)!r}, where nothing can be written: {error}.") from None


def _joined(before: dict, plan: dict, overwrite: bool) -> dict:
    """Two plans for one folder as one."""
    seeds = max(plan["seeds"], before["seeds"])
    options = dict(before.get("options", {"": before["seeds"]}))
    if overwrite and set(before["cells"]) <= set(plan["cells"]):
        options = {}  # nothing of what they made is left
    for text, count in plan["options"].items():
        options[text] = max(count, options.get(text, 0))
    cells = list(dict.fromkeys(before["cells"] + plan["cells"]))
    return {"seeds": seeds, "cells": cells, "options": options}


@app.command("report")
def make_report(
    folder: Annotated[Path, typer.Argument(help="What run wrote, or a compact result file.")],
    page: Annotated[
        Path | None, typer.Option(help="The page (default: report.html in the folder)")
    ] = None,
    compact: Annotated[
        Path | None, typer.Option(help="Write all results as one small JSON file instead.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Write the tables as Markdown instead.")
    ] = None,
) -> None:
    """Tables beside the paper's, and one page with tables, curves and figures."""
    results = report.collect(folder)
    if compact:
        report.compact(results, compact)
    if markdown:
        report.write_markdown(results, markdown)
    if page or not (compact or markdown):
        show(results, page or (folder if folder.is_dir() else folder.parent) / "report.html")
    else:
        say(results.problems, "yellow")


@app.command("data")
def fetch_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="polygons, mnist, tu or clevr.")],
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="GRAPHS", help="Which graph sets of tu (default: all)."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of data sets (default: $FSPOOL_DATA, or data).")
    ] = None,
    scenes: Annotated[
        int | None, typer.Option(min=1, help="Make a twin of clevr with so many scenes to train.")
    ] = None,
    validation: Annotated[
        int | None, typer.Option(min=1, help="Its scenes to validate (default: 3 for 14).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the twin goes (default: clevr in --data).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another one gives another twin.")] = 0,
    files: Annotated[
        bool, typer.Option("--json/--no-json", help="With files in CLEVR's format, 1 GB in all.")
    ] = True,
) -> None:
    """Fetch or make the data of an experiment."""
    nearest("data set", name, ["polygons", "mnist", "tu", "clevr"])
    if (out or validation) and not scenes or scenes and name != "clevr":
        raise UserError("a twin has --scenes, and only clevr has twins; see fspool data --help.")
    if name == "tu":
        chosen = [nearest("graph set", part, tu.SOURCES) for part in parts or tu.SOURCES]
        return fetch_tu(find_root(data), list(dict.fromkeys(chosen)))
    if parts:
        raise UserError(f"{name} has no parts, but {parts[0]!r} was asked for; leave it out.")
    if name == "clevr" and scenes:
        counts = {"train": scenes, "val": validation or max(1, round(scenes * 3 / 14))}
        return make_clevr(out or find_root(data) / "clevr", counts, seed, files)
    if name == "clevr":
        return verify_clevr(find_root(data))
    if name == "mnist":
        return fetch_mnist(find_root(data))
    console.print("polygons are made while they are needed; there is nothing to fetch.")


def fetch_mnist(root: Path) -> None:
    """Download what is missing, verify all of it, make the sets, and say how large they are."""
    absent = mnist.missing(root)
    if absent:
        with downloading() as (progress, warn):
            mnist.fetch(root, progress, warn)
    mnist.verify(root)
    say([f"MNIST in {root}: {_done(len(absent), 4)}; all checksums are right."])
    for split in mnist.SOURCES:
        sizes = mnist.load(root, split, _warn).offsets.diff()
        say([f"{split}: {len(sizes)} sets of {_spread(sizes, 'elements')}"])


def fetch_tu(root: Path, names: list[str]) -> None:
    """The same for graphs; whoever loads them verifies them."""
    absent = tu.missing(root, names)
    if absent:
        with downloading() as (progress, warn):
            for name in absent:
                tu.fetch(root, name, progress, warn)
    lines = [_graphs(tu.load(root, name, _warn)) for name in names]
    say([f"Graphs in {root}: {_done(len(absent), len(names))}; all are as published.", *lines])


def make_clevr(out: Path, scenes: dict[str, int], seed: int, files: bool) -> None:
    """Make a twin on all cores, and say how long its parts took."""
    workers = min(cores(), sum(-(-count // BLOCK) for count in scenes.values()))
    with working("Stopped. Nothing was kept.") as progress:
        twin = generate(out, scenes, seed, workers, files, progress)
    say(
        [
            f"A twin of CLEVR in {out}, seed {seed}.",
            *(_asked(*item) for item in twin.splits.items()),
        ]
    )
    seconds = ", ".join(f"{name} {time:.1f} s" for name, time in twin.clock.items())
    together = "1 process" if workers == 1 else f"{workers} processes together"
    say([f"{together}: {seconds}."])


def verify_clevr(root: Path) -> None:
    """Read the files that are there, run every program, and compute every relation."""
    there = [split for split in SPLITS if find_clevr(root, split)]
    splits = {split: clevr.load(root, split, _warn) for split in there or SPLITS[:1]}
    say([f"CLEVR in {root}", *(_asked(*item) for item in splits.items())])
    wrong = sum(int((~data.questions.right).sum()) for data in splits.values())
    if wrong:
        raise UserError(f"{wrong} programs do not give the answer of their question; see above.")


def _asked(split: str, data: clevr.Clevr) -> str:
    objects = _spread(data.scenes.sizes, "objects")
    placed = _share(agreeing(data.scenes), "relations follow from places")
    right = _share(data.questions.right, "programs give their answers")
    return (
        f"{split}: {len(data.scenes.sizes)} scenes of {objects}, {placed}; "
        f"{len(data.questions.right)} questions, {right}"
    )


def _share(good: Tensor, what: str) -> str:
    """All of them, or how many, and the first that is not."""
    if good.all():
        return f"all {what}"
    return f"{int(good.sum())} {what}, those of number {int(good.int().argmin())} not"


def _done(count: int, total: int) -> str:
    return f"{count} of {total} files downloaded" if count else "everything is there already"


def _graphs(graphs: tu.Graphs) -> str:
    sizes = _spread(graphs.offsets.diff(), "nodes")
    return f"{graphs.name}: {len(graphs)} graphs of {sizes}; {graphs.classes} classes"


def _spread(sizes: Tensor, things: str) -> str:
    return f"{sizes.min()} to {sizes.max()} {things}, {sizes.double().mean():.2f} on average"


def _warn(text: str) -> None:
    say([text], "yellow")


@contextmanager
def working(stopped: str) -> Iterator[Callable]:
    """Bars for what is made, as a function that shows progress."""
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
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


@contextmanager
def downloading() -> Iterator[tuple[Callable, Callable]]:
    """Bars for downloads, as functions that show progress and say what is wrong."""
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        try:
            yield _shown(bars), _warn
        except KeyboardInterrupt:
            bars.stop()
            console.print("Stopped. The same command goes on with the download.")
            raise typer.Exit(130) from None


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure speed against plain PyTorch; takes the options of python -m benchmarks."""
    here = Path.cwd()  # another package may have benchmarks of its own
    if not all((here / path).exists() for path in ("benchmarks/__main__.py", "src/fspool")):
        raise UserError("the benchmarks are not part of the package; run this in a clone of it.")
    sys.path.insert(0, str(here))
    from benchmarks.__main__ import main as run_benchmarks

    run_benchmarks(context.args)


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Show it.")] = False) -> None:
    if version:
        console.print(__version__, highlight=False)
        raise typer.Exit


def main() -> None:
    """Errors that the user can put right are one sentence."""
    try:
        app()
    except UserError as error:
        Console(stderr=True).print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(1) from None
