"""What the page has to say about MNIST: digits as they went in and came out, and the training."""

from __future__ import annotations

from ..experiments.mnist_tables import AUTO_ENCODERS
from . import mnist_figures as draw
from .parts import Parts, legend, panels, section
from .records import Record

RECONSTRUCTION = """
<p class="lead">A digit is the set of its bright pixels, some 130 points in no order. Noise is put
on their places, an auto-encoder has to take it off, and all that passes from encoder to decoder is
16 numbers and, with FSPool, the permutations of its sort. The usual decoders put out a list of 342
points, and the Chamfer loss that they are trained with does not mind when many of them
coincide.</p>
"""

CLASSIFICATION = """
<p class="lead">The same sets, and ten classes. Encoders start from random numbers, or from an
auto-encoder: frozen, only the small network behind them is trained; unfrozen, all is.</p>
"""

LOSSES = (
    "Mean over seeds, with a band from the best to the worst seed. FSPool + FSUnpool is trained "
    "with the mean squared error, the lists with the Chamfer loss: not the same quantity."
)


def reconstruction(records: dict[str, Record]) -> Parts:
    digits = "".join(
        f"<h3>Noise {sigma}</h3>{panels(shown)}"
        for sigma, shown in draw.reconstructions(records).items()
    )
    if digits:
        digits = (
            "<section><h2>Reconstructions</h2><p>The first test images of seed 0, not chosen. "
            f"Rings: the points as they are. Dots: what a model was given, or made of it.</p>"
            f"{digits}</section>"
        )
    return Parts(RECONSTRUCTION, digits + _training(LOSSES, records, AUTO_ENCODERS))


def classification(records: dict[str, Record]) -> Parts:
    text = "Cross-entropy, mean over seeds, with a band from the best to the worst seed."
    return Parts(CLASSIFICATION, _training(text, records, draw.CLASSIFIERS))


def _training(text: str, records: dict[str, Record], models: dict[str, str]) -> str:
    models = {k: m for k, m in models.items() if any(n.startswith(f"{m}-") for n in records)}
    colours = {label: draw.colour(model) for label, model in models.items()}
    return section("Training", text, draw.loss_curves(records, models), legend(colours))
