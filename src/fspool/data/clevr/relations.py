"""Which object is left of, right of, in front of and behind which, as masks of 10 bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .arrays import Scenes
from .programs import Facts
from .vocabulary import ATTRIBUTES, DIRECTIONS, FEATURES, OBJECTS, RELATIONS, VALUES

APART = 0.2  # how far to the left something has to be, to be left of something else


def relations(coords: Tensor, mask: Tensor) -> Tensor:
    """Bit j of ``[s, r, i]`` says that j is left, ... of i; int16 ``(S, 4, 10)``."""
    directions = torch.tensor([DIRECTIONS[name] for name in RELATIONS], dtype=torch.float64)
    along = coords.double() @ directions.T  # (S, 10, 4)
    offset = along[:, None, :, :] - along[:, :, None, :]  # (S, i, j, 4)
    found = (offset > APART) & mask[:, None, :, None] & mask[:, :, None, None]
    bits = 1 << torch.arange(OBJECTS)
    return (found * bits[:, None]).sum(2).transpose(1, 2).to(torch.int16)


def agreeing(scenes: Scenes) -> Tensor:
    """Scenes whose stored relations are those of their places, bool ``(S,)``."""
    parts = zip(
        *(t.split(4096) for t in (scenes.coords, scenes.mask, scenes.relations)), strict=True
    )
    return torch.cat([(relations(c, m) == r).flatten(1).all(1) for c, m, r in parts])


def members(mask: int) -> list[int]:
    """The places of the objects in a set."""
    return [i for i in range(OBJECTS) if mask >> i & 1]


def facts(attributes: Sequence[Sequence[int]], relations: Sequence[Sequence[int]]) -> Facts:
    """The tables of a scene, from its rows of :class:`Scenes` as lists."""
    count = sum(1 for row in attributes if row[0])
    values, having, same = {}, {}, {}
    for name in ATTRIBUTES:
        column, names = FEATURES.index(name), VALUES[name]
        values[name] = [names[row[column] - 1] for row in attributes[:count]]
        having |= dict.fromkeys(names, 0)
        for i, value in enumerate(values[name]):
            having[value] |= 1 << i
        same[name] = [having[value] & ~(1 << i) for i, value in enumerate(values[name])]
    related = dict(zip(RELATIONS, relations, strict=True))
    return Facts((1 << count) - 1, having, values, same, related)
