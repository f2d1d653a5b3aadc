"""Where rays meet the solids of a scene: one formula for spheres, cubes and cylinders.

Each is what a box and a round body have in common. The round body of a sphere is the sphere, that
of a cylinder the cylinder without ends, and that of a cube a cylinder that takes its corners off.
Points and directions are ``(3, S, R)``: R rays in each of S scenes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...kernels.operator import HAS_TRITON
from .arrays import Scenes
from .visibility import EDGE
from .vocabulary import FEATURES, RADII, VALUES

ROUND = 1.94  # squared radius of a cube's round body by its squared half side; at 2 it is sharp
SHARP = 24.0  # how suddenly the normal turns at an edge
NEAR = 1e-3  # nothing is met nearer than that: a ray that starts on a solid leaves it


SOLID = 8  # columns of the next that make the form of an object


class Objects(NamedTuple):
    """The objects of S scenes, ``(S, n)`` each, or ``(S, R)``: those that rays meet."""

    x: Tensor
    y: Tensor
    z: Tensor
    cos: Tensor
    sin: Tensor
    half: Tensor  # of the box; 0 where there is no object
    square: Tensor  # squared radius of the round body
    bend: Tensor  # 1 where the round body is bent along z too: spheres
    flat: Tensor  # 1 for cubes
    metal: Tensor  # 0 or 1
    colour: Tensor  # a row of the palette

    def take(self, index: Tensor) -> Objects:
        """Object ``index (S, R)`` of each scene."""
        return Objects(*(tensor.gather(1, index) for tensor in self))


def objects(scenes: Scenes) -> Objects:
    """What there is, in as many columns as the fullest scene needs."""
    count = int(scenes.sizes.max())
    scenes = Scenes(*(t[:, :count] if t.ndim > 1 else t for t in scenes[:-1]), scenes.relations)
    looks = {name: scenes.attributes[..., i].long() - 1 for i, name in enumerate(FEATURES)}
    there = looks["size"] >= 0
    radii = torch.tensor([RADII[name] for name in VALUES["size"]], device=there.device)
    radius = radii[looks["size"].clamp(min=0)] * there
    cube = looks["shape"] == VALUES["shape"].index("cube")
    half = torch.where(cube, EDGE * radius, radius)
    angle = scenes.rotation.double()  # radians, whatever the file says: hundreds of them
    return Objects(
        *scenes.coords.unbind(-1),
        angle.cos().float(),
        angle.sin().float(),
        half,
        torch.where(cube, ROUND, 1.0) * half.square(),
        (looks["shape"] == VALUES["shape"].index("sphere")).float(),
        cube.float(),
        (looks["material"] == VALUES["material"].index("metal")).float(),
        looks["color"].clamp(min=0),
    )


def _turned(v: Tensor, solid: Objects) -> tuple[Tensor, Tensor, Tensor]:
    """A direction as the solid sees it."""
    x, y, z = v.unbind(0)
    return solid.cos * x + solid.sin * y, solid.cos * y - solid.sin * x, z


def _local(point: Tensor, solid: Objects) -> tuple[Tensor, Tensor, Tensor]:
    x, y, z = point.unbind(0)
    return _turned(torch.stack((x - solid.x, y - solid.y, z - solid.z)), solid)


def span(point: Tensor, ray: Tensor, solid: Objects) -> tuple[Tensor, Tensor]:
    """How far along their rays they enter and leave a solid; it is missed unless enter < leave."""
    p, d = _local(point, solid), _turned(ray, solid)
    a = d[0] * d[0] + d[1] * d[1] + solid.bend * d[2] * d[2]
    b = d[0] * p[0] + d[1] * p[1] + solid.bend * d[2] * p[2]
    c = p[0] * p[0] + p[1] * p[1] + solid.bend * p[2] * p[2] - solid.square
    root = (b * b - a * c).sqrt()  # nan where it is missed, and so is all that comes of it
    enter, leave = (-b - root) / a, (root - b) / a
    for start, along in zip(p, d, strict=True):
        one, other = (-solid.half - start) / along, (solid.half - start) / along
        enter = torch.maximum(enter, torch.minimum(one, other))
        leave = torch.minimum(leave, torch.maximum(one, other))
    return enter, leave


def nearest(point: Tensor, ray: Tensor, things: Objects) -> tuple[Tensor, Tensor]:
    """How far away the first object is, infinite for none, and which one it is."""
    solids = torch.stack(things[:SOLID])
    if ray.is_cuda and HAS_TRITON:
        from ...kernels.cuda import rays

        return rays.nearest(point, ray, solids, NEAR)
    return nearest_definition(point, ray, solids)


def blocked(point: Tensor, ray: Tensor, things: Objects) -> Tensor:
    """Is there an object between the point and the end of the ray?"""
    solids = torch.stack(things[:SOLID])
    if ray.is_cuda and HAS_TRITON:
        from ...kernels.cuda import rays

        return rays.blocked(point, ray, solids, NEAR)
    return blocked_definition(point, ray, solids)


def nearest_definition(point: Tensor, ray: Tensor, solids: Tensor) -> tuple[Tensor, Tensor]:
    """solids (8, S, n): the columns of :class:`Objects` that make their forms."""
    shape = torch.broadcast_shapes(point.shape, ray.shape)[1:]
    far, which = ray.new_full(shape, float("inf")), ray.new_zeros(shape, dtype=torch.long)
    for k in range(solids.shape[2]):
        enter, leave = span(point, ray, _form(solids, k))
        met = (enter < leave) & (enter > NEAR) & (enter < far)
        far, which = torch.where(met, enter, far), torch.where(met, k, which)
    return far, which


def blocked_definition(point: Tensor, ray: Tensor, solids: Tensor) -> Tensor:
    found = torch.zeros(ray.shape[1:], dtype=torch.bool, device=ray.device)
    for k in range(solids.shape[2]):
        enter, leave = span(point, ray, _form(solids, k))
        found |= (torch.maximum(enter, torch.full_like(enter, NEAR)) < leave) & (enter < 1)
    return found


def _form(solids: Tensor, k: int) -> Objects:
    return Objects(*solids[:, :, k : k + 1], *[None] * (len(Objects._fields) - SOLID))


def normal(point: Tensor, solid: Objects) -> Tensor:
    """Which way the surface looks, smooth at its edges as those of CLEVR are."""
    x, y, z = (part / solid.half.clamp(min=NEAR) for part in _local(point, solid))
    rim = (x * x + y * y).sqrt().clamp(min=NEAR)
    sphere, cube = solid.bend > 0, solid.flat > 0
    power = SHARP - 1
    around = torch.where(cube, 1.0, rim.pow(power - 1))  # of a cylinder: towards its axis
    nx = torch.where(sphere, x, torch.where(cube, _steep(x, power), x * around))
    ny = torch.where(sphere, y, torch.where(cube, _steep(y, power), y * around))
    nz = torch.where(sphere, z, _steep(z, power))
    back = torch.stack((solid.cos * nx - solid.sin * ny, solid.sin * nx + solid.cos * ny, nz))
    return back / back.norm(dim=0).clamp(min=1e-9)


def _steep(x: Tensor, power: float) -> Tensor:
    return x.sign() * x.abs().pow(power)
