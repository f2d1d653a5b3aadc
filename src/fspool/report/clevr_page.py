"""What the page has to say about questions on scenes."""

from __future__ import annotations

from . import clevr_figures as draw
from .parts import Parts, legend, section
from .records import Record

INTRODUCTION = """
<p class="lead">A scene is a set of 3 to 10 objects, each told as seven numbers. "How many metal
things are left of the small cube?" is answered by a network that shows the question to every
object, pools what comes of it to one vector, and reads the answer off. Only the pool is different
from model to model.</p>
"""

ACCURACY = (
    "Right answers to the validation questions after every epoch: mean over runs, with a band from "
    "the worst run to the best."
)
FUNCTIONS = (
    "The weight of every feature from the largest object (left) to the smallest (right), from -1 "
    "to 1, of the first run; only features that weight decay has left. Of 19 knots or more the "
    "second and the last but one are left out: with ten objects at most no rank comes near them."
)


def parts(records: dict[str, Record]) -> Parts:
    curves = section(
        "Accuracy by epoch", ACCURACY, draw.accuracies(records), legend(draw.colours(records))
    )
    functions = section("Learnt weight functions", FUNCTIONS, draw.weight_functions(records))
    return Parts(INTRODUCTION, curves + functions)
