"""What the page has to say about sets predicted from pictures."""

from __future__ import annotations

from ..experiments.dspn_tables import MODELS
from . import dspn_figures as draw
from .figures import VARIABLES
from .parts import Parts, legend, panels, section
from .records import Record

OPENING = """
<p class="lead">A picture with up to ten objects goes in, a set comes out: their boxes, or their
places and attributes, in no order. The picture becomes a vector. The set starts as the same one for
every picture and moves down a gradient until its own vector, made by a set encoder, is that of the
picture. So what the pool of that encoder tells about a set decides what can be found.</p>
"""

TRAINING = (
    "Huber assignment loss, for DSPN with the distance of vectors; mean over seeds, with a band "
    "from the best to the worst seed."
)

SHOWN = {
    "boxes": "The first test picture, drawn again from its scene, and the boxes of seed 0 after "
    "so many inner steps; paler where the model is less sure.",
    "states": "The first test picture, drawn again from its scene, and the states of seed 0 after "
    "so many inner steps: a disc where an object is said to be, of the colour and the size that it "
    "is said to have.",
}


def parts(records: dict[str, Record]) -> Parts:
    figures = ""
    for task in draw.TASKS:
        shown = draw.predictions(records, task)
        models = "".join(f"<h3>{label}</h3>{panels(found)}" for label, found in shown.items())
        if models:
            title = f"Predicted {task}, step by step"
            figures += f"<section><h2>{title}</h2><p>{SHOWN[task]}</p>{models}</section>"
    known = {
        label: VARIABLES[draw.INKS[model]]
        for label, model in MODELS.items()
        if any(name.endswith(f"-{model}") for name in records)
    }
    curves = section("Training", TRAINING, draw.loss_curves(records), legend(known))
    return Parts(OPENING, figures + curves)
