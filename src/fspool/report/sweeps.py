"""Polygons that turn: what the models put out while they do, for the figures and the page."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..data.polygons import polygons
from ..experiments.polygon_tables import MODELS
from ..losses import assignment
from .records import Record

TRAINED = {label: model for label, model in MODELS.items() if model != "random"}
UNIT = 8192  # positions travel as 16 bit integers of this many a radius


@dataclass(frozen=True, eq=False)
class Sweep:
    """The outputs of one model, (angles, n, 2), at evenly spaced angles of a full turn."""

    label: str
    model: str
    outputs: Tensor

    @property
    def points(self) -> int:
        return self.outputs.shape[1]

    @property
    def degrees(self) -> Tensor:
        count = len(self.outputs)
        return torch.arange(count, dtype=torch.float64) * (360 / count)

    @cached_property
    def error(self) -> Tensor:
        """Assignment loss at every angle."""
        corners = polygons(self.degrees.deg2rad(), self.points)
        return assignment(self.outputs.double(), corners)

    @cached_property
    def movement(self) -> Tensor:
        """Way of the outputs since the angle before, against that of a corner: 1 for a rotation."""
        way = (self.outputs - self.outputs.roll(1, 0)).double().norm(dim=-1).mean(-1)
        step = torch.tensor(torch.pi / len(self.outputs), dtype=torch.float64)
        return way / (2 * step.sin())

    def packed(self) -> dict:
        """For the page."""
        limit = torch.iinfo(torch.int16).max
        positions = (self.outputs.double() * UNIT).round().clamp(-limit, limit).to(torch.int16)
        return {
            "model": self.model,
            "label": self.label,
            "outputs": _base64(positions),
            "error": _base64(self.error.float()),
            "movement": _base64(self.movement.float()),
        }


def sweep_of(records: dict[str, Record], label: str, n: int) -> Sweep | None:
    """None where it was not kept, or where the model diverged."""
    model = TRAINED[label]
    record = records.get(f"{model}-n{n}")
    outputs = record.arrays.get("sweep") if record else None
    if outputs is None or outputs.shape[1:] != (n, 2) or not outputs.isfinite().all():
        return None
    return Sweep(label, model, outputs)


def sizes_of(records: dict[str, Record]) -> list[int]:
    """Numbers of points of all cells, from the few to the many."""
    found = {record.settings.get("points") for record in records.values()}
    return sorted(n for n in found if isinstance(n, int))


def packed_sweeps(records: dict[str, Record]) -> dict | None:
    """For the page: the sizes for which there are FSPool and something to compare it with."""
    sizes = []
    for n in sizes_of(records):
        sweeps = list(filter(None, (sweep_of(records, label, n) for label in TRAINED)))
        same = {len(sweep.outputs) for sweep in sweeps}
        if len(sweeps) > 1 and sweeps[0].model == "fspool" and len(same) == 1:
            models = [sweep.packed() for sweep in sweeps]
            sizes.append({"n": n, "angles": same.pop(), "models": models})
    return {"unit": UNIT, "sizes": sizes} if sizes else None


def _base64(values: Tensor) -> str:
    """Little endian, as every browser has it."""
    array = values.contiguous().numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()
