"""Where data sets are, and where what is made of them is kept."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import Tensor

from .. import storage


def find_root(data: str | Path | None = None) -> Path:
    """Where data sets are: what was asked for, else FSPOOL_DATA, else data in this folder."""
    return Path(data or os.environ.get("FSPOOL_DATA") or "data")


def kept(
    path: Path,
    notes: dict,
    names: Collection[str],
    make: Callable[[], dict[str, Tensor]],
    say: Callable[[str], None],
    slow: bool = False,
    fit: Callable[[dict[str, Tensor]], bool] = lambda tensors: True,
) -> dict[str, Tensor]:
    """The tensors of these names that are kept in a file; where there are none they are made.

    ``notes`` say what they are made of: what was made of something else does not count. What is
    slow to make is missed when it cannot be kept, so that is said; the rest takes a moment.
    ``fit`` says whether what a file has can be what was kept, for a checksum does not.
    """
    tensors = _read(path, notes, names, say, fit)
    if tensors is None:
        tensors = make()
        try:
            check_writable(path.parent)
            path.parent.mkdir(parents=True, exist_ok=True)
            storage.write_tensors(path, tensors, notes)
        except OSError as error:
            if slow:
                size = sum(tensor.nbytes for tensor in tensors.values())
                say(
                    f"{path} cannot be kept ({error.strerror or error}); it needs "
                    f"{size / 1e6:.1f} MB, so make room, or it is made again every time."
                )
    return tensors


def check_writable(folder: Path) -> None:
    """An OSError where the folder, or the one that it would be made in, is marked as read-only:
    that is left alone, by root too."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not place.stat().st_mode & 0o222:
        raise PermissionError(errno.EACCES, "the folder is read-only")


def packed(offsets: Tensor, rows: int) -> bool:
    """Are these the offsets of so many rows?"""
    if offsets.dtype != torch.int64 or offsets.ndim != 1 or not len(offsets):
        return False
    return bool(offsets[0] == 0 and offsets[-1] == rows and (offsets.diff() >= 0).all())


def _read(path: Path, notes: dict, names: Collection[str], say, fit) -> dict[str, Tensor] | None:
    """What is in the file; None where there is none, or it was made of something else."""

    def read(path: Path) -> dict[str, Tensor]:
        tensors, found = storage.read_tensors(path)
        if found != notes:
            raise storage.Damaged(f"{path} was made of other files, or by another version")
        if tensors.keys() != set(names) or not fit(tensors):
            raise storage.Damaged(f"{path} holds something else")
        return tensors

    try:
        return storage.read_or_set_aside(path, read, say)
    except OSError as error:
        say(f"{path} cannot be used ({error}); the sets are made again.")
        return None
