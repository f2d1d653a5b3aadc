"""Figures as inline SVG: small panels, which the page puts side by side or one below the other.

Text stays text and colours become CSS variables, so that a figure follows the page into the dark.
"""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from html import escape

import torch
from torch import Tensor

from .parts import Panel
from .records import Point, Record
from .sweeps import TRAINED, Sweep, sizes_of, sweep_of

INK, PALE = "#22303c", "#8695a1"
MODELS = {"fspool": "#0072b2", "mlp-chamfer": "#d55e00", "mlp-assignment": "#009e73"}
SLOTS = ("#0072b3", "#e69f00", "#009e74", "#cc79a7", "#d55e01", "#56b4e9", "#7a5195", "#8c8c3c")
VARIABLES = {
    INK: "currentColor",
    PALE: "var(--pale)",
    **{colour: f"var(--{model})" for model, colour in MODELS.items()},
    **{colour: f"var(--slot-{i})" for i, colour in enumerate(SLOTS)},
}
WIDTH = 3.7  # inches; a panel is never shown much smaller than that
STYLE = {
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.linewidth": 0.6,
    "font.size": 9,
    "grid.color": PALE,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    "svg.hashsalt": "fspool",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
}


@contextmanager
def figure(height: float, rows: int = 1, *, bare: bool = False):
    """A figure and its axes, one below the other with a common abscissa; ``bare``: without scales.

    Margins are fixed: finding them out would take longer than the drawing.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        made = Figure(figsize=(WIDTH, height))
        axes = made.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
        if bare:
            made.subplots_adjust(0, 0, 1, 1)
            axes[0].axis("off")
        else:
            made.subplots_adjust(0.17, 0.42 / height, 0.97, 1 - 0.1 / height, hspace=0.16)
            made.align_ylabels(axes)
        yield made, axes


def svg(made, name: str, label: str) -> str:
    """Inline SVG that fills the width it is given. ``name`` keeps its ids apart from others'."""
    file = io.StringIO()
    made.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator")))
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, count=1, flags=re.DOTALL)  # it is for whole pages
    text = re.sub(r"\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    head, _, body = text.partition(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", head)
    body = re.sub(r'(id="|url\(#|href="#)', rf"\1{name}-", body)
    body = re.sub(r"'DejaVu Sans',[^;\"]*", "inherit", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    return f'{head} role="img" aria-label="{escape(label)}">{body}'


# --------------------------------------------------------------------------------------------------
# Panels: a caption and a picture


def loss_curves(records: dict[str, Record]) -> list[Panel]:
    """Training loss, mean over seeds and the band of all seeds; one panel a number of points."""
    panels = []
    for n in sizes_of(records):
        found = {model: records.get(f"{model}-n{n}") for model in TRAINED.values()}
        curves = {model: record.curve for model, record in found.items() if record and record.curve}
        if curves:
            panels.append((f"{n} points", _loss_curves(n, curves)))
    return panels


def _loss_curves(n: int, curves: dict) -> str:
    inks = {MODELS[model]: curve for model, curve in curves.items()}
    return loss_panel(f"loss{n}", f"{n} points", inks)


def loss_panel(name: str, what: str, curves: dict[str, list[Point]]) -> str:
    """Loss curves by their colour: mean over seeds, and the band of all seeds."""
    with figure(2.4) as (made, (axes,)):
        for colour, curve in curves.items():
            steps = [point.step for point in curve]
            low, high = [point.low for point in curve], [point.high for point in curve]
            axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(steps, [point.mean for point in curve], color=colour)
        axes.set(yscale="log", xlabel="step", ylabel="training loss", xlim=(0, None))
        _label_decades(axes)
        axes.grid(axis="y")
        return svg(made, name, f"Training loss against steps, {what}")


def _label_decades(axes) -> None:
    """Where decades are few, labels at 2 and 5 too, and all of them plain."""
    low, high = axes.get_ylim()
    few = high < 50 * low
    if few:
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if few and f"{y:e}"[0] in "25" else "")


def reconstructions(records: dict[str, Record], n: int) -> list[Panel]:
    """Test sets 0 to 5, whatever they look like, as rings; their reconstructions as dots."""
    panels = []
    for label, model in TRAINED.items():
        record = records.get(f"{model}-n{n}")
        arrays = record.arrays if record else {}
        if "input" in arrays and "output" in arrays:
            panels.append((label, _reconstructions(model, arrays["input"], arrays["output"])))
    return panels


def _reconstructions(model: str, inputs: Tensor, outputs: Tensor) -> str:
    n = inputs.shape[1]
    ring, dot = (9, 4.5) if n <= 16 else (6, 3) if n <= 32 else (4, 2) if n <= 64 else (2.4, 1.2)
    circle = torch.linspace(0, 2 * torch.pi, 61)
    with figure(2.5, bare=True) as (made, (axes,)):
        for i, (x, y) in enumerate(zip(inputs, outputs, strict=True)):
            across, down = 3 * (i % 3), -3 * (i // 3)
            axes.plot(circle.cos() + across, circle.sin() + down, color=PALE, lw=0.5, alpha=0.6)
            axes.plot(x[:, 0] + across, x[:, 1] + down, "o", ms=ring, mfc="none", mec=PALE, mew=0.9)
            axes.plot(y[:, 0] + across, y[:, 1] + down, "o", ms=dot, color=MODELS[model], mew=0)
        axes.set(xlim=(-1.4, 7.4), ylim=(-4.4, 1.4), aspect="equal")
        return svg(made, f"sets-{model}-{n}", f"Six test sets of {n} points, and what came out")


def slots_by_angle(records: dict[str, Record], n: int, *, error: bool = False) -> list[Panel]:
    """Where each output stands as the polygon turns; with ``error`` how wrong they are."""
    sweeps = filter(None, (sweep_of(records, label, n) for label in TRAINED))
    return [(sweep.label, _slots_by_angle(sweep, error)) for sweep in sweeps]


def _slots_by_angle(sweep: Sweep, error: bool) -> str:
    with figure(3.9 if error else 2.9, 3 if error else 2) as (made, axes):
        for axis, name in enumerate("xy"):
            for slot in range(sweep.points):
                colour = SLOTS[slot % len(SLOTS)]
                axes[axis].plot(sweep.degrees, sweep.outputs[:, slot, axis], color=colour)
            axes[axis].set(ylabel=name, ylim=(-1.25, 1.25), yticks=(-1, 0, 1))
        if error:
            axes[2].axhline(50, color=INK, lw=0.9, ls=(0, (4, 3)))
            axes[2].plot(sweep.degrees, 100 * sweep.error, color=MODELS[sweep.model])
            top = max(60.0, 105 * float(sweep.error.max()))
            axes[2].set(ylabel="error × 100", ylim=(-0.03 * top, top))
        for each in axes:
            each.grid()
        axes[-1].set(xlim=(0, 360), xticks=range(0, 361, 90), xlabel="angle, degrees")
        label = f"Outputs of {sweep.label} against the angle of {sweep.points} points"
        return svg(made, f"slots-{sweep.model}-{sweep.points}-{int(error)}", label)


WEIGHTS = {"Pool": "encoder.pool.weight", "Unpool": "decoder.unpool.weight"}
SHOWN = 16  # features


def weight_functions(record: Record) -> list[Panel]:
    """The learnt weight of every feature against relative rank, of the first seed."""
    panels = []
    for caption, name in WEIGHTS.items():
        if name in record.weights and record.weights[name].dim() == 3:
            panels.append((caption, _weight_functions(caption, record.weights[name][0])))
    return panels


def _weight_functions(caption: str, weight: Tensor) -> str:
    """In four columns, all of one scale."""
    weight = weight[:SHOWN].double()
    scale = 0.42 / max(float(weight.abs().max()), 1e-12)
    rows = -(-len(weight) // 4)
    with figure(0.3 + 0.75 * rows, bare=True) as (made, (axes,)):
        for feature, knots in enumerate(weight.tolist()):
            left, middle = 1.15 * (feature % 4), -(feature // 4)
            places = [left + i / max(len(knots) - 1, 1) for i in range(len(knots))]
            axes.plot([left, left + 1], [middle] * 2, color=PALE, lw=0.6)
            axes.plot(places, [middle + scale * value for value in knots], color=MODELS["fspool"])
        axes.set(xlim=(-0.05, 4.5), ylim=(0.5 - rows, 0.5))
        name = caption.lower()
        return svg(made, f"weights-{name}", f"Learnt weight functions of the {name}")
