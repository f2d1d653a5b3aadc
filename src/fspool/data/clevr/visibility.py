"""Is enough to be seen of every object? Rays instead of a renderer.

The original asks for 200 pixels of each object in a picture of flat colours. Here objects are met
by rays in a grid over their bounding square. Objects that nothing can hide are not looked at.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from .camera import FOCAL, HEIGHT, WIDTH, Camera, project, ray
from .vocabulary import VALUES

LEAST = 200.0  # pixels
GRID = 24  # rays along a side of the bounding square
EDGE = 0.94  # of a cube: half a side by radius, measured in pictures of v1.0; it has round edges
REACH = {"sphere": 1.0, "cylinder": 2**0.5, "cube": EDGE * 3**0.5}  # of the farthest point
CORE = {"sphere": 1.0, "cylinder": 1.0, "cube": EDGE}  # of the nearest point of the surface
SLACK = 1.1  # a ball off the axis is seen as a larger ellipse


class Solids(NamedTuple):
    """Objects as a camera sees them, one row each."""

    coords: Tensor  # float64 (..., 3)
    radius: Tensor
    shape: Tensor  # a place in the values of shape
    angle: Tensor  # the file's rotation, in radians: that is how its pictures were made

    def of(self, rows: Tensor | tuple[Tensor, Tensor]) -> Solids:
        return Solids(*(tensor[rows] for tensor in self))


def visible(camera: Camera, solids: Solids, mask: Tensor) -> Tensor:
    """Whether every object of a scene can be seen; bool ``(S,)`` of solids ``(S, n)``."""
    square = _squares(camera, solids)
    overlap = _overlaps(square, mask)
    scene, one = torch.nonzero(mask & ~_certain(camera, solids, square, overlap), as_tuple=True)
    pixels = seen(camera, solids, square, overlap, scene, one)
    result = torch.ones(len(mask), dtype=torch.bool)
    result[scene[pixels < LEAST]] = False
    return result


def count_pixels(camera: Camera, solids: Solids, mask: Tensor) -> Tensor:
    """About how many pixels are seen of every object, ``(S, n)``."""
    square = _squares(camera, solids)
    scene, one = torch.nonzero(mask, as_tuple=True)
    pixels = torch.zeros(mask.shape, dtype=torch.float64)
    pixels[mask] = seen(camera, solids, square, _overlaps(square, mask), scene, one)
    return pixels


# --------------------------------------------------------------------------------------------------
# Who needs a look


def _by_shape(solids: Solids, table: dict[str, float]) -> Tensor:
    values = torch.tensor([table[name] for name in VALUES["shape"]], dtype=torch.float64)
    return solids.radius * values[solids.shape]


def _squares(camera: Camera, solids: Solids) -> Tensor:
    """Column and row of the middle and half the side of a square around each object."""
    column, row, depth = project(camera, solids.coords).unbind(-1)
    reach = _by_shape(solids, REACH)
    return torch.stack((column, row, SLACK * FOCAL * reach / (depth - reach)), -1)


def _overlaps(square: Tensor, mask: Tensor) -> Tensor:
    """Pixels that the square of j has in common with that of i, ``(S, i, j)``; 0 for itself."""
    middle, half = square[..., :2], square[..., 2]
    apart = (middle[:, :, None] - middle[:, None]).abs()
    both = half[:, :, None] + half[:, None]
    widest = 2 * torch.minimum(half[:, :, None], half[:, None])
    sides = torch.minimum(both[..., None] - apart, widest[..., None]).clamp(min=0)
    others = mask[:, None] & mask[:, :, None] & ~torch.eye(mask.shape[1], dtype=torch.bool)
    return sides.prod(-1) * others


def _certain(camera: Camera, solids: Solids, square: Tensor, overlap: Tensor) -> Tensor:
    """Inside the picture, and with more pixels than all others together could hide."""
    column, row, half = square.unbind(-1)
    inside = (column > half) & (column < WIDTH - half) & (row > half) & (row < HEIGHT - half)
    depth = project(camera, solids.coords)[..., 2]
    disc = math.pi * (FOCAL * _by_shape(solids, CORE) / depth) ** 2
    return inside & (disc - overlap.sum(-1) >= LEAST)


# --------------------------------------------------------------------------------------------------
# Rays


def seen(
    camera: Camera, solids: Solids, square: Tensor, overlap: Tensor, scene: Tensor, one: Tensor
) -> Tensor:
    """Pixels that are seen of chosen objects, whose scenes and places are given."""
    columns, rows = _grid(square[scene, one].float())
    near = camera.of(scene)
    rays = ray(near, columns, rows)
    depth = meet(near.place, rays, solids.of((scene, one)))
    seen = (columns > 0) & (columns < WIDTH) & (rows > 0) & (rows < HEIGHT) & depth.isfinite()
    pair, other = torch.nonzero(overlap[scene, one], as_tuple=True)
    hider = solids.of((scene[pair], other))
    hides = meet(near.place[pair], [axis[pair] for axis in rays], hider) < depth[pair]
    seen &= torch.zeros(seen.shape, dtype=torch.int32).index_add_(0, pair, hides.int()) == 0
    cell = (2 * square[scene, one, 2] / GRID) ** 2
    return seen.sum(-1) * cell


def _grid(square: Tensor) -> tuple[Tensor, Tensor]:
    """Columns and rows of the rays over squares ``(D, 3)``: ``(D, GRID * GRID)``."""
    steps = (2 * torch.arange(GRID) + 1) / GRID - 1
    column, row, half = (part[:, None] for part in square.unbind(-1))
    return column + half * steps.repeat(GRID), row + half * steps.repeat_interleave(GRID)


def meet(origin: Tensor, rays: list[Tensor], solids: Solids) -> Tensor:
    """The depth at which rays, three of ``(D, R)``, enter their solid; infinite where they miss."""
    depth = torch.full(rays[0].shape, math.inf)
    for number, name in enumerate(VALUES["shape"]):
        rows = torch.nonzero(solids.shape == number)[:, 0]
        part = solids.of(rows)
        start = list((origin[rows] - part.coords).float()[..., None].unbind(1))
        enter, leave = _SPANS[name](start, [axis[rows] for axis in rays], part)
        depth[rows] = torch.where(enter < leave, enter, math.inf)
    return depth


def _sphere(start: list[Tensor], rays: list[Tensor], solids: Solids) -> tuple[Tensor, Tensor]:
    return _round(start, rays, solids.radius.float()[:, None])


def _cylinder(start: list[Tensor], rays: list[Tensor], solids: Solids) -> tuple[Tensor, Tensor]:
    radius = solids.radius.float()[:, None]
    around = _round(start[:2], rays[:2], radius)
    between = _slab(start[2], rays[2], radius)
    return torch.maximum(around[0], between[0]), torch.minimum(around[1], between[1])


def _cube(start: list[Tensor], rays: list[Tensor], solids: Solids) -> tuple[Tensor, Tensor]:
    half = EDGE * solids.radius.float()[:, None]
    angle = solids.angle[:, None]
    cos, sin = angle.cos().float(), angle.sin().float()  # of hundreds of radians
    turned = [(cos * x + sin * y, cos * y - sin * x, z) for x, y, z in (start, rays)]
    enter, leave = zip(*(_slab(s, r, half) for s, r in zip(*turned, strict=True)), strict=True)
    return reduce(torch.maximum, enter), reduce(torch.minimum, leave)


def _round(start: list[Tensor], rays: list[Tensor], radius: Tensor) -> tuple[Tensor, Tensor]:
    """Where rays enter and leave a ball or a circle; nan where they miss it."""
    a, b, c = (_dot(*pair) for pair in ((rays, rays), (rays, start), (start, start)))
    root = (b * b - a * (c - radius**2)).sqrt()
    return (-b - root) / a, (-b + root) / a


def _slab(start: Tensor, ray: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Where rays enter and leave what is between -half and half along one axis."""
    one, other = (-half - start) / ray, (half - start) / ray
    return torch.minimum(one, other), torch.maximum(one, other)


def _dot(a: list[Tensor], b: list[Tensor]) -> Tensor:
    return sum(x * y for x, y in zip(a, b, strict=True))


_SPANS = {"sphere": _sphere, "cylinder": _cylinder, "cube": _cube}
