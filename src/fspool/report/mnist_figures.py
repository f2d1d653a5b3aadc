"""Figures of MNIST as sets: digits, and loss curves by noise."""

from __future__ import annotations

import re

from torch import Tensor

from ..experiments.mnist import POOL_NAMES
from ..experiments.mnist_tables import AUTO_ENCODERS
from .figures import INK, PALE, SLOTS, VARIABLES, figure, loss_panel, svg
from .parts import Panel
from .records import Record

CLASSIFIERS = {label: pool for pool, label in POOL_NAMES.items()}
DRAWN = ("fspool", "sum-mlp")  # whose digits are shown
PLACES = {model: i for i, model in enumerate(("fspool", "sum", "rnn", "max", "mean"))}


def colour(model: str) -> str:
    """As the page knows it."""
    return VARIABLES[_ink(model)]


def _ink(model: str) -> str:
    return SLOTS[PLACES["rnn" if model.endswith("rnn") else model.partition("-")[0]]]


def reconstructions(records: dict[str, Record]) -> dict[str, list[Panel]]:
    """By noise: what went in, and what each model made of it."""
    names = sorted(name for name in records if re.fullmatch(r"fspool-s[\d.]+", name))
    found = {name.removeprefix("fspool-s"): _panels(records, name) for name in names}
    return {sigma: panels for sigma, panels in found.items() if panels}


def _panels(records: dict[str, Record], lead: str) -> list[Panel]:
    if "input" not in records[lead].arrays:
        return []
    panels = [("input", _digits(f"input-{lead}", INK, records[lead].arrays, "input"))]
    for label, model in AUTO_ENCODERS.items():
        other = records.get(lead.replace("fspool", model))
        if model in DRAWN and other and "output" in other.arrays:
            picture = _digits(other.name, _ink(model), other.arrays, "output", model != "fspool")
            panels.append((label, picture))
    return panels


def _digits(name: str, ink: str, arrays: dict[str, Tensor], key: str, is_list: bool = False) -> str:
    """Four digits in two rows. All points of a list are drawn, also those that mean padding."""
    rings = {"ms": 3.4, "mfc": "none", "mec": PALE, "mew": 0.5}
    dots = {"ms": 1.9, "color": ink, "mew": 0}
    with figure(3.4, bare=True) as (made, (axes,)):
        for i, size in enumerate(arrays["size"][:4].long().tolist()):
            across, down = 1.25 * (i % 2), -1.25 * (i // 2)
            own = arrays[key][i] if is_list else arrays[key][i, :size]
            for points, style in ((arrays["target"][i, :size], rings), (own, dots)):
                axes.plot(points[:, 1] + across, down - points[:, 0], "o", **style)
        axes.set(xlim=(-0.1, 2.35), ylim=(-2.35, 0.1), aspect="equal")
        return svg(made, f"digits-{name}".replace(".", "_"), "Four digits as points")


def loss_curves(records: dict[str, Record], models: dict[str, str]) -> list[Panel]:
    """Training loss; one panel for what comes after the model in the names of cells."""
    panels: dict[str, dict[str, Record]] = {}
    for name, record in records.items():
        model = next((m for m in models.values() if name.startswith(f"{m}-")), None)
        if model and record.curve:
            panels.setdefault(name.removeprefix(f"{model}-"), {})[model] = record
    return [(rest, _loss_panel(rest, found)) for rest, found in panels.items()]


def _loss_panel(rest: str, found: dict[str, Record]) -> str:
    name = re.sub(r"[^a-z0-9-]", "_", rest)
    inks = {_ink(model): record.curve for model, record in found.items()}
    return loss_panel(f"loss-{name}", rest, inks)
