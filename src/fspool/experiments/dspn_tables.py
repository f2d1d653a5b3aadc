"""The tables that predicted sets fill: boxes, true and as published, and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .dspn_metrics import LEGACY, NEAR, TRUE, legacy_name, near_name, true_name
from .experiment import Entry, Table

ITERATIONS = (1, 2, 3)  # times as many inner steps as in training
TRAINED = 10, 20  # inner steps in training, of DSPN and of iDSPN
MODELS = {"FSPool": "fspool", "Sum": "sum", "Max": "max", "iDSPN": "idspn"}
SCHEDULE = (
    "Per cent; more is better. The published models were trained for 100 epochs with pictures of "
    "CLEVR; for how many steps these were, and with pictures of a twin or not: see the settings."
)


def _rows(task: str, names: Sequence[str]) -> dict[str, tuple[Entry, ...]]:
    """By model and number of inner steps."""
    return {
        f"{label}, {TRAINED[model == 'idspn'] * times}": tuple(
            Entry(f"{task}-{model}", f"{name} after {times}x") for name in names
        )
        for label, model in MODELS.items()
        for times in ITERATIONS
    }


def _table(
    task: str, thresholds: Sequence[float], name: Callable[[float], str], **settings
) -> Table:
    names = [name(threshold) for threshold in thresholds]
    return Table(
        columns=tuple(text.removesuffix(", legacy") for text in names),
        rows=_rows(task, names),
        head="inner steps",
        scale=100,
        digits=1,
        higher_is_better=True,
        **settings,
    )


TABLES = (
    _table(
        "boxes",
        LEGACY,
        legacy_name,
        title="Boxes, average precision as published",
        note=f"{SCHEDULE} Overlaps as the published table has them: 1 is added to every side of "
        'boxes that are less than 1 wide, so that "90" means a true overlap of about 41 per cent.',
        published="dspn.boxes",
    ),
    _table(
        "states",
        NEAR,
        near_name,
        title="States, average precision",
        note=f"{SCHEDULE} An object counts as found if all attributes are right and its place is "
        "within the distance.",
        published="dspn.states",
    ),
    _table(
        "boxes",
        TRUE,
        true_name,
        title="Boxes, average precision by true overlap",
        note="Per cent; more is better. Intersection over union of the boxes as they are.",
    ),
    Table(
        title="The gradient of iDSPN",
        note="Cosine between the gradient that it is trained with, one vector-Jacobian product, "
        "and the exact implicit one by damped conjugate gradients; to the set encoder and the "
        "picture's vector, after training.",
        columns=("boxes", "states"),
        rows={"iDSPN": (Entry("boxes-idspn", "cosine"), Entry("states-idspn", "cosine"))},
        higher_is_better=True,
        worst=False,
    ),
)
