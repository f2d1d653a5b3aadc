"""Figures of predicted sets: what is found in a picture, inner step by inner step."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data.clevr import Scenes
from ..data.clevr.camera import HEIGHT, WIDTH, fit, project
from ..data.clevr.render import render
from ..data.clevr.render_light import RGB
from ..data.clevr.vocabulary import VALUES
from ..experiments.dspn import STEPS_SHOWN
from ..experiments.dspn_tables import MODELS
from ..losses.detection import GROUPS
from .figures import SLOTS, figure, loss_panel, svg
from .parts import Panel
from .records import Record

TASKS = ("boxes", "states")
INKS = dict(zip(MODELS.values(), SLOTS, strict=False))
DRAWN = 1  # pictures of each model
DTYPES = {"image": torch.int32, "sizes": torch.uint8, "attributes": torch.uint8}
SEEN = 0.1  # confidence below which an element is not drawn


def loss_curves(records: dict[str, Record]) -> list[Panel]:
    panels = []
    for task in TASKS:
        found = {m: records.get(f"{task}-{m}") for m in MODELS.values()}
        curves = {INKS[m]: record.curve for m, record in found.items() if record and record.curve}
        if curves:
            panels.append((task, loss_panel(f"loss-{task}", task, curves)))
    return panels


def predictions(records: dict[str, Record], task: str) -> dict[str, list[Panel]]:
    """By model: the predicted set over the picture, after each number of steps that was kept."""
    found = {}
    for label, model in MODELS.items():
        record = records.get(f"{task}-{model}")
        if record and "found" in record.arrays:
            found[label] = _panels(f"{task}-{model}", task, record.arrays)
    return found


def _panels(name: str, task: str, arrays: dict[str, Tensor]) -> list[Panel]:
    scenes = Scenes(*(t[:DRAWN] for t in scenes_of(arrays)))
    images = render(scenes, size=(160, 240), rays=(2, 1)).permute(0, 2, 3, 1).numpy()
    panels = []
    for row in range(len(images)):
        scene = Scenes(*(t[row : row + 1] for t in scenes))
        for at, step in enumerate(STEPS_SHOWN):
            with figure(3.7 * HEIGHT / WIDTH, bare=True) as (made, (axes,)):
                axes.imshow(images[row], extent=(0, 1, 1, 0), interpolation="none")
                elements = arrays["found"][row, at]
                draw = _draw_boxes if task == "boxes" else _draw_states
                draw(axes, elements, scene)
                axes.set(xlim=(0, 1), ylim=(1, 0), aspect=HEIGHT / WIDTH)
                words = f"Set after {step} inner steps over its picture"
                panels.append((f"{step} steps", svg(made, f"found-{name}-{row}-{step}", words)))
    return panels


def scenes_of(arrays: dict[str, Tensor]) -> Scenes:
    """Scenes that were kept; a compact file knows numbers alone."""
    kept = {name: arrays[f"scene.{name}"] for name in Scenes._fields}
    return Scenes(**{name: t.to(DTYPES.get(name, torch.float32)) for name, t in kept.items()})


def _draw_boxes(axes, elements: Tensor, scene: Scenes) -> None:
    for slot, (left, top, right, bottom, mask) in enumerate(elements.tolist()):
        if mask > SEEN:
            x, y = (left, right, right, left, left), (top, top, bottom, bottom, top)
            axes.plot(x, y, color=SLOTS[slot % len(SLOTS)], lw=1.2, alpha=min(1.0, mask))


def _draw_states(axes, elements: Tensor, scene: Scenes) -> None:
    """A ring where the object is said to be, of the colour and the size that it is said to have."""
    camera = fit(scene.coords, scene.pixels, scene.mask)
    places = project(camera, 3 * elements[None, :, :3].double())[0]
    colours = elements[:, 3:-1].split(GROUPS, -1)[1].argmax(-1).tolist()
    small = elements[:, 3:-1].split(GROUPS, -1)[3].argmax(-1).tolist()
    for slot, (column, row, depth) in enumerate(places.tolist()):
        mask = float(elements[slot, -1])
        if mask > SEEN and depth > 1:
            colour = [value / 255 for value in RGB[VALUES["color"][colours[slot]]]]
            size = (7 if small[slot] else 12) * min(2.0, 11 / depth)
            place = (column / WIDTH,), (row / HEIGHT,)
            axes.plot(*place, "o", ms=size, mfc=colour, mec="white", mew=1.2, alpha=min(1.0, mask))
