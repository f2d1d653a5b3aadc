"""The tables that the polygons fill: the paper's three, and the claims without a table."""

from __future__ import annotations

import math

from .experiment import Entry, Table

COLUMNS = ("2", "4", "8", "16", "32", "64", "128", "256")
MODELS = {
    "FSPool & FSUnpool": "fspool",
    "MLP + Chamfer": "mlp-chamfer",
    "MLP + Hungarian": "mlp-assignment",
    "Random": "random",
}
REACH = {"steps to 1.0": 0.01, "steps to 0.1": 0.001}  # hundredths, and the loss that they mean


def derive(curve: list[dict]) -> dict[str, list]:
    """When the training loss, averaged over a record, was first below a mark; None for never."""
    runs = len(curve[0]["loss"]) if curve else 0

    def first(run: int, mark: float) -> int | None:
        losses = ((record["step"], record["loss"][run]) for record in curve)
        return next((step for step, loss in losses if loss is not None and loss < mark), None)

    return {name: [first(run, mark) for run in range(runs)] for name, mark in REACH.items()}


def closed_form(factor: float) -> dict[str, tuple[float, ...]]:
    """A guess is off by an angle uniform in [0, pi / n]."""
    angles = [math.pi / int(n) for n in COLUMNS]
    return {"Random, closed form": tuple(100 * factor * (1 - math.sin(a) / a) for a in angles)}


def _following() -> dict[str, tuple[float, ...]]:
    """Every output follows one corner for 1/n of a turn, then jumps back to where that began."""
    angles = [math.pi / int(n) for n in COLUMNS]
    return {
        "a list that follows, and jumps": tuple((1 - (math.sin(a) / a) ** 2) / 2 for a in angles)
    }


def by_size(metric: str, models: dict[str, str], **table) -> Table:
    """One metric of some models, by the number of points."""
    rows = {
        label: tuple(Entry(f"{model}-n{n}", metric) for n in COLUMNS)
        for label, model in models.items()
    }
    return Table(columns=COLUMNS, rows=rows, head="points", **table)


def by_metric(cells: dict[str, str], metrics: tuple[str, ...]) -> dict[str, tuple[Entry, ...]]:
    return {
        label: tuple(Entry(cell, metric) for metric in metrics) for label, cell in cells.items()
    }


def _paper(metric: str, title: str, models: dict[str, str], known: dict) -> Table:
    return by_size(
        metric,
        models,
        title=title,
        note="Hundredths, by the number of points; less is better.",
        published=f"polygons.{metric}",
        known=known,
        scale=100,
    )


_MATCHED = {label: MODELS[label] for label in ("FSPool & FSUnpool", "Random")}
_LISTS = {label: MODELS[label] for label in ("MLP + Chamfer", "MLP + Hungarian")}
_TRAINED = {label: model for label, model in MODELS.items() if label != "Random"}


def _encoders(width: int) -> dict[str, str]:
    pools = ("fspool", "sum", "mean", "max") if width == 128 else ("sum", "mean", "max")
    return {
        f"{label}, {pool} encoder, {width} units": f"{model}-{pool}-h{width}-n16"
        for label, model in _LISTS.items()
        for pool in pools
    }


def _pair(model: str) -> tuple[Entry, ...]:
    return Entry(f"{model}-n16", "mse"), Entry(f"{model}-zero-latent-n16", "mse")


_WHOLE = {"Random, closed form": len(COLUMNS) * (100.0,)}

TABLES = (
    _paper("mse", "Direct mean squared error", _MATCHED, _WHOLE),
    _paper("chamfer", "Chamfer loss", MODELS, closed_form(2)),
    _paper("assignment", "Linear assignment loss", MODELS, closed_form(1)),
    by_size(
        "variance",
        _TRAINED,
        title="Does the output turn with the input?",
        note="Variance of the output over a full turn: 0 where it is constant, 0.5 for a rotation.",
        known=_following(),
        digits=5,
    ),
    by_size(
        "speed",
        _TRAINED,
        title="Jumps",
        note="The fastest movement of all outputs together, in a sweep of 0.1 degree steps, "
        "against that of a perfect rotation: 1. A jump to the neighbour's place is far above.",
        digits=2,
    ),
    by_size(
        "worst",
        _TRAINED,
        title="The worst angle",
        note="Assignment loss at the worst angle, in hundredths. For two points a continuous list "
        "decoder must have an angle with at least 50: between two angles half a turn apart, which "
        "are the same set, its outputs have to stand across the points somewhere.",
        scale=100,
    ),
    *(
        by_size(
            f"steps to {hundredths}",
            _TRAINED,
            title=f"Steps until the training loss is below {hundredths} hundredths",
            note="Each model in the loss that it is trained on, averaged over 64 steps. Where a "
            "guess is below the mark already, the number says nothing.",
            digits=0,
        )
        for hundredths in ("1.0", "0.1")
    ),
    Table(
        title="Larger and other baselines, 16 points",
        note="Hundredths; a guess gives 1.28 and 0.64. Variance as above.",
        columns=("Chamfer", "assignment", "variance × 100"),
        rows=by_metric(
            {label: f"{model}-n16" for label, model in MODELS.items() if label != "Random"}
            | _encoders(16)
            | _encoders(128)
            | {
                f"{label}, uniform biases": f"{model}-uniform-n16"
                for label, model in _LISTS.items()
            }
            | {
                f"{label}, learning rate {rate}": f"{model}-lr{rate}-n16"
                for label, model in _LISTS.items()
                for rate in ("0.0001", "0.01")
            },
            ("chamfer", "assignment", "variance"),
        ),
        scale=100,
    ),
    Table(
        title="Relaxed sort, hard sort, relaxed sort decayed to hard",
        note="Mean squared error, hundredths. The last one is evaluated with a hard sort.",
        columns=("4", "16", "64"),
        rows={
            label: tuple(Entry(f"{model}-n{n}", "mse") for n in (4, 16, 64))
            for label, model in {
                "relaxed": "fspool",
                "hard": "fspool-hard",
                "decayed to hard": "fspool-decay",
            }.items()
        },
        head="points",
        scale=100,
    ),
    Table(
        title="Does information bypass the latent vector? 16 points",
        note="Mean squared error in hundredths; 50 is the centre for every point. The decoder "
        "knows the permutations even when the latent vector is multiplied by zero. With zero "
        "biases everything behind a zero vector is zero, its gradient too, so nothing can be "
        "learnt; the other rows start with the uniform biases of torch.",
        columns=("latent used", "latent zeroed"),
        rows={
            "zero biases, 16 units, all 16 permutations": _pair("fspool"),
            "16 units, all 16 permutations": _pair("fspool-uniform-h16-pall"),
            "16 units, 4 permutations": _pair("fspool-uniform-h16-p4"),
            "16 units, 1 permutation": _pair("fspool-uniform-h16-p1"),
            "128 units, all 128 permutations": _pair("fspool-uniform-h128-pall"),
            "128 units, 16 permutations": _pair("fspool-uniform-h128-p16"),
            "128 units, 4 permutations": _pair("fspool-uniform-h128-p4"),
            "128 units, 1 permutation": _pair("fspool-uniform-h128-p1"),
        },
        scale=100,
    ),
)
