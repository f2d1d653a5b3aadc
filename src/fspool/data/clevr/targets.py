"""What a network that predicts sets has to find in a picture (section 6.5): states, boxes."""

from __future__ import annotations

import torch
from torch import Tensor

from .arrays import Scenes
from .vocabulary import DIRECTIONS, FEATURES, VALUES

WIDTH, HEIGHT = 480, 320  # of the pictures


def states(scenes: Scenes) -> Tensor:
    """Place / 3, and material, colour, shape, size one-hot: ``(S, 10, 18)``, zeros for none."""
    parts = [scenes.coords / 3]
    for name in ("material", "color", "shape", "size"):
        values = torch.arange(1, len(VALUES[name]) + 1, device=scenes.attributes.device)
        parts.append((_attribute(scenes, name)[..., None] == values).float())
    return torch.cat(parts, -1)


def boxes(scenes: Scenes) -> Tensor:
    """Left, top, right and bottom as shares of the picture: ``(S, 10, 4)``, zeros for none.

    The formula of the released code, which was fitted by hand. Its second line uses the new u
    where a rotation would use x; its constants belong to that.
    """
    x, y, z = scenes.coords.double().unbind(-1)
    column, row, _ = scenes.pixels.double().unbind(-1)
    c, s, _ = DIRECTIONS["right"]
    u = x * c + y * s
    v = y * c - u * s
    wide = up = down = 6.9 * z * (15 - v) / 2
    cylinder, cube = (_is(scenes, shape) for shape in ("cylinder", "cube"))
    far, high = 9.4 + v, 6.4
    tall = z * (high / far + 1)
    up = torch.where(cylinder, up * tall / (tall - z * (high - z) / far), up)
    down = torch.where(cylinder, up * (high - z + far) / (high + z + far), down)
    wide = torch.where(cylinder, wide * 11 / (10 + v), wide)
    up, down, wide = (torch.where(cube, size * 13 / (10 + v), size) for size in (up, down, wide))
    corners = (column - wide, row - down, column + wide, row + up)
    sides = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT], device=x.device)
    return (torch.stack(corners, -1) / sides * scenes.mask[..., None]).float()


def _attribute(scenes: Scenes, name: str) -> Tensor:
    return scenes.attributes[..., FEATURES.index(name)]


def _is(scenes: Scenes, shape: str) -> Tensor:
    return _attribute(scenes, "shape") == VALUES["shape"].index(shape) + 1
