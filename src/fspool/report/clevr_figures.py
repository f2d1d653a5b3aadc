"""Figures of the questions: accuracy by epoch, and what FSPool's weight functions became."""

from __future__ import annotations

from torch import Tensor

from ..experiments.clevr_epochs import curve_of
from ..experiments.clevr_tables import MODELS, QUESTION
from .figures import PALE, SLOTS, VARIABLES, figure, svg
from .parts import Panel
from .records import Record

NAMES = {name: label for label, name in (MODELS | QUESTION).items()}  # by their names in cells
INKS = dict(zip(NAMES, SLOTS, strict=False))
ROWS, COLUMNS = 10, 9  # of the weight functions
UNSEEN = 19  # knots from which on ten ranks leave the second and the last but one alone
NEAR = 96.0  # per cent; the second panel begins here


def colours(records: dict[str, Record]) -> dict[str, str]:
    """Of the models that there is something to show of, as the page knows them."""
    found = _curves(records)
    return {NAMES[model]: VARIABLES[INKS[model]] for model in NAMES if model in found}


def accuracies(records: dict[str, Record]) -> list[Panel]:
    """All of it, and what is near 100 % once more."""
    curves = _curves(records)
    if not curves:
        return []
    panels = [("all epochs", _panel("all", curves, None))]
    if max(float(curve.max()) for curve in curves.values()) > NEAR:
        panels.append((f"from {NEAR:g} % on", _panel("near", curves, (NEAR, 100))))
    return panels


def _curves(records: dict[str, Record]) -> dict[str, Tensor]:
    """By model; of short runs where there are no others."""
    found = {}
    for model in NAMES:
        record = records.get(model) or records.get(f"{model}-short")
        if record and "right" in record.tallies:
            found[model] = curve_of(record)
    return found


def _panel(name: str, curves: dict[str, Tensor], limits: tuple[float, float] | None) -> str:
    with figure(2.6) as (made, (axes,)):
        for model, curve in curves.items():
            epochs, ink = range(1, curve.shape[1] + 1), INKS[model]
            low, high = curve.amin(0), curve.amax(0)
            axes.fill_between(epochs, low, high, color=ink, alpha=0.2, linewidth=0)
            axes.plot(epochs, curve.mean(0), color=ink)
        axes.set(xlabel="epoch", ylabel="right, %", xlim=(0, None), ylim=limits)
        axes.grid(axis="y")
        return svg(made, f"answers-{name}", "Right answers by epoch")


def weight_functions(records: dict[str, Record]) -> list[Panel]:
    """Of the first run: the weight of every feature that is not dead, against relative rank."""
    record = records.get("fspool") or records.get("fspool-short")
    weight = record.arrays.get("functions") if record else None
    if weight is None or not len(weight):
        return []
    most = ROWS * COLUMNS
    title = f"{len(weight)} features"
    if len(weight) > most:
        title = f"the first {most} of {title}"
    return [(title, _functions(weight[:most]))]


def _functions(weight: Tensor) -> str:
    knots = weight.shape[1]
    kept = [i for i in range(knots) if knots < UNSEEN or i not in (1, knots - 2)]
    with figure(3.9, bare=True) as (made, (axes,)):
        for place, values in enumerate(weight[:, kept].clamp(-1, 1).tolist()):
            left, middle = 1.2 * (place % COLUMNS), -2.3 * (place // COLUMNS)
            axes.plot([left, left + 1], [middle] * 2, color=PALE, lw=0.5)
            along = [left + i / (knots - 1) for i in kept]
            axes.plot(along, [middle + value for value in values], color=INKS["fspool"], lw=0.9)
        axes.set(xlim=(-0.1, 1.2 * COLUMNS), ylim=(1.1 - 2.3 * ROWS, 1.1))
        return svg(made, "answers-functions", "Learnt weight functions of FSPool")
