"""Scenes in a few counts, so that two collections of them can be laid side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from .arrays import Scenes
from .camera import HEIGHT, WIDTH
from .vocabulary import DIRECTIONS, FEATURES, OBJECTS, RADII, VALUES

# Of what is measured: the least, the largest, and how many bins there are in between.
BINS = {
    "x": (-3.0, 3.0, 12),
    "y": (-3.0, 3.0, 12),
    "left to right": (-4.5, 4.5, 18),
    "front to behind": (-4.5, 4.5, 18),
    "gap to the nearest": (0.0, 3.0, 12),
    "least margin": (0.0, 2.0, 10),
    "column": (0.0, float(WIDTH), 12),
    "row": (0.0, float(HEIGHT), 16),
    "depth": (6.0, 18.0, 12),
    "rotation": (0.0, 360.0, 12),
}


def summarise(scenes: Scenes) -> dict[str, dict[str, int]]:
    """How often everything occurs: names of bins or values, and counts."""
    sizes = scenes.sizes.long().bincount(minlength=OBJECTS + 1).tolist()
    counts = {"objects in a scene": {str(n): sizes[n] for n in range(3, OBJECTS + 1)}}
    for column, name in enumerate(FEATURES):
        found = scenes.attributes[..., column].long().flatten().bincount(minlength=9).tolist()
        counts[name] = {value: found[i] for i, value in enumerate(VALUES[name], 1)}
    return counts | {name: _histogram(v, name) for name, v in _measures(scenes).items()}


def _histogram(values: Tensor, name: str) -> dict[str, int]:
    """Counts by the left edge of a bin; what is outside counts in the outermost."""
    least, largest, bins = BINS[name]
    step = (largest - least) / bins
    place = ((values - least) / step).long().clamp(0, bins - 1)
    counts = place.bincount(minlength=bins).tolist()
    return {f"{least + i * step:g}": count for i, count in enumerate(counts)}


def _measures(scenes: Scenes) -> dict[str, Tensor]:
    mask, coords = scenes.mask, scenes.coords.double()
    axes = torch.tensor([DIRECTIONS["right"], DIRECTIONS["behind"]], dtype=torch.float64)
    along = coords @ axes.T
    radius = torch.tensor([0.0, *(RADII[name] for name in VALUES["size"])], dtype=torch.float64)
    radius = radius[scenes.attributes[..., FEATURES.index("size")].long()]
    gap = torch.cdist(coords[..., :2], coords[..., :2]) - radius[:, None] - radius[:, :, None]
    margin = (along[:, None] - along[:, :, None]).abs().amin(-1)
    columns = (coords[..., :2], along, scenes.pixels.double(), scenes.rotation[..., None].double())
    names = ("x", "y", "left to right", "front to behind", "column", "row", "depth", "rotation")
    values = torch.cat(columns, -1)[mask].unbind(-1)
    nearest = {"gap to the nearest": _nearest(gap, mask), "least margin": _nearest(margin, mask)}
    return dict(zip(names, values, strict=True)) | nearest


def _nearest(distance: Tensor, mask: Tensor) -> Tensor:
    """The least of every object to any other of its scene; the lonely have none."""
    others = mask[:, None] & mask[:, :, None] & ~torch.eye(OBJECTS, dtype=torch.bool)
    least = distance.masked_fill(~others, torch.inf).amin(-1)
    return least[least.isfinite()]
