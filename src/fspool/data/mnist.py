"""MNIST as sets: the places of the bright pixels of every digit (sections 6.2 and 6.3).

The four idx files may be compressed or not; the checksum of what is in them decides. The sets made
of them are kept beside them, so that only the first :func:`load` has to read the images.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..checks import UserError, nearest
from . import files, idx
from .download import Progress, Wanted, download

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FORMAT = 1  # of the kept sets
DARK = 33  # the largest dark value: 33/255 < 0.1307 < 34/255


class Source(NamedTuple):
    """One of the four files: its compressed form, as it is downloaded, and what is in it."""

    gz: Wanted
    dimensions: int
    sha256: str

    @property
    def names(self) -> tuple[str, str]:
        return self.gz.name, self.gz.name.removesuffix(".gz")


SOURCES = {
    "train": (
        Source(
            Wanted("train-images-idx3-ubyte.gz", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            3,
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        Source(
            Wanted("train-labels-idx1-ubyte.gz", 28881, "d53e105ee54ea40749a09fcbcd1e9432"),
            1,
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
    ),
    "test": (
        Source(
            Wanted("t10k-images-idx3-ubyte.gz", 1648877, "9fb629c4189551a2d022fa330f9573f3"),
            3,
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        Source(
            Wanted("t10k-labels-idx1-ubyte.gz", 4542, "ec29112dd5afa0611ce80d1b7f02629c"),
            1,
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
}


class MnistSets(NamedTuple):
    """Packed sets: set i is ``points[offsets[i] : offsets[i + 1]]``, in row-major order."""

    points: Tensor  # uint8 (T, 2): row and column, from 0 to 27
    offsets: Tensor  # int64 (B + 1,)
    labels: Tensor  # uint8 (B,)

    def to(self, device: torch.device | str) -> MnistSets:
        return MnistSets(*(tensor.to(device) for tensor in self))


# --------------------------------------------------------------------------------------------------
# Files


def missing(root: Path) -> list[Source]:
    """The files that are not there."""
    return [source for source in _all() if _find(root, source) is None]


def fetch(
    root: Path, progress: Progress = lambda *_: None, say: Callable[[str], None] = print
) -> None:
    """Download the files that are not there, to where the others are."""
    there = [path for source in _all() if (path := _find(root, source))]
    folder = there[0].parent if there else root / "mnist"
    for source in missing(root):
        download(source.gz, folder, MIRRORS, progress, say)


def check(root: Path) -> None:
    """Are all files there? An error names the first that is not."""
    for source in _all():
        _path(root, source)


def verify(root: Path) -> None:
    """Read all files; an error names the first that is missing or not what was published."""
    for source in _all():
        _read(root, source)


def faults(root: Path) -> list[str]:
    """A sentence on each file that is there and not what was published; takes a moment."""
    found = []
    for source in _all():
        if _find(root, source):
            try:
                _read(root, source)
            except UserError as error:
                found.append(str(error))
    return found


def _all() -> list[Source]:
    return [source for sources in SOURCES.values() for source in sources]


def _places(root: Path) -> list[Path]:
    return [root / "mnist", root / "MNIST" / "raw", root]  # ours, torchvision's, the files alone


def _find(root: Path, source: Source) -> Path | None:
    paths = [folder / name for folder in _places(root) for name in source.names]
    return next(filter(os.path.isfile, paths), None)


def _path(root: Path, source: Source) -> Path:
    if (path := _find(root, source)) is None:
        *places, last = map(str, _places(root))
        raise UserError(
            f"{source.gz.name} is not in {', '.join(places)} or {last}; fetch it by "
            f"{_command(root)}, or point --data at a folder that has it."
        )
    return path


def _read(root: Path, source: Source) -> np.ndarray:
    """The array of a file, verified."""
    path = _path(root, source)
    try:
        content = idx.content(path)
    except UserError as error:
        raise UserError(
            f"{str(error).rstrip('.')} by {_command(root)}; expected md5 {source.gz.checksum}."
        ) from None
    if (found := hashlib.sha256(content).hexdigest()) != source.sha256:
        raise UserError(
            f"{path} is not MNIST's: its content has sha256 {found}; expected {source.sha256}, "
            f"so remove it and run {_command(root)}."
        )
    return idx.parse(content, source.dimensions, path)


def _command(root: Path) -> str:
    return f"fspool data mnist --data {shlex.quote(str(root))}"


# --------------------------------------------------------------------------------------------------
# Sets


def load(root: Path | str, split: str, say: Callable[[str], None] = print) -> MnistSets:
    """The sets of a split, train or test; kept beside the files where that is possible."""
    root, sources = Path(root), SOURCES[nearest("split", split, SOURCES)]
    path = _path(root, sources[0]).with_name(f"sets-{split}.safetensors")
    notes = {"format": FORMAT, "dark": DARK, "sources": [source.sha256 for source in sources]}

    def make() -> dict[str, Tensor]:
        return sets_of(*(_read(root, source) for source in sources))._asdict()

    return MnistSets(**files.kept(path, notes, MnistSets._fields, make, say, fit=_fit))


def _fit(kept: dict[str, Tensor]) -> bool:
    """Can these be sets of MNIST's?"""
    points, offsets, labels = (kept[name] for name in MnistSets._fields)
    if points.dtype != torch.uint8 or labels.dtype != torch.uint8 or labels.ndim != 1:
        return False
    if points.ndim != 2 or points.shape[1] != 2 or len(offsets) != len(labels) + 1:
        return False
    return bool(files.packed(offsets, len(points)) and (points < 28).all() and (labels < 10).all())


def sets_of(images: np.ndarray, labels: np.ndarray) -> MnistSets:
    """One set for each image, ``(B, rows, columns)`` of uint8: the places of its bright pixels."""
    bright = images.reshape(len(images), -1) > DARK
    places = np.indices(images.shape[1:], dtype=np.uint8).reshape(2, -1).T
    points = places[np.nonzero(bright)[1]]
    offsets = np.concatenate(([0], bright.sum(1).cumsum()))
    return MnistSets(*map(torch.from_numpy, (points, offsets, labels.copy())))
