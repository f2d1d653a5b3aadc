"""Where the paper and its released code differ on MNIST, and the settings that decide it."""

from __future__ import annotations

from .experiment import Deviation, Entry
from .mnist import STARTS
from .mnist_tables import AUTO_ENCODERS

_KNOTS = Deviation(
    what="Knots of a weight function",
    paper="20",
    released="20 pieces, so 21",
    here="20",
    switch="knots",
    by=("released", "--set"),
)
_POOLED = {
    "what": "Padding in sum, mean and max",
    "paper": "not said",
    "released": "pooled too",
    "here": "pooled too",
    "switch": "pool_padding",
}
_NOISE = {
    "what": "Noise",
    "paper": "on the points",
    "here": "on the points",
    "switch": "noise_padding",
    "by": ("released",),
}

RECONSTRUCTION_DEVIATIONS = (
    Deviation(what="Batch", paper="16", released="8", here="16", switch="batch", by=("released",)),
    _KNOTS,
    Deviation(
        what="Temperature of the relaxed sort",
        paper="not said",
        released="1",
        here="1",
        switch="temperature",
    ),
    Deviation(
        what="Padding in the relaxed sort",
        paper="not said",
        released="-99999 is added, and it is sorted too",
        here="left out",
        switch="fill_padding",
        by=("fspool-filled-*",),
        seen={
            "one epoch, noise 0.05": (
                Entry("fspool-short-s0.05", "chamfer"),
                Entry("fspool-filled-s0.05", "chamfer"),
            )
        },
    ),
    Deviation(
        **_POOLED,
        by=("*-fair-*",),
        seen={
            f"{label}, noise 0.05": (
                Entry(f"{model}-s0.05", "chamfer"),
                Entry(f"{model}-fair-s0.05", "chamfer"),
            )
            for label, model in AUTO_ENCODERS.items()
            if model in ("sum-mlp", "max-mlp", "mean-mlp")
        },
    ),
    Deviation(**_NOISE, released="on the padding too, and on the mask feature"),
    Deviation(
        what="Encoder of Mean + MLP",
        paper="mean",
        released="maximum",
        here="mean",
        switch="pool",
        by=("released",),
        seen={
            "noise 0.05": (Entry("mean-mlp-s0.05", "chamfer"), Entry("max-mlp-s0.05", "chamfer"))
        },
    ),
    Deviation(
        what="What a Chamfer loss is divided by",
        paper="not said",
        released="FSPool: the largest set of its batch; lists: 342",
        here="both ways",
        switch="chamfer",
        seen={
            "FSPool, noise 0.05": (
                Entry("fspool-s0.05", "released"),
                Entry("fspool-s0.05", "chamfer"),
            )
        },
    ),
    Deviation(
        what="Unit of the tables",
        paper="ten thousandths of a sum",
        released="thousandths of a mean",
        here="thousandths of a mean",
    ),
)

CLASSIFICATION_DEVIATIONS = (
    Deviation(
        what="Batch",
        paper="16",
        released="8",
        here="8, and again 16",
        switch="batch",
        by=("*-b16",),
        seen={
            "FSPool, unfrozen, 1 epoch, noise 0.05": (
                Entry("fspool-unfrozen-s0.05", "accuracy after 1"),
                Entry("fspool-unfrozen-s0.05-b16", "accuracy after 1"),
            )
        },
    ),
    _KNOTS,
    Deviation(**_POOLED),
    Deviation(**_NOISE, released="on the padding too"),
    Deviation(
        what="Noise of the auto-encoder, for FSPool without noise",
        paper="not said",
        released="0.05",
        here="0.00, as for the other pools",
        switch="source",
        by=("released", "fspool-*-from-*"),
        seen={
            f"{start}, 1 epoch": (
                Entry(f"fspool-{start}-s0.00", "accuracy after 1"),
                Entry(f"fspool-{start}-from-s0.05-s0.00", "accuracy after 1"),
            )
            for start in STARTS[:2]
        },
    ),
    Deviation(
        what="Auto-encoder that Mean starts from",
        paper="trained with the mean",
        released="trained with the maximum",
        here="trained with the mean",
        switch="auto_encoder",
        by=("released",),
        seen={"frozen, 1 epoch, noise 0.05": (Entry("mean-frozen-s0.05", "accuracy after 1"),)},
    ),
)
