"""The tables that MNIST fills: two of reconstruction, three of classification, and more."""

from __future__ import annotations

from .experiment import Entry, Table
from .mnist import EPOCHS, NOISE, POOL_NAMES, STARTS

AUTO_ENCODERS = {
    "FSPool + FSUnpool": "fspool",
    "Sum + MLP": "sum-mlp",
    "Sum + RNN": "sum-rnn",
    "Max + MLP": "max-mlp",
    "Mean + MLP": "mean-mlp",
}
UNITS = (
    "Thousandths of the raw Chamfer loss (the paper calls them ten thousandths, but its script "
    "multiplies by 1000)"
)


def _reconstruction(metric: str, mask: bool, title: str, note: str, **table) -> Table:
    """One metric of all auto-encoders, by noise."""
    ending = "-mask" if mask else ""
    rows = {
        label: tuple(Entry(f"{model}-s{sigma}{ending}", metric) for sigma in NOISE)
        for label, model in AUTO_ENCODERS.items()
    }
    variant = "with" if mask else "without"
    title = f"{title}, {variant} mask feature"
    return Table(title=title, note=note, columns=NOISE, rows=rows, head="noise", **table)


RECONSTRUCTION_TABLES = (
    *(
        _reconstruction(
            "released",
            mask,
            "Test Chamfer loss as published",
            f"{UNITS}. FSPool is divided by the largest set of its batch, the others by 342.",
            published=f"mnist.reconstruction.{'mask' if mask else 'plain'}",
            scale=1000,
            digits=2,
            welch=True,
        )
        for mask in (False, True)
    ),
    *(
        _reconstruction(
            "chamfer",
            mask,
            "Test Chamfer loss, all alike",
            "Thousandths. Every set is padded to 342 points and divided by 342: a fair comparison.",
            scale=1000,
            welch=True,
        )
        for mask in (False, True)
    ),
    *(
        _reconstruction(
            "points",
            mask,
            "Test Chamfer loss of the points alone",
            "Thousandths. Each direction is divided by its own count. The lists have 342 points, "
            "many of them where padding lies.",
            scale=1000,
        )
        for mask in (False, True)
    ),
    Table(
        title="Without the padding: fair baselines",
        note="Test Chamfer loss, all padded alike, in thousandths. The released code lets sum, "
        "mean and max pool the padding too; here they do not.",
        columns=("0.00", "0.05"),
        rows={
            label: tuple(Entry(f"{model}-s{sigma}", "chamfer") for sigma in ("0.00", "0.05"))
            for label, model in {
                "FSPool + FSUnpool": "fspool",
                "Sum + MLP": "sum-mlp-fair",
                "Max + MLP": "max-mlp-fair",
                "Mean + MLP": "mean-mlp-fair",
            }.items()
        },
        head="noise",
        scale=1000,
        welch=True,
    ),
    Table(
        title="Padding that is sorted with the points",
        note="Thousandths, noise 0.05, after one epoch. The released code adds -99999 to the "
        "padding and sorts it too, by dense matrices in float32; here it has no part in the sort.",
        columns=("as published", "all alike", "points alone"),
        rows={
            label: tuple(
                Entry(f"{model}-s0.05", metric) for metric in ("released", "chamfer", "points")
            )
            for label, model in {
                "FSPool + FSUnpool": "fspool-short",
                "with padding of -99999": "fspool-filled",
            }.items()
        },
        scale=1000,
        welch=True,
    ),
    Table(
        title="Chamfer loss and assignment loss",
        note="Thousandths, noise 0.05; the assignment of the first 128 test images. A point may be "
        "the nearest of many, but is assigned to one: a list whose points coincide pays for it. "
        "The sets [1, 1.001, 9] and [1, 9, 9.001] are 0.00000067 apart by the Chamfer loss, 21.3 "
        "by the assignment loss.",
        columns=("Chamfer", "assignment"),
        rows={
            label: (Entry(f"{model}-s0.05", "chamfer"), Entry(f"{model}-s0.05", "assignment"))
            for label, model in {"FSPool + FSUnpool": "fspool", "Sum + MLP": "sum-mlp"}.items()
        },
        scale=1000,
    ),
    Table(
        title="Trained with the assignment loss",
        note="Thousandths, noise 0.05, after one epoch; the assignment of the first 128 test "
        "images. A list trained with the assignment loss, one run, beside the same models trained "
        "as usual.",
        columns=("Chamfer", "assignment"),
        rows={
            label: (Entry(f"{model}-s0.05", "chamfer"), Entry(f"{model}-s0.05", "assignment"))
            for label, model in {
                "FSPool + FSUnpool": "fspool-short",
                "Sum + MLP, Chamfer loss": "sum-mlp-short",
                "Sum + MLP, assignment loss": "sum-mlp-assigned",
            }.items()
        },
        scale=1000,
    ),
    _reconstruction(
        "distinct",
        False,
        "Distinct points",
        "Pixels that are hit by a predicted point, for each point of the set.",
    ),
)


def _classification(columns: dict[str, tuple[str, str]], batch: str, **table) -> Table:
    """Accuracy of all pools; a column is the end of a cell's name and a metric."""
    rows = {
        label: tuple(Entry(f"{pool}-{name}{batch}", metric) for name, metric in columns.values())
        for pool, label in POOL_NAMES.items()
    }
    note = "Per cent of the test images; more is better."
    return Table(
        note=note,
        columns=tuple(columns),
        rows=rows,
        scale=100,
        digits=1,
        higher_is_better=True,
        welch=True,
        **table,
    )


def _early(sigma: str) -> dict[str, tuple[str, str]]:
    return {
        f"{epochs} {start}": (f"{start}-s{sigma}", f"accuracy after {epochs}")
        for epochs in (1, 10)
        for start in STARTS
    }


_LATE = {
    f"{sigma} {start}": (f"{start}-s{sigma}", "accuracy after 100")
    for sigma in ("0.05", "0.00")
    for start in STARTS
}


def _all(batch: str, words: str) -> tuple[Table, ...]:
    early = [
        _classification(
            _early(sigma),
            batch,
            title=f"Accuracy after 1 and 10 epochs, noise {sigma}{words}",
            published=f"mnist.classification.noise{int(float(sigma) * 100)}",
            head="epochs",
            early=True,
        )
        for sigma in ("0.05", "0.00")
    ]
    late = _classification(
        _LATE,
        batch,
        title=f"Accuracy after 100 epochs{words}",
        published="mnist.classification.epochs100",
        head="noise",
    )
    return *early, late


CLASSIFICATION_TABLES = (
    *_all("", ", batches of 8"),
    *_all("-b16", ", batches of 16"),
    Table(
        title="From an auto-encoder with noise 0.05, noise 0.00",
        note="Per cent of the test images; more is better. With batches of 8. So the released code "
        "starts FSPool, and only FSPool; in the tables above every model has the noise of its "
        "auto-encoder.",
        published="mnist.classification.from_noisy",
        head="epochs",
        columns=tuple(f"{epochs} {start}" for epochs in EPOCHS for start in STARTS[:2]),
        rows={
            "FSPool": tuple(
                Entry(f"fspool-{start}-from-s0.05-s0.00", f"accuracy after {epochs}")
                for epochs in EPOCHS
                for start in STARTS[:2]
            )
        },
        scale=100,
        digits=1,
        higher_is_better=True,
        early=True,
    ),
    Table(
        title="Claims of the text",
        note="Per cent of the test images; more is better. Frozen encoders after 10 epochs, noise "
        "0.05. The large model, noise 0.00, was trained for 20 epochs with batches of 64.",
        columns=("accuracy",),
        rows={
            "frozen, hard sort": (Entry("fspool-frozen-s0.05", "accuracy after 10"),),
            "frozen, relaxed sort": (Entry("fspool-frozen-relaxed-s0.05", "accuracy after 10"),),
            "1.6 million parameters": (Entry("fspool-large-s0.00", "accuracy"),),
        },
        scale=100,
        digits=1,
        higher_is_better=True,
    ),
    Table(
        title="Seconds of an epoch",
        note="One run, by itself, noise 0.05, batches of 8; the paper has a GTX 1080. Of many runs "
        "at once each takes less: see what it cost.",
        published="mnist.classification.seconds",
        columns=("seconds",),
        rows={
            label: (Entry(f"{pool}-timed-s0.05 an epoch", "seconds"),)
            for pool, label in (("fspool", "FSPool"), ("sum", "Sum"))
        },
        digits=1,
        judged=False,
        worst=False,
    ),
    Table(
        title="Accuracy at the end of a short run",
        note="Per cent of the test images; more is better.",
        columns=("random",),
        rows={
            label: (Entry(f"{pool}-random-s0.05 in short", "accuracy"),)
            for pool, label in POOL_NAMES.items()
        },
        scale=100,
        digits=1,
        higher_is_better=True,
    ),
)
