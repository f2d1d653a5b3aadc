"""``fspool data``: fetch, verify or make what the experiments are about."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from torch import Tensor

from ..checks import UserError, nearest
from ..data import clevr, mnist, tu
from ..data.clevr.compact import find as find_clevr
from ..data.clevr.generate import generate
from ..data.clevr.questions import BLOCK
from ..data.clevr.relations import agreeing
from ..data.clevr.vocabulary import SPLITS
from ..data.files import find_root
from ..lab.launch import cores
from . import completion
from .screen import console, downloading, say, warn, working

NAMES = ["polygons", "mnist", "tu", "clevr"]


def fetch_data(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="polygons, mnist, tu or clevr.",
            autocompletion=lambda: NAMES,
        ),
    ],
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="GRAPHS",
            help="Which graph sets of tu (default: all).",
            autocompletion=completion.graph_sets,
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder of data sets (default: $FSPOOL_DATA, or data).")
    ] = None,
    scenes: Annotated[
        int | None, typer.Option(min=1, help="Make a twin of clevr with so many scenes to train.")
    ] = None,
    validation: Annotated[
        int | None,
        typer.Option(min=1, help="Its scenes to validate (default: 3 for every 14 of --scenes)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the twin goes (default: clevr in --data).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another one gives another twin.")] = 0,
    files: Annotated[
        bool,
        typer.Option(
            "--json/--no-json", help="With files in CLEVR's format, 1 GB for 70,000 scenes."
        ),
    ] = True,
) -> None:
    """Fetch or make the data of an experiment."""
    nearest("data set", name, NAMES)
    of_twins = out or validation or seed or not files
    if of_twins and not scenes or scenes and name != "clevr":
        raise UserError("a twin has --scenes, and only clevr has twins; see fspool data --help.")
    if out and data:
        raise UserError(f"out is {str(out)!r}, where --data has no say; leave one of them out.")
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
        with downloading() as progress:
            mnist.fetch(root, progress, warn)
    mnist.verify(root)
    say([f"MNIST in {root}: {_done(len(absent), 4)}; all checksums are right."])
    for split in mnist.SOURCES:
        sizes = mnist.load(root, split, warn).offsets.diff()
        say([f"{split}: {len(sizes)} sets of {_spread(sizes, 'elements')}"])


def fetch_tu(root: Path, names: list[str]) -> None:
    """The same for graphs; whoever loads them verifies them."""
    absent = tu.missing(root, names)
    if absent:
        with downloading() as progress:
            for name in absent:
                tu.fetch(root, name, progress, warn)
    lines = [_graphs(tu.load(root, name, warn)) for name in names]
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
    splits = {split: clevr.load(root, split, warn) for split in there or SPLITS[:1]}
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
