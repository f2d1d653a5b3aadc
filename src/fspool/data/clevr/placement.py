"""Random scenes: how many objects, where, what they are like, and whether all can be seen.

Many scenes are made at once: each tries its places, and those that fail begin again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import draws
from .arrays import Scenes
from .camera import BASE, JITTER, Camera, look, project
from .clock import Clock
from .relations import relations
from .visibility import Solids, visible
from .vocabulary import DIRECTIONS, FEATURES, OBJECTS, RADII, VALUES

FEWEST = 3  # objects
TRIES = 50  # places for an object, before its scene begins again
FEW = 6  # of them are looked at first, all at once
DRAFTS = 8  # of a scene at once, where few are left
SIDE = 3.0  # places are within this of the middle, along x and y
GAP = 0.25  # between objects, taken as discs
MARGIN = 0.4  # along left-right and along front-behind, so that relations are clear

Draw = Callable[..., Tensor]  # what for, and a shape, to numbers in [0, 1)


class Draft(NamedTuple):
    """Scenes that still have to prove themselves."""

    coords: Tensor  # float32 (S, 10, 3)
    attributes: Tensor  # uint8 (S, 10, 4), from 1
    rotation: Tensor  # float32 (S, 10)

    def of(self, rows: Tensor) -> Draft:
        return Draft(*(tensor[rows] for tensor in self))

    @property
    def solids(self) -> Solids:
        radii, sizes = (_column(self.attributes, name).long() - 1 for name in ("size", "shape"))
        radius = torch.tensor([RADII[name] for name in VALUES["size"]], dtype=torch.float64)[radii]
        return Solids(self.coords.double(), radius, sizes, self.rotation.double())


def sample(
    seed: int, purpose: str, count: int, first: int = 0, clock: Clock | None = None
) -> Scenes:
    """Scenes with the images ``first`` and following; the same for the same seed and purpose."""
    clock = Clock() if clock is None else clock
    draw = _drawer(seed, purpose, 0)
    sizes = FEWEST + (draw("count", count) * (OBJECTS + 1 - FEWEST)).long()
    base = torch.tensor(BASE, dtype=torch.float64)
    camera = look(base + JITTER * (2 * draw("camera", count, 3) - 1))
    made = _blank(count)
    left = torch.arange(count)
    turn = 0
    while len(left):  # those that fail keep their camera and their count
        rows = left.repeat_interleave(max(1, min(count // len(left), DRAFTS)))
        with clock.on("placement"):
            draft, placed = propose(_drawer(seed, purpose, turn), sizes[rows])
            rows = rows[placed]
        with clock.on("visibility"):
            good = visible(camera.of(rows), draft.solids, _mask(sizes[rows]))
        for whole, part in zip(made, draft.of(good).of(first_of(rows[good])), strict=True):
            whole[rows[good].unique()] = part
        left = left[~torch.isin(left, rows[good])]
        turn += 1
    return _finish(made, sizes, camera, first)


def first_of(rows: Tensor) -> Tensor:
    """Where each value of a sorted tensor is for the first time."""
    return torch.nonzero(rows.diff(prepend=rows.new_full((1,), -1)))[:, 0]


def propose(draw: Draw, sizes: Tensor) -> tuple[Draft, Tensor]:
    """Scenes in which all objects found a place, and which of all they are."""
    size = (draw("size", len(sizes), OBJECTS) * 2).long()
    radius = torch.tensor([RADII[name] for name in VALUES["size"]], dtype=torch.float64)[size]
    places, placed = _places(draw("place", len(sizes), OBJECTS, TRIES, 2), radius, sizes)
    columns = [size if name == "size" else _values(draw, name, len(sizes)) for name in FEATURES]
    mask = _mask(sizes)
    draft = Draft(
        coords=torch.cat((places, radius[..., None]), -1).float() * mask[..., None],
        attributes=((torch.stack(columns, -1) + 1) * mask[..., None]).to(torch.uint8),
        rotation=(360 * draw("rotation", len(sizes), OBJECTS)).float() * mask,
    )
    return draft.of(placed), placed


def _places(draws: Tensor, radius: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The first of its tries that keeps an object away from those before it, ``(S, 10, 2)``."""
    places = torch.zeros(len(sizes), OBJECTS, 2, dtype=torch.float64)
    alive = torch.arange(len(sizes))
    placed = torch.ones(len(sizes), dtype=torch.bool)
    for k in range(OBJECTS):
        alive = alive[placed[alive] & (sizes[alive] > k)]
        rows = alive
        for some in (slice(0, FEW), slice(FEW, TRIES)):  # most fit at once
            tries = SIDE * (2 * draws[rows, k, some] - 1)
            found, first = _fits(tries, radius[rows], places[rows, :k]).max(1)
            places[rows, k] = tries[torch.arange(len(rows)), first]
            rows = rows[~found]
        placed[rows] = False
    return places, placed


def _fits(tries: Tensor, radius: Tensor, others: Tensor) -> Tensor:
    """Which places ``(S, T, 2)`` are far enough from the k others ``(S, k, 2)``; bool ``(S, T)``.

    Objects have these radii ``(S, 10)``; the one that looks for a place is the next, k.
    """
    k = others.shape[1]
    x, y = (
        a[:, :, None] - b[:, None] for a, b in zip(tries.unbind(-1), others.unbind(-1), strict=True)
    )
    clear = x * x + y * y >= (radius[:, k, None] + radius[:, :k] + GAP).square()[:, None]
    for name in ("right", "behind"):
        along = x * DIRECTIONS[name][0] + y * DIRECTIONS[name][1]
        clear &= along.abs() >= MARGIN
    return clear.all(-1)


def _values(draw: Draw, name: str, count: int) -> Tensor:
    return (draw(name, count, OBJECTS) * len(VALUES[name])).long()


def _finish(made: Draft, sizes: Tensor, camera: Camera, first: int) -> Scenes:
    mask = _mask(sizes)
    pixels = project(camera, made.coords.double())
    pixels[..., :2] = pixels[..., :2].round()
    return Scenes(
        image=torch.arange(first, first + len(sizes), dtype=torch.int32),
        sizes=sizes.to(torch.uint8),
        **made._asdict(),
        pixels=pixels.float() * mask[..., None],
        relations=relations(made.coords, mask),
    )


def _blank(count: int) -> Draft:
    return Draft(
        torch.zeros(count, OBJECTS, 3),
        torch.zeros(count, OBJECTS, len(FEATURES), dtype=torch.uint8),
        torch.zeros(count, OBJECTS),
    )


def _drawer(seed: int, purpose: str, turn: int) -> Draw:
    def draw(what: str, *shape: int) -> Tensor:
        return draws.uniform([seed], range(turn, turn + 1), f"{purpose}/{what}", shape)[0, 0]

    return draw


def _mask(sizes: Tensor) -> Tensor:
    return torch.arange(OBJECTS) < sizes[:, None]


def _column(attributes: Tensor, name: str) -> Tensor:
    return attributes[..., FEATURES.index(name)]
