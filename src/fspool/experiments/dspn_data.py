"""Pictures with their sets for training and tests, the same whoever asks."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..data.clevr.arrays import Scenes
from ..data.clevr.image_files import image_paths, images_folder, listing
from ..data.clevr.pictured import Pictured, from_files, kept_twin, original, picture, scenes_file
from ..data.clevr.vocabulary import OBJECTS
from ..data.files import find_root
from ..lab import parallel
from ..lab.launch import cores

RENDERED = "-rendered"  # at the end of a digest: files of scenes, and no pictures


class Batch(NamedTuple):
    """Pictures, true sets, and noise that sets may start from."""

    images: Tensor  # uint8 (G, B, 3, size, size)
    sets: Tensor  # (G, B, slots, channels + 1)
    noise: Tensor  # like sets
    count: Tensor  # (G, 1), pictures of the batch, of which several processes may have a share each


@lru_cache(maxsize=4)
def load_pictured(
    source: str, root: str, split: str, count: int, size: int, task: str, device: torch.device
) -> Pictured:
    """Pictures are the same for both tasks, so they are made once."""
    images, scenes = _images(source, root, split, count, size, device)
    return picture(scenes, task, size=size, slots=OBJECTS, device=device, images=images)


class Found(NamedTuple):
    """What the files of a folder have."""

    content: str  # a digest, so that runs of other files are never taken for runs of these
    scenes: int
    test_scenes: int


@lru_cache(maxsize=4)
def found_in(root: str) -> Found:
    where, seen, pictured, counts = find_root(root or None), hashlib.sha256(), True, []
    for split in ("train", "val"):
        with open(scenes_file(where, split), "rb") as file:
            seen.update(hashlib.file_digest(file, "sha256").digest())
        scenes, folder = _scenes(where, split), images_folder(where, split)
        counts.append(len(scenes.image))
        if folder:
            seen.update(listing(image_paths(folder, split, scenes)).encode())
        pictured &= folder is not None
    return Found(seen.hexdigest()[:16] + ("" if pictured else RENDERED), *counts)


@lru_cache(maxsize=2)
def _scenes(where: Path, split: str) -> Scenes:
    """To count them, and for their pictures."""
    return original(where, split)


@lru_cache(maxsize=2)
def _images(source: str, root: str, split: str, count: int, size: int, device: torch.device):
    where = find_root(root or None)
    if source == "files":
        known = _scenes(where, split)
        made = from_files(where, split, "boxes", size=size, device=device, scenes=known)
        scenes = Scenes(*(tensor[:count] for tensor in made.scenes))
        return made.images[:count], scenes
    scenes = parallel.first_then_others(lambda: kept_twin(where, split, count, cores()), device)
    made = picture(scenes, "boxes", size=size, device=device)
    return made.images, made.scenes
