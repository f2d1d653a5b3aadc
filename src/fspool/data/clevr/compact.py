"""The compact form of a split: made of its two files once, and kept beside them.

A folder may be laid out as v1.0 is (``scenes/CLEVR_train_scenes.json``), or as the public generator
writes (``train/CLEVR_scenes.json``), each file compressed or not. A twin may come without them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ... import storage
from ...checks import UserError, nearest
from .. import files as data_files
from .arrays import Clevr, Questions, Scenes, questions_fit, scenes_fit
from .question_files import read_questions
from .scene_files import read_scenes
from .vocabulary import SPLITS, WORDS

FORMAT = 1
NAMES = tuple(f"scenes.{n}" for n in Scenes._fields) + tuple(
    f"questions.{n}" for n in Questions._fields
)
MAKE = "fspool data clevr --scenes 70000 --out DIR"
AGAIN = f"remove it: fspool run makes its small twins again, and {MAKE} a whole one"


class Place(NamedTuple):
    """Where a split is; a twin may have only the compact form."""

    kept: Path
    sources: tuple[Path, Path] | None  # scenes and questions


def load(root: Path | str, split: str, say: Callable[[str], None] = print) -> Clevr:
    """The scenes and questions of a split, train or val; kept beside the files."""
    root = Path(root)
    place = find(root, nearest("split", split, SPLITS))
    if place is None:
        raise UserError(
            f"CLEVR_{split}_scenes.json and CLEVR_{split}_questions.json are not in scenes and "
            f"questions of {root} or {root / 'clevr'}; point --data at CLEVR_v1.0, or make a twin "
            f"by {MAKE}."
        )
    if place.sources is None:
        return _alone(place.kept)
    scenes_path, questions_path = place.sources

    def make() -> dict[str, Tensor]:
        scenes = read_scenes(scenes_path)
        return pack(Clevr(scenes, read_questions(questions_path, scenes, scenes_path)))

    made_of = notes(place.sources)
    return unpack(data_files.kept(place.kept, made_of, NAMES, make, say, slow=True, fit=_fit))


def _fit(tensors: dict[str, Tensor]) -> bool:
    scenes, questions = unpack(tensors)
    return scenes_fit(scenes) and questions_fit(questions, len(scenes.sizes))


def find(root: Path, split: str) -> Place | None:
    """The first place that has all of a split."""
    for folder in (root / "clevr" / "CLEVR_v1.0", root / "clevr", root / "CLEVR_v1.0", root):
        kept = kept_path(folder, split)
        for pair in _pairs(folder, split):
            found = tuple(path for name in pair for path in _forms(name) if path.is_file())
            if len(found) == 2:
                return Place(kept, found)
        if kept.is_file():
            return Place(kept, None)
    return None


def kept_path(folder: Path, split: str) -> Path:
    return folder / f"compact-{split}.safetensors"


def source_paths(folder: Path, split: str) -> tuple[Path, Path]:
    """Where v1.0 has its two files."""
    return tuple(folder / kind / f"CLEVR_{split}_{kind}.json" for kind in ("scenes", "questions"))


def _pairs(folder: Path, split: str) -> Iterator[tuple[Path, Path]]:
    yield source_paths(folder, split)
    yield folder / split / "CLEVR_scenes.json", folder / split / "CLEVR_questions.json"


def _forms(path: Path) -> Iterator[Path]:
    """One of them, though both may be there."""
    packed = path.with_name(f"{path.name}.gz")
    yield path if path.is_file() else packed


def notes(sources: tuple[Path, Path] | None) -> dict:
    """What the compact form is made of; of what it is made is decided by content."""
    digests = [_digest(path) for path in sources or ()]
    return {"format": FORMAT, "words": len(WORDS), "sources": digests}


def _digest(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}); make it readable, or fetch it "
            "again."
        ) from None


def _alone(path: Path) -> Clevr:
    try:
        tensors, found = storage.read_tensors(path)
    except (OSError, storage.Damaged) as error:
        raise UserError(f"{error}; {AGAIN}.") from None
    if found.get("format") != FORMAT or tensors.keys() != set(NAMES) or not _fit(tensors):
        raise UserError(f"{path} holds something else; {AGAIN}.")
    return unpack(tensors)


def pack(data: Clevr) -> dict[str, Tensor]:
    parts = {"scenes": data.scenes, "questions": data.questions}
    return {f"{k}.{name}": t for k, part in parts.items() for name, t in part._asdict().items()}


def unpack(tensors: dict[str, Tensor]) -> Clevr:
    return Clevr(
        Scenes(*(tensors[f"scenes.{name}"] for name in Scenes._fields)),
        Questions(*(tensors[f"questions.{name}"] for name in Questions._fields)),
    )
