"""Which objects are in this picture? Sets predicted from images (section 6.5 of the paper).

Pictures are CLEVR's, or those of a twin that a small ray caster draws. The task is to find boxes
around the objects, or their states: places and attributes. The set encoder inside is what pools are
compared in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from ..checks import UserError, check_count, nearest
from ..data import draws
from ..data.clevr.pictured import CHANNELS, TASKS, Pictured
from ..data.clevr.render import SIZE
from ..lab import parallel
from ..lab.cell import Cell, Evaluation, place
from ..lab.replicas import select
from ..losses import assignment
from ..models import DSPN, ImageEncoder, ImplicitDSPN, PairEncoder, SetPredictor
from ..models.resnet import PRECISIONS, TRUNKS, smallest
from ..models.set_encoder import POOLS
from .clevr_data import check_scenes
from .dspn_data import RENDERED, Batch, found_in, load_pictured
from .dspn_gradient import agreement
from .dspn_metrics import Scores
from .dspn_tables import ITERATIONS, TABLES
from .experiment import Experiment
from .trained import model_of, read_trained

TITLE = "Sets from pictures: boxes and states of CLEVR's objects"
TRAIN, TEST = 70_000, 15_000  # scenes
SLOTS = 10
SOURCES = ("twin", "files")
INNER = {"dspn": DSPN, "idspn": ImplicitDSPN}
FARTHEST = 1.0  # that a set of iDSPN moves in a step, but for its momentum
PIECE = 256  # test pictures in one go
SHOWN = 3  # test pictures whose predictions are kept
STEPS_SHOWN = (0, 1, 2, 5, 10, 20)  # inner steps of those


@dataclass(frozen=True, kw_only=True)
class SetPrediction(Cell):
    """One model. The defaults are the paper's, with FSPool, for boxes."""

    task: str = "boxes"
    pool: str = "fspool"
    inner: str = "dspn"  # or "idspn", which is differentiated at its last step alone
    iterations: int = 10  # inner steps in training
    inner_rate: float = 25.0
    dim: int = 512
    knots: int = 20
    trunk: str = "resnet34"
    size: int = SIZE
    batch: int = 32
    learning_rate: float = 3e-4
    decay: float = 0.0  # share of the steps, at the end, over which the learning rate goes to 0
    representation: float = 0.1  # weight of the distance between the true set's vector and z
    precision: str = "float32"  # of the image encoder's maps
    tf32: bool = False  # in products of matrices, on CUDA
    source: str = "twin"  # or "files": scenes, and perhaps pictures, of CLEVR's own
    content: str = ""  # of those files
    scenes: int = TRAIN
    test_scenes: int = TEST
    data: str = place()

    def __post_init__(self) -> None:
        for name in ("iterations", "dim", "batch"):
            check_count(name, getattr(self, name), 1, "a number of them")
        check_count("size", self.size, smallest(self.trunk), "pixels of a side")
        for name in ("scenes", "test_scenes"):
            check_scenes(name, getattr(self, name))
        check_count("steps", self.steps, 0, "a number of them")
        check_count("knots", self.knots, 2, "knots of the weight functions")
        for name, valid in (
            ("task", TASKS),
            ("pool", POOLS),
            ("inner", INNER),
            ("trunk", TRUNKS),
            ("precision", PRECISIONS),
            ("source", SOURCES),
            ("dtype", ("float32", "float64")),
        ):
            nearest(name, getattr(self, name), valid)
        if self.batch > self.scenes:
            raise ValueError(
                f"batch is {self.batch}; expected at most {self.scenes}, the scenes that there are."
            )
        for name in ("learning_rate", "inner_rate"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; expected a positive number.")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay is {self.decay}; expected a share from 0 to 1.")

    def at(self, **places: object) -> SetPrediction:
        """The same cell for the files that are there."""
        cell = super().at(**places)
        if cell.source != "files":
            return replace(cell, content="")
        content, *counts = found_in(cell.data)
        scenes, test_scenes = map(min, counts, (cell.scenes, cell.test_scenes))
        return replace(cell, content=content, scenes=scenes, test_scenes=test_scenes)

    @property
    def channels(self) -> int:
        return CHANNELS[self.task]

    @property
    def footprint(self) -> int:
        """A run fills a device: no two are trained as one."""
        return 1 << 28

    @property
    def matmul_precision(self) -> str:
        return "high" if self.tf32 else "highest"

    # ----------------------------------------------------------------------------------------------
    # The model

    def model(self) -> SetPredictor:
        images = ImageEncoder(self.size, self.dim, self.trunk, self.precision)
        if parallel.team().size > 1:
            images.share_batches(parallel.add_up)
        form = {"pool": self.pool, "knots": self.knots, "divided": self.inner == "dspn"}
        encoder = PairEncoder(self.channels + 1, self.dim, **form)
        settings = {"iterations": self.iterations, "rate": self.inner_rate}
        if self.inner == "idspn":
            settings["clip"] = FARTHEST
        return SetPredictor(images, INNER[self.inner](encoder, self.channels, SLOTS, **settings))

    def output(self, model: SetPredictor, batch: Batch) -> Tensor:
        """The predicted set, and how far its vector is from that of the true one, as one tensor."""
        found, z = model(batch.images, batch.noise)
        if self.representation:
            true = model.sets.encoder(batch.sets)
            gap = smooth_l1_loss(true, z, reduction="none").mean(-1)
        else:
            gap = z.new_zeros(z.shape[:-1])
        return torch.cat((found.flatten(-2), gap.unsqueeze(-1)), -1)

    def loss(self, output: Tensor, batch: Batch, matched: None) -> Tensor:
        found = output[..., :-1].unflatten(-1, batch.sets.shape[-2:])
        losses = assignment(found, batch.sets, cost="huber") + self.representation * output[..., -1]
        return losses.sum(-1) / batch.count.squeeze(-1)

    def rate(self, step: int) -> float:
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return self.learning_rate * min(1.0, left) if self.decay else self.learning_rate

    # ----------------------------------------------------------------------------------------------
    # Data

    def batches(self, seeds: Sequence[int], steps: range, device: torch.device) -> Iterator[Batch]:
        data = self._data("train", device)
        for step in steps:
            rows = self._rows(tuple(seeds), step, len(data.images), device)
            noise = self._noise(seeds, range(step, step + 1), "noise", rows.shape[1], device)[0]
            sets = data.sets[rows].to(self.torch_dtype)
            yield Batch(data.images[rows], sets, noise, self._count(sets))

    def _rows(self, seeds: tuple[int, ...], step: int, count: int, device) -> Tensor:
        """The pictures of a step, (G, B); a last batch that is not full is left out."""
        batch = min(self.batch, count)
        epoch, at = divmod(step, count // batch)
        order = draws.epoch_order(seeds, epoch, "images", count, device)
        return order[:, at * batch : (at + 1) * batch]

    def _count(self, sets: Tensor) -> Tensor:
        return sets.new_full((len(sets), 1), sets.shape[1])

    def share(self, batch: Batch, rank: int, size: int) -> Batch:
        return parallel.even_share(batch, rank, size)

    def _noise(self, seeds, steps: range, purpose: str, batch: int, device) -> Tensor:
        shape = (batch, SLOTS, self.channels + 1)
        if self.inner == "dspn":
            return torch.zeros(len(steps), len(seeds), *shape[:1], 1, 1, device=device)
        return draws.normal(seeds, steps, purpose, shape, device).to(self.torch_dtype)

    def _data(self, split: str, device: torch.device) -> Pictured:
        count = self.scenes if split == "train" else self.test_scenes
        return load_pictured(self.source, self.data, split, count, self.size, self.task, device)

    # ----------------------------------------------------------------------------------------------
    # Evaluation

    def evaluate(
        self, model: SetPredictor, seeds: Sequence[int], device: torch.device
    ) -> Evaluation:
        data = self._data("val", device)
        wanted = [self.iterations * times for times in ITERATIONS]
        scores = [[Scores(self.task) for _ in wanted] for _ in seeds]
        count, piece = len(data.images), max(self.batch, PIECE)
        for first in range(0, count, piece):
            batch = self._test_batch(data, seeds, range(first, min(first + piece, count)))
            z = model.images(batch.images)
            found = model.sets.descend(z, set(wanted), batch.noise)
            for sets, after in zip(found, range(len(wanted)), strict=True):
                for run in range(len(seeds)):
                    scores[run][after].add(sets[run], batch.sets[run])
        metrics = [
            {
                f"{name} after {times}x": value
                for times, each in zip(ITERATIONS, run, strict=True)
                for name, value in each.compute().items()
            }
            for run in scores
        ]
        found = {name: [run[name] for run in metrics] for name in metrics[0]}
        if self.inner == "idspn":
            batch = self._test_batch(data, seeds, range(min(self.batch, len(data.images))))
            found["cosine"] = agreement(model, batch)
        return Evaluation(found, self._shown(model, data, seeds))

    def _test_batch(self, data: Pictured, seeds: Sequence[int], rows: range) -> Batch:
        images, sets = (
            t[rows.start : rows.stop].expand(len(seeds), *[-1] * t.ndim)
            for t in (data.images, data.sets)
        )
        steps = range(rows.start, rows.start + 1)
        noise = self._noise(seeds, steps, "test noise", len(rows), images.device)[0]
        sets = sets.to(self.torch_dtype)
        return Batch(images, sets, noise, self._count(sets))

    def _shown(self, model: SetPredictor, data: Pictured, seeds: Sequence[int]) -> dict:
        """The first test pictures, as scenes, and what the first run finds in them, by step."""
        few = range(min(SHOWN, len(data.images)))
        batch = self._test_batch(data, seeds[:1], few)
        model = select(model, slice(0, 1))
        found = model.sets.descend(model.images(batch.images), set(STEPS_SHOWN), batch.noise)
        shown = {"found": torch.stack([sets[0] for sets in found], 1), "true": batch.sets[0]}
        scenes = {f"scene.{name}": t[: len(few)] for name, t in data.scenes._asdict().items()}
        return {name: tensor.cpu() for name, tensor in (shown | scenes).items()}


def load(folder: Path | str, task: str | None = None, seed: int | None = None) -> SetPredictor:
    """The trained model of a run folder, in ``eval()`` mode, of one of its seeds or of the first;
    perhaps of a task.

    ``model(images)`` gives sets and vectors; ``model.sets.descend`` also those on the way.
    """
    trained = read_trained(folder)
    ours = trained.experiment == "dspn" and trained.settings
    found = trained.settings.get("task") if ours else None
    if found is None or task not in (None, found):
        what = f"a model for {found}" if found else f"a run of {trained.experiment}"
        wanted = f"one for {task}" if task else "one of dspn"
        raise UserError(f"{trained.folder / 'config.json'} is of {what}; expected {wanted}.")
    return model_of(trained, SetPrediction, seed)


# --------------------------------------------------------------------------------------------------
# Presets. "states-sum" predicts states, with a set encoder that sums; "idspn" has FSPool.

QUICK = {
    "size": 32,
    "trunk": "tiny",
    "dim": 32,
    "batch": 16,
    "steps": 400,
    "scenes": 600,
    "test_scenes": 128,
    "learning_rate": 1e-3,
}
# The paper trains for 100 epochs; this is what fits into a short time on one GPU.
CUT = {
    "batch": 64,
    "learning_rate": 6e-4,
    "steps": 6 * (TRAIN // 64),
    "decay": 0.3,
    "precision": "bfloat16",
    "tf32": True,
}
WHOLE = {"steps": 100 * (TRAIN // 32), "knots": 21}
# The inner loop of iDSPN's released settings, which begin with half as many steps as they end with.
IDSPN = {"inner": "idspn", "iterations": 20, "inner_rate": 1.0, "representation": 0.0}


def cells(preset: str) -> dict[str, SetPrediction]:
    base = SetPrediction(**{"quick": QUICK, "paper": CUT, "released": WHOLE}[preset])
    found = {}
    for task in TASKS:
        for pool in POOLS:
            found[f"{task}-{pool}"] = replace(base, task=task, pool=pool)
        found[f"{task}-idspn"] = replace(base, task=task, **IDSPN)
    if preset == "quick":
        few = ("boxes-fspool", "boxes-sum", "states-fspool", "states-sum")
        return {name: found[name] for name in few}
    return found


def _is_clevr(settings: dict) -> bool:
    """Are pictures those of CLEVR? A twin's are others, and so are those that are rendered."""
    return settings["source"] == "files" and not settings["content"].endswith(RENDERED)


EXPERIMENT = Experiment(
    name="dspn",
    title=TITLE,
    cell=SetPrediction,
    cells=cells,
    seeds={"quick": 1, "paper": 2, "released": 6},
    judged=("released",),
    by_data=("source", "content"),
    enough=_is_clevr,
    also={
        "paper": ", but for 6 epochs instead of 100: in batches of 64, at twice the learning rate, "
        "which falls at the end, with products of matrices in bfloat16",
        "released": "; iDSPN, of a later paper, is not as its code sets it",
    },
    settable=(
        "steps",
        "batch",
        "learning_rate",
        "decay",
        "inner_rate",
        "knots",
        "precision",
        "source",
        "scenes",
        "test_scenes",
        "size",
        "dtype",
    ),
    tables=TABLES,
    shown=tuple(f"{task}-{model}" for task in TASKS for model in (*POOLS, "idspn")),
)
