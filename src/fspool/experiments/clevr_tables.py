"""The tables that the questions fill: the paper's, and what its text says without one."""

from __future__ import annotations

from ..data.clevr.families import FAMILIES
from .experiment import Entry, Table

MODELS = {
    "FSPool": "fspool",
    "RN": "rn",
    "Janossy": "janossy",
    "Sum": "sum",
    "Mean": "mean",
    "Max": "max",
}
QUESTION = {"Question only": "question"}
SHORT = {"FSPool": "fspool", "Sum": "sum", "Max": "max", **QUESTION}
MILESTONES = ("98.00", "98.50", "99.00")
GROUPS = tuple(dict.fromkeys(family.group for family in FAMILIES))


def tests_of(name: str) -> str:
    """The name under which tables find the test of FSPool against a model."""
    return f"fspool against {name}"


def _rows(models: dict[str, str], *metrics: str) -> dict[str, tuple[Entry, ...]]:
    """Metrics that come from the counts after every epoch."""
    return {
        label: tuple(Entry(f"{name} by epoch", metric) for metric in metrics)
        for label, name in models.items()
    }


def _groups(models: dict[str, str], title: str, ending: str = "") -> Table:
    return Table(
        title=title,
        note="Per cent of the validation questions of each group that are answered right after "
        "the last epoch; more is better.",
        columns=tuple(group.replace("_", " ") for group in GROUPS),
        rows={
            label: tuple(Entry(f"{name}{ending}", f"accuracy {group}") for group in GROUPS)
            for label, name in models.items()
        },
        scale=100,
        digits=1,
        higher_is_better=True,
    )


TABLES = (
    Table(
        title="Accuracy",
        note="Per cent of the validation questions; more is better. After the last epoch, and the "
        "mean of the last eleven, which is what the published numbers are. MAC sees pictures.",
        columns=("last epoch", "last epochs"),
        rows=_rows(MODELS | QUESTION, "last", "last epochs"),
        published="clevr.accuracy",
        reference=("MAC",),
        digits=2,
        higher_is_better=True,
        welch=True,
    ),
    Table(
        title="Epochs to an accuracy",
        note="The first epoch after which so many per cent of the validation questions are "
        "answered right, mean over the runs that get there. The published runs had the schedule "
        "of the released code, whose learning rate grows sooner than that of the paper's text.",
        columns=MILESTONES,
        rows=_rows(MODELS, *(f"epochs to {milestone}" for milestone in MILESTONES)),
        head="accuracy",
        published="clevr.epochs",
        preset="released",
        digits=0,
        worst=False,
    ),
    Table(
        title="Hours",
        note="Hours of training with validation, for a run; where several are trained at once the "
        "time is shared out among them. The paper's are of a GTX 1080 Ti.",
        columns=("all epochs", "to 99.00"),
        rows=_rows(MODELS, "hours", "hours to 99.00"),
        published="clevr.hours",
        digits=3,
        judged=False,
        worst=False,
    ),
    Table(
        title="FSPool against each other model",
        note="Welch's t-test of the accuracies after the last epoch, two-sided, from five runs up: "
        "the chance of so large a difference if there were none.",
        columns=("p",),
        rows={
            label: (Entry(tests_of(name), "p"),)
            for label, name in MODELS.items()
            if name != "fspool"
        },
        published="clevr.tests",
        digits=3,
        judged=False,
        worst=False,
    ),
    _groups(MODELS | QUESTION, "Accuracy by group of questions"),
    Table(
        title="Knots",
        note="FSPool's weight functions have 20 knots, 5 or 40; 21 instead of 20 in the preset "
        "released. Per cent, and epochs.",
        columns=("accuracy", "epochs to 99.00"),
        rows=_rows(
            {"k = 20": "fspool", "k = 5": "fspool-k5", "k = 40": "fspool-k40"},
            "last",
            "epochs to 99.00",
        ),
        digits=2,
        higher_is_better=True,
    ),
    Table(
        title="Precision",
        note="Products of matrices in bfloat16, or in TF32; everything else is float32. Per cent, "
        "and epochs.",
        columns=("accuracy", "epochs to 99.00"),
        rows=_rows(
            {"bfloat16": "fspool", "TF32": "fspool-tf32"},
            "last",
            "epochs to 99.00",
        ),
        digits=2,
        higher_is_better=True,
    ),
    Table(
        title="Features that are left",
        note="Of 512, in the last layer of g: those whose weights have a norm above 1e-8. Weight "
        "decay ends the others. The published counts are of one run.",
        columns=("rows",),
        rows={label: (Entry(name, "rows alive"),) for label, name in MODELS.items()},
        published="clevr.alive",
        digits=0,
        judged=False,
        worst=False,
    ),
    Table(
        title="Accuracy at the end of a short run",
        note="Per cent of the validation questions; more is better. Small networks, a few scenes.",
        columns=("accuracy",),
        rows=_rows({label: f"{name}-short" for label, name in SHORT.items()}, "last"),
        digits=1,
        higher_is_better=True,
    ),
    _groups(SHORT, "A short run, by group of questions", "-short"),
)
