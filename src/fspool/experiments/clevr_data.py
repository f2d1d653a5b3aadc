"""Which questions a run is trained and tried on: from files, or of a twin that is made here."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ..checks import UserError, check_count
from ..data import clevr
from ..data.clevr.batches import Desk
from ..data.clevr.compact import find
from ..data.clevr.families import FAMILIES
from ..data.clevr.generate import generate
from ..data.files import find_root
from ..lab.launch import cores

MOST = 10_000_000  # scenes that anybody has room for


def check_scenes(name: str, value: int, least: int = 1) -> None:
    check_count(name, value, least, "a number of them")
    if value > MOST:
        raise ValueError(f"{name} is {value}; expected at most {MOST}.")


def twin_folder(root: Path, scenes: int) -> Path:
    return root / f"clevr-twin-{scenes}"


@lru_cache(maxsize=8)
def split_of(data: str, split: str, scenes: int, group: str) -> clevr.Clevr:
    root = find_root(data or None)
    if scenes and not all(find(root, name) for name in ("train", "val")):
        root = _twin(root, scenes)
    found = clevr.load(root, split)
    found = found.first(_share_of(scenes, split)) if scenes else found
    if group:
        found = clevr.Clevr(found.scenes, found.questions.where(of_group(found, group)))
    if len(found.questions.answers) == 0:
        raise UserError(
            f"{root} has no questions of {group or split}; point --data at other files."
        )
    return found


def of_group(data: clevr.Clevr, group: str) -> Tensor:
    known = torch.zeros(256, dtype=torch.bool)
    known[: len(FAMILIES)] = torch.tensor([family.group == group for family in FAMILIES])
    return known[data.questions.families.long()]


def _share_of(scenes: int, split: str) -> int:
    return scenes if split == "train" else max(1, round(scenes * 3 / 14))


def _twin(root: Path, scenes: int) -> Path:
    """A small twin, made once."""
    folder = twin_folder(root, scenes)
    missing = {
        split: _share_of(scenes, split) for split in ("train", "val") if not find(folder, split)
    }
    if missing:
        generate(folder, missing, workers=cores(), files=False)
    return folder


@lru_cache(maxsize=4)
def desk_of(data: str, split: str, scenes: int, group: str, device: torch.device) -> Desk:
    return Desk.of(split_of(data, split, scenes, group).to(device))


@lru_cache(maxsize=4)
def contents(data: str, scenes: int, group: str) -> tuple[int, int, str]:
    """How many questions there are to train on and to try, and a digest of all that is in them, so
    that runs of other data are never taken for these."""
    splits = [split_of(data, split, scenes, group) for split in ("train", "val")]
    found = hashlib.sha256()
    for split in splits:
        for tensor in (split.scenes.coords, split.scenes.attributes, *split.questions[:4]):
            found.update(tensor.contiguous().numpy().tobytes())
    train, tried = (len(split.questions.answers) for split in splits)
    return train, tried, found.hexdigest()[:16]
