"""Light in the ray caster: three lamps with soft shadows, matte and metal, a grey floor.

The strengths were fitted by eye and by least squares to the floor of original pictures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .render_solids import Objects, blocked, nearest, normal
from .vocabulary import VALUES

RGB = {
    "gray": (87, 87, 87),
    "red": (173, 35, 35),
    "blue": (42, 75, 215),
    "green": (29, 105, 20),
    "brown": (129, 74, 25),
    "purple": (129, 38, 192),
    "cyan": (41, 208, 208),
    "yellow": (255, 238, 51),
}


class Light(NamedTuple):
    """A lamp that is aimed at the origin."""

    place: tuple[float, float, float]
    strength: tuple[float, float, float]  # red, green, blue


LIGHTS = (
    Light((6.447, -2.905, 4.258), (9.8, 9.3, 8.0)),  # key
    Light((-4.671, -4.014, 3.011), (2.4, 2.6, 3.2)),  # fill
    Light((-1.169, 2.646, 5.816), (5.1, 5.1, 5.3)),  # back
)
LIGHT_JITTER = 1.0
LAMP = 1.0  # radius of a lamp: the larger, the softer its shadows
AMBIENT = 0.26
FLOOR = 0.5  # its albedo
SKY = 0.03


def radiance(eye: Tensor, ray: Tensor, things: Objects, lights: Tensor, share: Tensor) -> Tensor:
    """What comes along rays ``(3, S, R)``, linear red, green and blue."""
    point, facing, solid, floor = _meet(eye, ray, things)
    light = _direct(point, facing, things, lights, share)
    albedo = _albedo(solid, floor)
    matte = albedo * light
    ray = ray / ray.norm(dim=0)
    mirrored = ray - 2 * (ray * facing).sum(0) * facing
    seen = _reflected(point, mirrored, things, lights)
    shine = albedo * (0.85 * seen + 0.15 * light + _highlight(point, mirrored, lights))
    return torch.where((solid.metal > 0) & ~floor, shine, matte)


def _meet(eye: Tensor, ray: Tensor, things: Objects) -> tuple[Tensor, Tensor, Objects, Tensor]:
    """Where rays end, which way the surface looks there, and what it is; floor: nothing else."""
    far, which = nearest(eye, ray, things)
    down = torch.where(ray[2] < 0, -eye[2] / ray[2], math.inf)
    floor = ~(far < down)
    point = eye + torch.minimum(far, down).clamp(max=1e3) * ray
    solid = things.take(which)
    upward = torch.zeros_like(point)
    upward[2] = 1
    return point, torch.where(floor, upward, normal(point, solid)), solid, floor


def _albedo(solid: Objects, floor: Tensor) -> Tensor:
    palette = torch.tensor([RGB[name] for name in VALUES["color"]], device=floor.device) / 255
    colour = palette.T[:, solid.colour]
    return torch.where(floor, FLOOR, 0.9 * colour)


def _direct(
    point: Tensor, facing: Tensor, things: Objects | None, lights: Tensor, share: Tensor | None
) -> Tensor:
    """Light that arrives at points; through the objects where there are none to look at."""
    total = AMBIENT * (0.5 + 0.5 * facing[2])
    for i, lamp in enumerate(LIGHTS):
        place = lights[:, i].T[:, :, None]
        way = place - point
        square = (way * way).sum(0)
        near = (way * facing).sum(0).clamp(min=0) * square.rsqrt()
        aim = (way * place).sum(0).clamp(min=0) * square.rsqrt() / place.norm(dim=0)
        arrives = near * aim / square
        if things is not None:
            arrives = arrives * ~blocked(point + 2e-3 * facing, way + _within(share), things)
        total = total + arrives * _strength(lamp, point)
    return total


def _strength(lamp: Light, point: Tensor) -> Tensor:
    return point.new_tensor(lamp.strength)[:, None, None]


def _within(share: Tensor) -> Tensor:
    """A place within a lamp, by a share of it: a spiral."""
    angle, radius = 2 * math.pi * 2.618 * 24 * share, LAMP * share.sqrt()
    return torch.stack((radius * angle.cos(), radius * angle.sin(), 0 * angle))[:, None]


def _reflected(point: Tensor, ray: Tensor, things: Objects, lights: Tensor) -> Tensor:
    """What a mirror sees: the floor and other objects without their shadows, or the dark sky."""
    met, facing, solid, floor = _meet(point + 2e-3 * ray, ray, things)
    light = _albedo(solid, floor) * _direct(met, facing, None, lights, None)
    fade = torch.where(floor, (1 + 0.02 * (met - point).square().sum(0)).reciprocal(), 1.0)
    light = SKY + (light - SKY) * fade
    return torch.where(floor & (ray[2] >= 0), SKY, light)


def _highlight(point: Tensor, mirrored: Tensor, lights: Tensor) -> Tensor:
    """The lamps themselves, seen in a mirror that is not quite even."""
    total = 0
    for i, lamp in enumerate(LIGHTS):
        way = lights[:, i].T[:, :, None] - point
        square = (way * way).sum(0)
        cosine = (way * mirrored).sum(0).clamp(min=0) * square.rsqrt()
        glow = 0.25 * cosine.pow(150) + 0.035 * cosine.pow(12)
        total = total + glow * _strength(lamp, point)
    return total


def to_screen(linear: Tensor) -> Tensor:
    """sRGB, 0 to 1."""
    linear = linear.clamp(0, 1)
    bright = 1.055 * linear.clamp(min=1e-8).pow(1 / 2.4) - 0.055
    return torch.where(linear <= 0.0031308, 12.92 * linear, bright)
