"""Scenes and questions as tensors, small enough to lie in memory as a whole."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..files import packed
from .vocabulary import ANSWERS, FEATURES, OBJECTS, RELATIONS, VALUES, WORDS


class Scenes(NamedTuple):
    """Scenes of up to 10 objects; places without an object hold zeros."""

    image: Tensor  # int32 (S,): the number of the image
    sizes: Tensor  # uint8 (S,)
    coords: Tensor  # float32 (S, 10, 3)
    attributes: Tensor  # uint8 (S, 10, 4): colour, material, shape, size, counted from 1
    rotation: Tensor  # float32 (S, 10)
    pixels: Tensor  # float32 (S, 10, 3): column, row, depth
    relations: Tensor  # int16 (S, 4, 10): bit j of [s, r, i] says that j is left, ... of i

    @property
    def mask(self) -> Tensor:
        """Where there is an object, bool ``(S, 10)``."""
        return torch.arange(OBJECTS, device=self.sizes.device) < self.sizes[:, None]

    def features(self, slots: int = OBJECTS) -> Tensor:
        """What a model is told: x, y, z and the four attributes as numbers, ``(S, slots, 7)``."""
        both = torch.cat((self.coords, self.attributes.float()), -1)
        return torch.nn.functional.pad(both, (0, 0, 0, slots - OBJECTS))

    def to(self, device: torch.device | str) -> Scenes:
        return Scenes(*(tensor.to(device) for tensor in self))


class Questions(NamedTuple):
    """Packed questions: i has ``words[offsets[i] : offsets[i + 1]]``, numbers from 1."""

    scene: Tensor  # int32 (Q,): a row of the scenes
    words: Tensor  # uint8 (T,)
    offsets: Tensor  # int64 (Q + 1,)
    answers: Tensor  # uint8 (Q,): a place in ANSWERS
    families: Tensor  # uint8 (Q,): a place in FAMILIES, or 255
    right: Tensor  # bool (Q,): the program gives that answer

    def padded(self, length: int | None = None) -> Tensor:
        """One row a question, words first and then zeros, uint8 ``(Q, length)``."""
        sizes = self.offsets.diff()
        length = int(sizes.max()) if length is None else length
        filled = torch.arange(length, device=sizes.device) < sizes[:, None]
        rows = torch.zeros(filled.shape, dtype=torch.uint8, device=sizes.device)
        return rows.masked_scatter_(filled, self.words)

    def where(self, chosen: Tensor) -> Questions:
        """Some of them, bool ``(Q,)``."""
        sizes = self.offsets.diff()
        return Questions(
            *(self.scene[chosen], self.words[chosen.repeat_interleave(sizes)]),
            torch.nn.functional.pad(sizes[chosen].cumsum(0), (1, 0)),
            *(tensor[chosen] for tensor in self[3:]),
        )

    def to(self, device: torch.device | str) -> Questions:
        return Questions(*(tensor.to(device) for tensor in self))


FORMS = {  # of scenes: dtypes, and what comes after the first axis
    "image": (torch.int32, ()),
    "sizes": (torch.uint8, ()),
    "coords": (torch.float32, (OBJECTS, 3)),
    "attributes": (torch.uint8, (OBJECTS, len(FEATURES))),
    "rotation": (torch.float32, (OBJECTS,)),
    "pixels": (torch.float32, (OBJECTS, 3)),
    "relations": (torch.int16, (len(RELATIONS), OBJECTS)),
}
COLUMNS = {  # of questions, but for their words
    "scene": torch.int32,
    "answers": torch.uint8,
    "families": torch.uint8,
    "right": torch.bool,
}


def scenes_fit(scenes: Scenes) -> bool:
    """Can these be scenes? Every number that something is looked up by is where it should be."""
    for name, (dtype, shape) in FORMS.items():
        tensor = getattr(scenes, name)
        if tensor.dtype != dtype or tensor.ndim == 0 or tensor.shape[1:] != shape:
            return False
    if len({len(tensor) for tensor in scenes}) != 1 or not len(scenes.sizes):
        return False
    if scenes.sizes.min() < 1 or scenes.sizes.max() > OBJECTS:
        return False
    mask, limits = scenes.mask, torch.tensor([len(VALUES[name]) for name in FEATURES])
    known = scenes.attributes[mask]
    real = all(t.isfinite().all() for t in (scenes.coords, scenes.rotation, scenes.pixels))
    named = (known > 0).all() and (known <= limits).all() and not scenes.attributes[~mask].any()
    bits = scenes.relations.int() >> scenes.sizes.int()[:, None, None]
    return bool(real and named and (scenes.relations >= 0).all() and not bits.any())


def questions_fit(questions: Questions, scenes: int) -> bool:
    """Can these be questions about so many scenes?"""
    for name, dtype in COLUMNS.items():
        if getattr(questions, name).dtype != dtype or getattr(questions, name).ndim != 1:
            return False
    words, offsets, count = questions.words, questions.offsets, len(questions.answers)
    if any(len(getattr(questions, name)) != count for name in COLUMNS) or not count:
        return False
    if words.dtype != torch.uint8 or words.ndim != 1 or len(offsets) != count + 1:
        return False
    rows, known = questions.scene, words[words > 0]
    return bool(
        packed(offsets, len(words))
        and (offsets.diff() > 0).all()
        and rows.min() >= 0
        and rows.max() < scenes
        and len(known) == len(words)
        and words.max() <= len(WORDS)
        and questions.answers.max() < len(ANSWERS)
    )


class Clevr(NamedTuple):
    """A split."""

    scenes: Scenes
    questions: Questions

    def to(self, device: torch.device | str) -> Clevr:
        return Clevr(self.scenes.to(device), self.questions.to(device))

    def first(self, scenes: int) -> Clevr:
        """So many scenes, and the questions about them."""
        rest = Scenes(*(tensor[:scenes] for tensor in self.scenes))
        return Clevr(rest, self.questions.where(self.questions.scene < scenes))
