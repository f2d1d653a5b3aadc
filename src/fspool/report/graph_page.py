"""What the page has to say about graphs."""

from __future__ import annotations

from . import graph_figures as draw
from .parts import Parts, legend, section
from .records import Record

INTRODUCTION = """
<p class="lead">A molecule, a protein or a social network is a graph; to tell which class it is of,
a network has to make one vector of the set of its nodes. GIN-Base adds the nodes up, or takes
their mean. GIN-FSPool sorts every feature and weighs it by rank; nothing else is different.
Settings and epoch are chosen by validation, in each of ten repeats of a ten-fold
cross-validation.</p>
"""

ACCURACY = (
    "Mean over repeats of the accuracy in the test (solid, with a band from the worst repeat to "
    "the best) and in validation (dashed), averaged over folds. Each model with the settings that "
    "it chose most often."
)


def parts(records: dict[str, Record]) -> Parts:
    curves = section(
        "Accuracy by epoch", ACCURACY, draw.accuracies(records), legend(draw.colours(records))
    )
    return Parts(INTRODUCTION, curves)
