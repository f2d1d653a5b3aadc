"""MNIST as sets of points, denoised by auto-encoders (section 6.2 and appendix C of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..checks import nearest
from ..data.point_sets import LARGEST, SIDE, Batch
from ..lab.cell import Evaluation
from ..losses import assignment, chamfer
from ..models import AutoEncoder, ListDecoder, RecurrentDecoder, SetDecoder
from ..models.released import FilledPool, FilledUnpool
from .experiment import Experiment
from .mnist import NOISE, MnistCell, inside, steps_of
from .mnist_deviations import RECONSTRUCTION_DEVIATIONS
from .mnist_tables import RECONSTRUCTION_TABLES

TITLE = "MNIST as sets: take the noise off the points of a digit"
DECODERS = {"set": SetDecoder, "mlp": ListDecoder, "rnn": RecurrentDecoder}
SHOWN = 4  # test images that are kept for the figures: the first ones


@dataclass(frozen=True, kw_only=True)
class Reconstruction(MnistCell):
    """One auto-encoder. The defaults are the paper's, with FSPool and FSUnpool."""

    decoder: str = "set"  # "set": FSUnpool, trained with MSE; "mlp", "rnn": with the Chamfer loss
    mask_feature: bool = False  # a third channel: 1 for points, 0 for padding
    temperature: float = 1.0
    fill_padding: bool = False  # sort the padding too, as the released code does
    assigned: bool = False  # train a list with the assignment loss, which is very slow
    assigned_sets: int = 0  # test images whose points are also assigned one to one, which is slow
    steps: int = steps_of(10, 16)

    def __post_init__(self) -> None:
        super().__post_init__()
        nearest("decoder", self.decoder, DECODERS)

    @property
    def most_runs(self) -> int | None:
        if self.assigned:
            return 1
        return 3 if self.fill_padding else None

    @property
    def channels(self) -> int:
        return 3 if self.mask_feature else 2

    @property
    def footprint(self) -> int:
        return super().footprint * (LARGEST if self.fill_padding else 1)

    def model(self) -> nn.Module:
        encoder = self.encoder(self.temperature)
        if self.decoder == "set":
            decoder = SetDecoder(self.latent, self.hidden, self.channels, knots=self.knots)
            if self.fill_padding:
                encoder.pool = FilledPool(self.hidden, self.knots, temperature=self.temperature)
                encoder.pool_padding = True
                decoder.unpool = FilledUnpool(self.hidden, self.knots)
        else:
            form = DECODERS[self.decoder]
            decoder = form(self.latent, self.hidden, self.channels, LARGEST)
        return AutoEncoder(encoder, decoder)

    def output(self, model: nn.Module, batch: Batch) -> Tensor:
        y = model(batch.input, sizes=batch.sizes)
        return y * inside(batch) if self.decoder == "set" else y

    def match(self, output: Tensor, batch: Batch) -> Tensor | None:
        if not self.assigned:
            return None
        return assignment(output.detach(), batch.target, return_indices=True)[1][1]

    def loss(self, output: Tensor, batch: Batch, matched: Tensor | None) -> Tensor:
        if matched is not None:
            target = batch.target.gather(-2, matched.unsqueeze(-1).expand_as(batch.target))
            return (output - target).square().mean((-1, -2, -3))
        if self.decoder != "set":
            return chamfer(output, batch.target, normalise=LARGEST).mean(-1)
        # Over the batch, padded to its largest set: what padding contributes is zero.
        count = batch.sizes.amax(-1) * self.batch * self.channels
        return (output - batch.target).square().sum((-1, -2, -3)) / count

    def evaluate(self, model: nn.Module, seeds: Sequence[int], device: torch.device) -> Evaluation:
        sums: dict[str, Tensor] = {}
        kept: dict[str, Tensor] = {}
        for batch in self.tests(seeds, device):
            y = self.output(model, batch)
            for name, values in self._measure(y, batch).items():
                sums[name] = sums.get(name, 0.0) + values.double().sum(-1)
            if not kept:
                kept, assigned = self._shown(y, batch), self._assign(y, batch)
        metrics = {name: (total / self.test_sets).tolist() for name, total in sums.items()}
        return Evaluation(metrics | assigned, kept)

    def _measure(self, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        """(G, images). All sets padded to the same length; as published, where FSPool is padded to
        the largest set of its batch; and the points alone."""
        y, target = (pad(t, (0, 0, 0, LARGEST - t.shape[-2])) for t in (y, batch.target))
        places = torch.arange(LARGEST, device=y.device)
        points = places < batch.sizes.unsqueeze(-1)
        same = chamfer(y, target, normalise=LARGEST)
        own, released = None, same
        if self.decoder == "set":
            own = points
            largest = _by_batch(batch.sizes, self.batch)
            cut = places < largest.unsqueeze(-1)
            total = chamfer(y, target, mask_a=cut, mask_b=cut, normalise="sum")
            released = total / (self.channels * largest)
        return {
            "chamfer": same,
            "released": released,
            "points": chamfer(y, target, mask_a=own, mask_b=points),
            "distinct": _distinct(y, own) / batch.sizes,
        }

    def _assign(self, y: Tensor, batch: Batch) -> dict[str, list[float]]:
        """The assignment loss of the first images, padded like those of :meth:`_measure`."""
        if not self.assigned_sets:
            return {}
        few = (t[:, : self.assigned_sets] for t in (y, batch.target))
        y, target = (pad(t, (0, 0, 0, LARGEST - t.shape[-2])) for t in few)
        return {"assignment": assignment(y, target).double().mean(-1).tolist()}

    def _shown(self, y: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The first images of the first run."""
        tensors = {"input": batch.input, "target": batch.target, "output": y, "size": batch.sizes}
        return {name: tensor[0, :SHOWN].cpu() for name, tensor in tensors.items()}


def _by_batch(sizes: Tensor, batch: int) -> Tensor:
    """The largest size of the batch that an image is in, for images (G, n) in batches."""
    rest = -sizes.shape[-1] % batch
    largest = pad(sizes, (0, rest)).unflatten(-1, (-1, batch)).amax(-1, keepdim=True)
    return largest.expand(*largest.shape[:-1], batch).flatten(-2)[..., : sizes.shape[-1]]


def _distinct(y: Tensor, mask: Tensor | None) -> Tensor:
    """How many pixels of an image are hit by a point; the corner, where padding lies, is none."""
    cells = (y[..., :2] * SIDE).round().clamp(0, SIDE).long()
    cell = cells[..., 0] * (SIDE + 1) + cells[..., 1]
    if mask is not None:
        cell = cell.masked_fill(~mask, 0)
    hit = torch.zeros(*y.shape[:-2], (SIDE + 1) ** 2, device=y.device)
    return hit.scatter(-1, cell, 1.0)[..., 1:].sum(-1)


# --------------------------------------------------------------------------------------------------
# Presets. "sum-mlp-s0.05-mask" is the model "sum-mlp" with noise of 0.05 and the mask feature.

MODELS = {
    "fspool": {},
    "sum-mlp": {"pool": "sum", "decoder": "mlp"},
    "sum-rnn": {"pool": "sum", "decoder": "rnn"},
    "max-mlp": {"pool": "max", "decoder": "mlp"},
    "mean-mlp": {"pool": "mean", "decoder": "mlp"},
}


def grid(models: dict[str, dict], noise: Sequence[str], **settings) -> dict[str, Reconstruction]:
    base = Reconstruction(**settings)
    return {
        f"{name}-s{sigma}{'-mask' * mask}": replace(
            base, sigma=float(sigma), mask_feature=mask, **changes
        )
        for mask in (False, True)
        for name, changes in models.items()
        for sigma in noise
    }


def cells(preset: str) -> dict[str, Reconstruction]:
    if preset == "quick":
        few = {name: MODELS[name] for name in ("fspool", "sum-mlp")}
        cells = grid(few, ("0.05",), batch=4, steps=256, test_sets=256)
        return {name: cell for name, cell in cells.items() if not cell.mask_feature}
    if preset == "released":  # its knots count pieces; its mean auto-encoder pools by the maximum
        models = MODELS | {"mean-mlp": MODELS["max-mlp"]}
        return grid(models, NOISE, batch=8, steps=steps_of(10, 8), knots=21, noise_padding=True)
    cells = grid(MODELS, NOISE)
    for name in ("fspool-s0.05", "sum-mlp-s0.05"):
        cells[name] = replace(cells[name], assigned_sets=128)
    return cells | fair_cells() | one_epoch_cells()


def fair_cells() -> dict[str, Reconstruction]:
    """Baselines that do not pool the padding."""
    return {
        f"{name}-fair-s{sigma}": replace(
            Reconstruction(sigma=float(sigma), pool_padding=False), **MODELS[name]
        )
        for name in ("sum-mlp", "max-mlp", "mean-mlp")
        for sigma in ("0.00", "0.05")
    }


def one_epoch_cells() -> dict[str, Reconstruction]:
    """What is too slow for more, beside the usual models that were trained as long."""
    short = Reconstruction(steps=steps_of(1, 16), assigned_sets=128)
    listed = replace(short, **MODELS["sum-mlp"])
    return {
        "fspool-short-s0.05": short,
        "sum-mlp-short-s0.05": listed,
        "fspool-filled-s0.05": replace(short, fill_padding=True, assigned_sets=0),
        "sum-mlp-assigned-s0.05": replace(listed, assigned=True),
    }


EXPERIMENT = Experiment(
    name="mnist-reconstruction",
    title=TITLE,
    cell=Reconstruction,
    cells=cells,
    seeds={"quick": 1, "paper": 6, "released": 6},
    settable=("steps", "batch", "learning_rate", "knots", "test_sets", "dtype"),
    tables=RECONSTRUCTION_TABLES,
    deviations=RECONSTRUCTION_DEVIATIONS,
    shown=tuple(f"{model}-s{sigma}" for model in ("fspool", "sum-mlp") for sigma in NOISE),
)
