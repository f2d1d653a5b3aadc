"""``fspool doctor``: what is here, what is missing, and what to do about it."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from rich.text import Text

from .. import FSPool, __version__
from ..checks import UserError
from ..data import mnist, tu
from ..data.clevr.compact import find as find_clevr
from ..data.files import find_root
from ..functional import dispatch
from ..functional.pool import pool_definition
from ..lab.launch import cores
from ..lab.provenance import device_name
from ..sets import read
from .screen import console

STYLES = {"ok": "green", "missing": "yellow", "wrong": "bold red"}
ROOM = 2e9  # bytes: less is soon full of states and kernels
EXTRAS = {  # a package of each, by which it is told, and what it is for
    "lab": ("safetensors", "the experiments"),
    "pyg": ("torch_geometric", "FSPoolAggregation"),
    "ray": ("ray", "experiments on a Ray cluster"),
}


class Finding(NamedTuple):
    state: str  # one of STYLES
    what: str
    text: str


def look(
    data: Annotated[
        str | None, typer.Option(help="Folder of data sets (default: $FSPOOL_DATA, or data).")
    ] = None,
) -> None:
    """Look at this machine: versions, GPU, kernels, data, disk."""
    findings = list(examine(find_root(data)))
    for state, what, text in findings:
        line = Text.assemble((f"{state:8}", STYLES[state]), f"{what:13}{text}")
        console.print(line, soft_wrap=True)
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


def examine(root: Path) -> Iterator[Finding]:
    yield Finding("ok", "fspool", __version__)
    yield Finding("ok", "python", platform.python_version())
    yield Finding("ok", "torch", torch.__version__)
    yield Finding("ok", "CPU", f"{device_name(torch.device('cpu'))}, {cores()} cores")
    yield _gpu()
    yield _triton()
    yield _kernels("cpu")
    if torch.cuda.is_available():
        yield _kernels("cuda")
    yield from _data(root)
    yield from _disk(root)
    yield from _extras()


def _gpu() -> Finding:
    count = torch.cuda.device_count()
    if count:
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(count))
        return Finding("ok", "CUDA", f"{torch.version.cuda}: {names}")
    if torch.version.cuda is None:
        return Finding("missing", "CUDA", "this torch is built without it; all runs on the CPU.")
    return Finding("missing", "CUDA", "torch sees no GPU; see nvidia-smi, or go on with the CPU.")


def _triton() -> Finding:
    found = _version("triton")
    if found is None:
        return Finding(
            "missing", "Triton", "no kernels on a GPU; it comes with torch for CUDA on Linux."
        )
    if not any(map(shutil.which, ("gcc", "clang", os.environ.get("CC", "cc")))):
        return Finding("missing", "Triton", f"{found} finds no C compiler; install gcc or clang.")
    return Finding("ok", "Triton", found)


def _kernels(device: str) -> Finding:
    """Which operators have a kernel there; the pool is tried, against its definition."""
    what = f"kernels {device}"
    if dispatch.OFF:
        return Finding("missing", what, "FSPOOL_KERNELS=0 is set: the definitions run; unset it.")
    names = dispatch.registered(device)
    if not names:
        return Finding("missing", what, "none: the definitions run; see Triton above.")
    try:
        off = _error_of_pool(device)
    except Exception as error:  # whatever a compiler or a driver may say
        sentence = str(error).strip().partition("\n")[0] or type(error).__name__
        return Finding("wrong", what, f"the pool fails ({sentence}); set FSPOOL_KERNELS=0.")
    if not off < 1e-5:
        return Finding("wrong", what, f"the pool is off by {off:.0e}; set FSPOOL_KERNELS=0.")
    return Finding("ok", what, f"{len(names)} operators; the pool is right to {off:.0e}")


def _error_of_pool(device: str) -> float:
    """Of the kernel, relative to the definition in float64 on the CPU."""
    torch.manual_seed(0)
    pool, x = FSPool(8, 5), torch.randn(4, 20, 8)
    sizes = torch.tensor([20, 7, 1, 0])
    sets, inner = read(x.double(), sizes=sizes)
    with torch.no_grad():
        y = pool.to(device)(x.to(device), sizes=sizes.to(device)).cpu()
        exact, _ = pool_definition(inner, pool.weight.cpu().double()[None], sets)
    return float((y - exact[0]).abs().max() / exact.abs().max())


def _data(root: Path) -> Iterator[Finding]:
    yield from _mnist(root)
    yield from _tu(root)
    absent = [split for split in ("train", "val") if find_clevr(root, split) is None]
    if absent:
        command = ["clevr", "--scenes", 70000, "--out", root / "clevr"]
        yield _missing("CLEVR", absent, 2, "splits", root, command)
    else:
        yield _unverified("CLEVR", root, ["clevr"])


def _mnist(root: Path) -> Iterator[Finding]:
    absent, faults = mnist.missing(root), mnist.faults(root)
    yield from (Finding("wrong", "MNIST", fault) for fault in faults)
    if absent:
        yield _missing("MNIST", absent, 4, "files", root, ["mnist", "--data", root])
    elif not faults:
        yield Finding("ok", "MNIST", f"in {root}, found and verified")


def _tu(root: Path) -> Iterator[Finding]:
    absent, count = tu.missing(root, list(tu.SOURCES)), len(tu.SOURCES)
    verified: dict[bool, list[str]] = {True: [], False: []}
    for name in tu.SOURCES:
        if name not in absent:
            try:
                verified[tu.verified(root, name)].append(name)
            except UserError as error:
                yield Finding("wrong", "TU graphs", str(error))
    if good := len(verified[True]):
        yield Finding("ok", "TU graphs", f"{good} of {count} sets in {root}, found and verified")
    if unknown := verified[False]:
        yield _unverified("TU graphs", root, ["tu", *unknown])
    if absent:
        names = absent if len(absent) < count else []  # all of them need not be named
        yield _missing("TU graphs", absent, count, "sets", root, ["tu", *names, "--data", root])


def _missing(
    what: str, absent: list, count: int, parts: str, root: Path, command: list[object]
) -> Finding:
    text = f"{len(absent)} of {count} {parts} in {root}: {_command(command)}"
    return Finding("missing", what, text)


def _unverified(what: str, root: Path, command: list[object]) -> Finding:
    """What takes longer than anybody waits for this."""
    command = _command([*command, "--data", root])
    return Finding("ok", what, f"in {root}, found, not verified; this does it: {command}")


def _command(words: list[object]) -> str:
    return shlex.join(map(str, ["fspool", "data", *words]))


def _disk(root: Path) -> Iterator[Finding]:
    for what, folder in (("disk, runs", Path("runs")), ("disk, data", root)):
        folder = folder.absolute()
        there = next(place for place in (folder, *folder.parents) if place.exists())
        free = shutil.disk_usage(there).free
        text = f"{free / 1e9:.0f} GB free in {there}"
        if free < ROOM:
            yield Finding("missing", what, f"{text}; make room, or write elsewhere with --out.")
        else:
            yield Finding("ok", what, text)


def _extras() -> Iterator[Finding]:
    for extra, (package, purpose) in EXTRAS.items():
        found = _version(package)
        if found:
            yield Finding("ok", extra, f"{package} {found}")
        else:
            yield Finding("missing", extra, f"for {purpose}: pip install '.[{extra}]' in a clone")
    found = _version("tensorboard")
    state = "ok" if found else "missing"
    yield Finding(state, "tensorboard", found or "for --tensorboard: pip install tensorboard")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
