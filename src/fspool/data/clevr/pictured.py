"""Pictures with what is to be found in them: a split for networks that predict sets."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...checks import UserError, nearest
from .. import files as data_files
from . import targets
from .arrays import Scenes, scenes_fit
from .blocks import blocks
from .compact import find, source_paths
from .generate import _begin
from .image_files import images_folder, load_images
from .placement import sample
from .render import render
from .scene_files import read_scenes
from .vocabulary import OBJECTS

TASKS = {"boxes": targets.boxes, "states": targets.states}
CHANNELS = {"boxes": 4, "states": 18}


class Pictured(NamedTuple):
    """Pictures on a device, and sets of up to 10 elements, the last channel their mask."""

    images: Tensor  # uint8 (S, 3, size, size)
    sets: Tensor  # float32 (S, slots, channels + 1)
    scenes: Scenes


def twin(split: str, count: int, seed: int = 0, workers: int = 1) -> Scenes:
    """The first scenes of a twin, those that ``fspool data clevr --scenes`` makes."""
    plan = [
        (seed, f"clevr/{split}/{block.first}", block.count, block.first)
        for block in blocks(seed, split, count, False)
    ]
    if workers == 1 or len(plan) < 8:
        made = [sample(*block) for block in plan]
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(workers, len(plan)), context, initializer=_begin) as pool:
            made = [Scenes(*map(torch.from_numpy, arrays)) for arrays in pool.map(_make, plan)]
    return Scenes(*(torch.cat(parts) for parts in zip(*made, strict=True)))


def _make(block: tuple) -> list:
    return [tensor.numpy() for tensor in sample(*block)]


def kept_twin(
    root: Path, split: str, count: int, workers: int, say: Callable[[str], None] = print
) -> Scenes:
    """The same, kept in the folder of data sets where that can be written."""
    path = root / "clevr" / f"twin-{split}-{count}.safetensors"

    def make() -> dict[str, Tensor]:
        return twin(split, count, workers=workers)._asdict()

    notes = {"format": 1, "split": split, "scenes": count}
    slow = count > 10_000
    tensors = data_files.kept(path, notes, Scenes._fields, make, say, slow=slow, fit=_fit)
    return Scenes(*(tensors[name] for name in Scenes._fields))


def _fit(tensors: dict[str, Tensor]) -> bool:
    return scenes_fit(Scenes(**tensors))


def original(root: Path, split: str) -> Scenes:
    """The scenes of CLEVR's own file."""
    return read_scenes(scenes_file(root, split))


def scenes_file(root: Path, split: str) -> Path:
    """Where it is, whether its questions are there or not."""
    place = find(root, split)
    if place is not None and place.sources is not None:
        return place.sources[0]
    for folder in (root / "clevr" / "CLEVR_v1.0", root / "clevr", root / "CLEVR_v1.0", root):
        path = source_paths(folder, split)[0]
        for form in (path, path.with_name(f"{path.name}.gz")):
            if form.is_file():
                return form
    raise UserError(
        f"CLEVR_{split}_scenes.json is not in scenes of {root} or {root / 'clevr'}; point --data "
        "at CLEVR_v1.0, or leave source=files out to use a twin."
    )


def picture(
    scenes: Scenes,
    task: str,
    *,
    size: int = 128,
    slots: int = OBJECTS,
    device: torch.device | str = "cpu",
    images: Tensor | None = None,
) -> Pictured:
    """Scenes with their pictures, rendered where none are given, and what is to be found."""
    if images is None:
        images = render(scenes, size=size, device=device)
    return Pictured(images.to(device), sets_of(scenes, task, slots).to(device), scenes)


def sets_of(scenes: Scenes, task: str, slots: int = OBJECTS) -> Tensor:
    """Boxes or states, and the mask as the last channel; zeros for no object."""
    most = int(scenes.sizes.max())
    if most > slots:
        row = int(scenes.sizes.argmax())
        raise UserError(
            f"scene {row} (image {int(scenes.image[row])}) has {most} objects; expected at most "
            f"{slots}, the slots of a predicted set."
        )
    make = TASKS[nearest("task", task, TASKS)]
    return torch.cat((make(scenes), scenes.mask[..., None].float()), -1)[:, :slots]


def from_files(
    root: Path,
    split: str,
    task: str,
    *,
    size: int = 128,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = print,
    scenes: Scenes | None = None,
) -> Pictured:
    """The original with its pictures; where a folder has scenes alone, they are rendered.

    Scenes that were read already need not be read again.
    """
    scenes = original(root, split) if scenes is None else scenes
    folder = images_folder(root, split)
    if folder is None:
        say(f"{root} has scenes of {split}, and no pictures of them: they are rendered.")
    images = load_images(folder, split, scenes, size, say) if folder else None
    return picture(scenes, task, size=size, device=device, images=images)
