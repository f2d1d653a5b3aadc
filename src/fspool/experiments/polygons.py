"""Rotating polygons (section 6.1 and appendix B of the paper): the responsibility problem.

An auto-encoder with FSPool and FSUnpool follows a polygon as it turns. A decoder that puts out a
list, trained with a loss between sets, cannot: at some angle every output has to jump to where its
neighbour was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..checks import check_count, nearest
from ..data.polygons import polygons, random_polygons
from ..lab.cell import Cell, Evaluation
from ..losses import assignment, chamfer
from ..models import AutoEncoder, ListDecoder, SetDecoder, SetEncoder
from ..models.linear import spread_biases
from ..nn import TemperatureDecay
from .experiment import Experiment
from .polygon_tables import TABLES, derive

TITLE = "Rotating polygons: reconstruct the corners of a regular polygon"
SIZES = (2, 4, 8, 16, 32, 64)
ANGLES = 3600  # of the sweep over a full turn, a tenth of a degree each
SHOWN = 5  # every fifth of them is kept for the figures
LARGEST_SHOWN = 16  # corners up to which the sweep is kept


@dataclass(frozen=True, kw_only=True)
class Polygons(Cell):
    """One model on polygons of one size. The defaults are the paper's FSPool auto-encoder."""

    points: int
    decoder: str = "set"  # "set": FSUnpool; "list": an MLP; "random": a guess, nothing learnt
    objective: str = "mse"  # "mse", "chamfer" or "assignment"
    pool: str = "fspool"
    hidden: int = 16
    latent: int = 1
    knots: int = 20
    temperature: float | None = 1.0  # None: ordinary sort
    decay_to: float | None = None  # lower the temperature to this, then evaluate with a hard sort
    features: int | None = None  # how many of the permutations the decoder uses
    use_latent: bool = True
    biases: str = "zeros"  # or "uniform", as torch starts them
    batch: int = 16
    steps: int = 10_240
    evaluation_sets: int = 1 << 14

    def __post_init__(self) -> None:
        for name in ("points", "hidden", "latent", "batch", "evaluation_sets"):
            check_count(name, getattr(self, name), 1, "a number of them")
        check_count("steps", self.steps, 0, "a number of them")
        check_count("knots", self.knots, 2, "knots of the weight functions")
        nearest("dtype", self.dtype, ("float32", "float64"))
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate is {self.learning_rate}; expected a positive number.")

    @property
    def footprint(self) -> int:
        soft = self.pool == "fspool" and self.temperature is not None
        return self.batch * self.points * self.hidden * (self.points if soft else 1)

    def model(self) -> nn.Module:
        if self.decoder == "random":
            return nn.Identity()
        encoder = SetEncoder(
            2,
            self.hidden,
            self.latent,
            pool=self.pool,
            knots=self.knots,
            temperature=self.temperature,
            hard_eval=self.decay_to is not None,
        )
        if self.decoder == "list":
            decoder = ListDecoder(self.latent, self.hidden, 2, self.points)
        else:
            decoder = SetDecoder(
                self.latent, self.hidden, 2, knots=self.knots, features=self.features
            )
        model = AutoEncoder(encoder, decoder, use_latent=self.use_latent)
        if self.biases == "uniform":
            spread_biases(model)
        return model

    def batches(self, seeds: Sequence[int], steps: range, device: torch.device) -> Tensor:
        return self._polygons(seeds, steps, self.batch, "train", device)

    def output(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch)

    def match(self, output: Tensor, batch: Tensor) -> Tensor | None:
        if self.objective == "assignment":
            return assignment(output.detach(), batch, return_indices=True)[1][1]
        return None

    def loss(self, output: Tensor, batch: Tensor, matched: Tensor | None) -> Tensor:
        if matched is not None:  # one to one, so this is the assignment loss
            index = matched.unsqueeze(-1).expand_as(batch)
            return _mse(output, batch.gather(-2, index)).mean(-1)
        return MEASURES[self.objective](output, batch).mean(-1)

    def adjust(self, model: nn.Module, step: int) -> None:
        if self.decay_to is not None:
            last = max(self.steps - 1, 1)
            decay = TemperatureDecay(model, start=self.temperature, end=self.decay_to, steps=last)
            decay.load_state_dict({"count": step})

    @property
    def adjusts(self) -> bool:
        return self.decay_to is not None

    def evaluate(self, model: nn.Module, seeds: Sequence[int], device: torch.device) -> Evaluation:
        metrics, examples = self._reconstruct(model, seeds, device)
        if self.decoder == "random":
            return Evaluation(metrics, examples)
        swept, kept = self._sweep(model, len(seeds), device)
        return Evaluation(metrics | swept, examples | kept)

    def _reconstruct(self, model, seeds, device) -> tuple[dict[str, list[float]], dict]:
        """Losses over fresh sets, and the first few of them with their reconstructions."""
        names = [name for name in MEASURES if name != "mse" or self.decoder != "list"]
        sums = dict.fromkeys(names, 0.0)
        examples, count = {}, self.evaluation_sets
        size = self._chunk(device, len(seeds))
        for first in range(0, count, size):
            chunk = range(first, min(first + size, count))
            x = self._fresh(seeds, chunk, "test", device)
            guess = self.decoder == "random"
            y = self._fresh(seeds, chunk, "guess", device) if guess else model(x)
            for name in names:
                sums[name] = sums[name] + MEASURES[name](y, x).double().sum(-1)
            examples = examples or {"input": x[0, :6].cpu(), "output": y[0, :6].cpu()}
        return {name: (total / count).tolist() for name, total in sums.items()}, examples

    def _sweep(self, model, runs: int, device) -> tuple[dict[str, list[float]], dict]:
        """Turn one polygon through a full circle, its corners listed in the same order throughout.

        ``variance`` of the output over angles is 0 for a constant and 0.5 for a perfect rotation.
        ``speed`` is the fastest movement of the outputs together, for each radian and corner: 1 for
        a perfect rotation. ``worst`` is the assignment loss at the worst angle.
        """
        angle = torch.arange(ANGLES, device=device, dtype=torch.float64) * (2 * torch.pi / ANGLES)
        x = polygons(angle, self.points).to(self.torch_dtype).expand(runs, -1, -1, -1)
        y = torch.cat([model(part) for part in x.split(self._chunk(device, runs), 1)], 1)
        move = (y.roll(-1, 1) - y).double().square().sum(-1).sqrt().sum(-1)
        metrics = {
            "variance": y.double().var(1, correction=0).mean((1, 2)).tolist(),
            "speed": (move.amax(1) * ANGLES / (2 * torch.pi * self.points)).tolist(),
            "worst": assignment(y, x).amax(1).tolist(),
        }
        kept = {"sweep": y[0, ::SHOWN].cpu()} if self.points <= LARGEST_SHOWN else {}
        return metrics, kept

    def _fresh(self, seeds, sets: range, purpose: str, device) -> Tensor:
        """(G, sets, n, 2), one draw a set: which sets they are does not depend on the chunk."""
        return self._polygons(seeds, sets, 1, purpose, device).squeeze(2).transpose(0, 1)

    def _polygons(self, seeds, steps, batch, purpose, device) -> Tensor:
        return random_polygons(
            seeds,
            steps,
            n=self.points,
            batch=batch,
            purpose=purpose,
            device=device,
            dtype=self.torch_dtype,
        )

    def _chunk(self, device: torch.device, runs: int) -> int:
        """How many sets to evaluate at once: a power of two that fits the cache, or the device."""
        room = 1 << (27 if device.type == "cuda" else 21)
        per_set = max(1, self.footprint // self.batch * runs)
        return 1 << max(0, min(room // per_set, 1 << 12).bit_length() - 1)


def _mse(y: Tensor, x: Tensor) -> Tensor:
    return (y - x).square().mean((-1, -2))


MEASURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mse": _mse,
    "chamfer": chamfer,
    "assignment": assignment,
}


# --------------------------------------------------------------------------------------------------
# Presets: cells by name. "fspool-n16" is the model "fspool" on 16 points.

LISTS = {
    "mlp-chamfer": {"decoder": "list", "objective": "chamfer"},
    "mlp-assignment": {"decoder": "list", "objective": "assignment"},
}


def main_cells(sizes: Sequence[int], **settings) -> dict[str, Polygons]:
    """The models of the paper's tables."""
    cells = {}
    for n in sizes:
        base = Polygons(points=n, **settings)
        cells[f"fspool-n{n}"] = base
        for name, changes in LISTS.items():
            cells[f"{name}-n{n}"] = replace(base, **changes)
        cells[f"random-n{n}"] = replace(base, decoder="random", steps=0)
    return cells


def extra_cells(**settings) -> dict[str, Polygons]:
    """What the paper claims without a table, all but the sorts on 16 points."""
    base = Polygons(points=16, **settings)
    cells = {"fspool-zero-latent-n16": replace(base, use_latent=False)}
    for width in (16, 128):
        for pool in ("fspool", "sum", "mean", "max"):
            for name, changes in LISTS.items():
                if (width, pool) != (16, "fspool"):
                    cells[f"{name}-{pool}-h{width}-n16"] = replace(
                        base, pool=pool, hidden=width, latent=1 if width == 16 else width, **changes
                    )
    for rate in (1e-4, 1e-2):
        for name, changes in LISTS.items():
            cells[f"{name}-lr{rate:g}-n16"] = replace(base, learning_rate=rate, **changes)
    for n in (4, 16, 64):
        sized = replace(base, points=n)
        cells[f"fspool-hard-n{n}"] = replace(sized, temperature=None)
        cells[f"fspool-decay-n{n}"] = replace(sized, decay_to=1e-3)
    return cells | bypass_cells(replace(base, biases="uniform"))


def bypass_cells(base: Polygons) -> dict[str, Polygons]:
    """What reaches the decoder past the latent vector.

    Not with zero biases: with a zero latent vector everything behind it would then be zero, and so
    would its gradient, so that nothing could be learnt whatever the permutations say.
    """
    cells = {f"{name}-uniform-n16": replace(base, **changes) for name, changes in LISTS.items()}
    for width in (16, 128):
        for count in (1, 4, 16, None):
            if count != width:
                name = f"fspool-uniform-h{width}-p{count or 'all'}"
                cell = replace(base, hidden=width, features=count)
                cells[f"{name}-n16"] = cell
                cells[f"{name}-zero-latent-n16"] = replace(cell, use_latent=False)
    return cells


def cells(preset: str) -> dict[str, Polygons]:
    if preset == "quick":
        return main_cells((2, 4, 16), steps=2048, evaluation_sets=1 << 10)
    if preset == "released":  # its knots count pieces; its script has other sizes
        return main_cells((4, 8, 16, 32, 64, 128, 256), knots=21)
    largest = {f"{name}-n128": cell for name, cell in _largest().items()}
    return main_cells(SIZES) | largest | extra_cells()


def _largest() -> dict[str, Polygons]:
    """128 points, which the text claims for FSPool."""
    base = Polygons(points=128)
    return {"fspool": base, "random": replace(base, decoder="random", steps=0)}


EXPERIMENT = Experiment(
    name="polygons",
    title=TITLE,
    cell=Polygons,
    cells=cells,
    seeds={"quick": 3, "paper": 10, "released": 10},
    settable=("steps", "batch", "learning_rate", "knots", "evaluation_sets", "dtype"),
    tables=TABLES,
    shown=tuple(f"{model}-n{n}" for model in ("fspool", *LISTS) for n in (2, 4)),
    derive=derive,
)
