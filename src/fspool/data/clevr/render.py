"""Pictures of scenes: a ray caster with CLEVR's camera, lights and colours.

It stands in for the original's renderer, so that there are pictures for a twin. Objects, shadows
and reflections are where the original has them; the light is simpler. What comes out is square and
small, as networks take it: the whole frame of 480 x 320, each pixel the mean of a few rays.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .. import draws
from .arrays import Scenes
from .camera import FOCAL, HEIGHT, WIDTH, Camera, fit
from .render_light import LIGHT_JITTER, LIGHTS, radiance, to_screen
from .render_solids import objects

SIZE = 128
RAYS = (3, 2)  # of a pixel, along columns and rows; a pixel is wider than high
ROOM = {"cpu": 1 << 21, "cuda": 1 << 24}  # rays in one go


@torch.no_grad()
def render(
    scenes: Scenes,
    *,
    size: int | tuple[int, int] = SIZE,
    seed: int | None = 0,
    device: torch.device | str = "cpu",
    rays: tuple[int, int] = RAYS,
    progress: Callable[[int], None] = lambda done: None,
) -> Tensor:
    """Pictures of scenes, uint8 ``(S, 3, rows, columns)``, on the device.

    The camera of each is found from its pixel coordinates. Lights are jittered by the seed and the
    number of the image; None leaves them where they are.
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    device = torch.device(device)
    made = torch.empty(len(scenes.sizes), 3, rows, columns, dtype=torch.uint8, device=device)
    camera = fit(scenes.coords, scenes.pixels, scenes.mask)
    lights = _lights(scenes, seed)
    order = scenes.sizes.argsort(stable=True)  # alike in size: the fewest objects to look at
    share = max(1, ROOM[device.type] // (rows * columns * rays[0] * rays[1]))
    for part in order.split(share):
        few = Scenes(*(tensor[part].to(device) for tensor in scenes))
        eyes = Camera(*(tensor[part].float().to(device) for tensor in camera))
        made[part.to(device)] = _render(few, eyes, lights[part].to(device), rows, columns, rays)
        progress(len(part))
    return made


def _render(
    scenes: Scenes, camera: Camera, lights: Tensor, rows: int, columns: int, rays: tuple[int, int]
) -> Tensor:
    across, down = rays
    ray = _frame(camera, rows * down, columns * across)
    eye = camera.place.T[:, :, None]
    share = _shares(rows * down, columns * across, rays, ray.device)
    colour = radiance(eye, ray, objects(scenes), lights, share)
    colour = colour.unflatten(-1, (rows, down, columns, across)).mean((-1, -3))
    return (to_screen(colour) * 255).round().to(torch.uint8).transpose(0, 1)


def _frame(camera: Camera, rows: int, columns: int) -> Tensor:
    """Rays through the middles of so many cells of the frame, ``(3, S, rows * columns)``."""
    device = camera.place.device
    column = (torch.arange(columns, device=device) + 0.5) * (WIDTH / columns)
    row = (torch.arange(rows, device=device) + 0.5) * (HEIGHT / rows)
    right = ((column - WIDTH / 2) / FOCAL).repeat(rows)
    up = ((HEIGHT / 2 - row) / FOCAL).repeat_interleave(columns)
    axes = (axis.T[:, :, None] for axis in (camera.ahead, camera.right, camera.up))
    ahead, to_right, to_up = axes
    return ahead + right * to_right + up * to_up


def _shares(rows: int, columns: int, rays: tuple[int, int], device: torch.device) -> Tensor:
    """Which share of a lamp each ray sees: all of it, evenly, among those of four pixels."""
    across, down = rays
    row = torch.arange(rows, device=device)[:, None]
    column = torch.arange(columns, device=device)
    own = column % across + across * (row % down)
    pixel = column // across % 2 + 2 * (row // down % 2)
    return ((own + (pixel + 0.5) / 4) / (across * down)).flatten()


def _lights(scenes: Scenes, seed: int | None) -> Tensor:
    """Where the three lamps of each scene are, ``(S, 3, 3)``."""
    places = torch.tensor([light.place for light in LIGHTS])
    if seed is None:
        return places.expand(len(scenes.image), 3, 3)
    images = scenes.image.long()
    chance = draws.uniform([seed], range(int(images.max()) + 1), "clevr/lights", (3, 3))[:, 0]
    return places + LIGHT_JITTER * (2 * chance[images].float() - 1)
