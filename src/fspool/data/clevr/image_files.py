"""The pictures of CLEVR, read from PNG files for those who have them, and made small."""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ...checks import UserError
from .. import files as data_files
from .arrays import Scenes
from .camera import HEIGHT, WIDTH
from .scene_files import image_name

FORMAT = 2
MODES = {3: "RGB", 4: "RGBA"}  # v1.0 has RGBA, of which nothing is transparent
SHARE = 256  # pictures that are read at once
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, MemoryError)  # what PIL raises


def images_folder(root: Path, split: str) -> Path | None:
    """Where the pictures of a split are: v1.0 has them in images/train."""
    for folder in (root / "clevr" / "CLEVR_v1.0", root / "clevr", root / "CLEVR_v1.0", root):
        for images in (folder / "images" / split, folder / split / "images"):
            if images.is_dir():
                return images
    return None


def image_paths(folder: Path, split: str, scenes: Scenes) -> list[Path]:
    return [folder / image_name(split, image) for image in scenes.image.tolist()]


def listing(paths: list[Path]) -> str:
    """A digest of names and sizes, which is soon made of many files."""
    lines = [f"{path.name} {_size_of(path, row)}" for row, path in enumerate(paths)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def load_images(
    folder: Path, split: str, scenes: Scenes, size: int, say: Callable[[str], None] = print
) -> Tensor:
    """A picture for every scene, uint8 ``(S, 3, size, size)``; kept beside them once it is made."""
    paths = image_paths(folder, split, scenes)
    notes = {"format": FORMAT, "size": size, "files": listing(paths)}

    def make() -> dict[str, Tensor]:
        return {"images": _read_all(paths, size)}

    kept = folder.parent / f"compact-{split}-{size}.safetensors"

    def fit(tensors: dict[str, Tensor]) -> bool:
        images = tensors["images"]
        return images.dtype == torch.uint8 and images.shape == (len(paths), 3, size, size)

    return data_files.kept(kept, notes, ("images",), make, say, slow=True, fit=fit)["images"]


def _size_of(path: Path, row: int) -> int:
    try:
        return path.stat().st_size
    except OSError:
        raise UserError(
            f"{path}, the picture of scene {row}, is not there; expected one for every scene, so "
            "unpack all of CLEVR's images."
        ) from None


def _read_all(paths: list[Path], size: int) -> Tensor:
    made = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for first in range(0, len(paths), SHARE):
            some = range(first, min(first + SHARE, len(paths)))
            pictures = pool.map(lambda row: read_image(paths[row], row), some)
            made[some.start : some.stop] = shrink(torch.stack(list(pictures)), size)
    return made


def read_image(path: Path, row: int = 0) -> Tensor:
    """One picture, uint8 ``(3, 320, 480)``; the row of its scene is for errors."""
    from matplotlib.image import imread  # it comes with the reader of PNG files

    try:
        with open(path, "rb") as file:  # a few bytes may say that they are a very large picture
            _check_size(file.read(24), path, row)
        pixels = np.asarray(imread(path, format="png"))
    except UserError:
        raise
    except BROKEN as error:
        why = str(error) or type(error).__name__
        raise UserError(
            f"{path}, the picture of scene {row}, cannot be read ({why}); fetch it again."
        ) from None
    shape = pixels.shape
    if pixels.ndim != 3 or shape[2] not in MODES:
        found = "grey" if pixels.ndim == 2 else f"of {shape[2]} channels"
        raise UserError(
            f"{path}, the picture of scene {row}, is {found}; expected RGB or RGBA, so fetch it "
            "again."
        )
    pixels = pixels[..., :3]
    if pixels.dtype != np.uint8:
        pixels = (pixels * 255).round().astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)


def _check_size(head: bytes, path: Path, row: int) -> None:
    """By the header of a PNG file; whatever has another one cannot be read."""
    if head[:8] != b"\x89PNG\r\n\x1a\n" or len(head) < 24:
        return
    width, height = struct.unpack(">II", head[16:24])
    if (height, width) != (HEIGHT, WIDTH):
        raise UserError(
            f"{path}, the picture of scene {row}, has {width} x {height} pixels; expected "
            f"{WIDTH} x {HEIGHT}, the original size."
        )


def shrink(pictures: Tensor, size: int) -> Tensor:
    """To squares, bilinear with antialiasing; the ratio of the sides is not kept."""
    small = interpolate(
        pictures.float(), (size, size), mode="bilinear", align_corners=False, antialias=True
    )
    return small.round().clamp(0, 255).to(torch.uint8)
