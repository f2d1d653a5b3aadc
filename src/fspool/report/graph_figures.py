"""Figures of the graphs: accuracy by epoch."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from torch import Tensor

from ..experiments.graph_selection import choices, grids, whole
from ..experiments.graph_tables import BIO, SOCIAL
from .figures import SLOTS, VARIABLES, figure, svg
from .parts import Panel
from .records import Record

MODELS = {  # by their names in cells
    "fspool": "GIN-FSPool",
    "sum": "GIN-Base (sum)",
    "mean": "GIN-Base (mean)",
    "fspool-k20": "GIN-FSPool, k = 20",
    "fspool-bn": "GIN-FSPool, Linear-BatchNorm-ReLU",
}
INKS = dict(zip(MODELS, SLOTS, strict=False))
POINTS = 125  # of a curve, at most


class Curves(NamedTuple):
    """Per cent that are right, (repeats, epochs)."""

    epochs: list[int]
    test: Tensor
    validation: Tensor


def colours(records: dict[str, Record]) -> dict[str, str]:
    """Of the models that there is something to show of, as the page knows them."""
    found = {model for model, _ in grids(records.values())}
    return {label: VARIABLES[INKS[model]] for model, label in MODELS.items() if model in found}


def accuracies(records: dict[str, Record]) -> list[Panel]:
    """One panel a data set: each model with the settings that it chose most often."""
    panels: dict[str, dict[str, Curves]] = {}
    for (model, dataset), points in grids(records.values()).items():
        if model in INKS and (own := _favourite(points)):
            panels.setdefault(dataset, {})[model] = own
    names = [name for name in (*SOCIAL, *BIO) if name in panels]
    return [(name, _panel(name, panels[name])) for name in names]


def _favourite(points: list[Record]) -> Curves | None:
    """None where no repeat is complete."""
    chosen = Counter(choice.point for choice in choices(points))
    if not chosen:
        return None
    record = points[max(sorted(chosen), key=chosen.get)]
    count = record.tallies["test"].shape[1]
    every = max(1, -(-count // POINTS))
    parts = (
        100 * record.tallies[name][:, ::every].double() / whole(record.settings, name)
        for name in ("test", "validation")
    )
    return Curves(list(range(0, count, every)), *parts)


def _panel(dataset: str, models: dict[str, Curves]) -> str:
    with figure(2.6) as (made, (axes,)):
        for model, (epochs, test, validation) in models.items():
            ink = INKS[model]
            low, high = test.amin(0), test.amax(0)
            axes.fill_between(epochs, low, high, color=ink, alpha=0.2, linewidth=0)
            axes.plot(epochs, test.mean(0), color=ink)
            axes.plot(epochs, validation.mean(0), color=ink, lw=0.7, ls=(0, (3, 2)))
        axes.set(xlabel="epoch", ylabel="right, %", xlim=(0, None))
        axes.grid(axis="y")
        return svg(made, f"accuracy-{dataset}", f"Accuracy by epoch, {dataset}")
