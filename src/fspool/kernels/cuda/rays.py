"""Rays against the solids of their scene, all in registers: nothing is stored for an object.

For the ray caster of :mod:`fspool.data.clevr.render_solids`, whose definitions these follow. Points
and rays are (3, S, R), solids (8, S, n): x, y, z, cos, sin, half, square, bend.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import cdiv

BLOCK = 256


def nearest(point: Tensor, ray: Tensor, solids: Tensor, near: float) -> tuple[Tensor, Tensor]:
    """How far away the first object is that is not too near, and which one it is."""
    far = torch.empty(ray.shape[1:], device=ray.device)
    which = torch.empty(ray.shape[1:], dtype=torch.long, device=ray.device)
    _launch(point, ray, solids, near, far, which, None)
    return far, which


def blocked(point: Tensor, ray: Tensor, solids: Tensor, near: float) -> Tensor:
    """Is there an object between the point and the end of the ray?"""
    found = torch.empty(ray.shape[1:], dtype=torch.bool, device=ray.device)
    _launch(point, ray, solids, near, None, None, found)
    return found


def _launch(point: Tensor, ray: Tensor, solids: Tensor, near: float, far, which, found) -> None:
    _, scenes, rays = ray.shape
    if ray.numel() == 0:
        return
    point, ray, solids = point.contiguous(), ray.contiguous(), solids.contiguous()
    alone = point.shape[2] == 1  # one point for all rays of a scene
    with torch.cuda.device_of(ray):
        _meet[(cdiv(rays, BLOCK), scenes)](
            *(point, ray, solids, far, which, found, scenes, rays, solids.shape[2]),
            *(alone, near, BLOCK),
        )


@triton.jit
def _slab(enter, leave, start, along, half):
    """What is between -half and half along one axis."""
    one, other = (-half - start) / along, (half - start) / along
    return tl.maximum(enter, tl.minimum(one, other)), tl.minimum(leave, tl.maximum(one, other))


@triton.jit(do_not_specialize=["scenes", "rays", "count"])
def _meet(
    point_ptr,
    ray_ptr,
    solid_ptr,
    far_ptr,
    which_ptr,
    found_ptr,
    scenes,
    rays,
    count,
    ALONE: tl.constexpr,
    NEAREST: tl.constexpr,
    WIDTH: tl.constexpr,
):
    scene = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = lane < rays
    plane = scenes.to(tl.int64) * rays
    at = scene * rays + lane
    dx = tl.load(ray_ptr + at, mask=inside, other=1.0)
    dy = tl.load(ray_ptr + plane + at, mask=inside, other=1.0)
    dz = tl.load(ray_ptr + 2 * plane + at, mask=inside, other=1.0)
    if ALONE:
        px = tl.load(point_ptr + scene)
        py = tl.load(point_ptr + scenes + scene)
        pz = tl.load(point_ptr + 2 * scenes + scene)
    else:
        px = tl.load(point_ptr + at, mask=inside, other=0.0)
        py = tl.load(point_ptr + plane + at, mask=inside, other=0.0)
        pz = tl.load(point_ptr + 2 * plane + at, mask=inside, other=0.0)
    far = tl.full((WIDTH,), float("inf"), tl.float32)
    which = tl.zeros((WIDTH,), tl.int32)
    found = tl.zeros((WIDTH,), tl.int32)
    table = scenes.to(tl.int64) * count
    for k in range(0, count):
        own = solid_ptr + scene * count + k
        cos, sin = tl.load(own + 3 * table), tl.load(own + 4 * table)
        half, square = tl.load(own + 5 * table), tl.load(own + 6 * table)
        bend = tl.load(own + 7 * table)
        ox, oy = px - tl.load(own), py - tl.load(own + table)
        z = pz - tl.load(own + 2 * table) + 0 * dz
        x, y = cos * ox + sin * oy + 0 * dx, cos * oy - sin * ox + 0 * dy
        u, v = cos * dx + sin * dy, cos * dy - sin * dx
        a = u * u + v * v + bend * dz * dz
        b = u * x + v * y + bend * dz * z
        c = x * x + y * y + bend * z * z - square
        rest = b * b - a * c
        root = tl.sqrt(tl.maximum(rest, 0.0))
        enter, leave = (-b - root) / a, (root - b) / a
        enter, leave = _slab(enter, leave, x, u, half)
        enter, leave = _slab(enter, leave, y, v, half)
        enter, leave = _slab(enter, leave, z, dz, half)
        if found_ptr is not None:
            met = (rest > 0) & (tl.maximum(enter, NEAREST) < leave) & (enter < 1)
            found |= met.to(tl.int32)
        else:
            met = (rest > 0) & (enter < leave) & (enter > NEAREST) & (enter < far)
            far = tl.where(met, enter, far)
            which = tl.where(met, k, which)
    if found_ptr is not None:
        tl.store(found_ptr + at, found != 0, mask=inside)
    else:
        tl.store(far_ptr + at, far, mask=inside)
        tl.store(which_ptr + at, which.to(tl.int64), mask=inside)
