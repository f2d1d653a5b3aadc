"""What is the answer? Questions about scenes, told as sets of objects (section 6.3 of the paper).

Right answers on the validation questions are counted after every epoch; what a table says of
epochs comes from these counts (:mod:`.clevr_epochs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..checks import UserError, check_count, nearest
from ..data.clevr.batches import Desk, QuestionBatch, train_batches, tried_batches
from ..data.clevr.vocabulary import ANSWERS, OBJECTS, WORDS
from ..data.files import find_root
from ..lab import parallel
from ..lab.cell import Cell, Evaluation, place
from ..models.clevr import POOLS, QuestionAnswering
from ..nn.knots import INITS
from .clevr_data import check_scenes, contents, desk_of, of_group, split_of
from .clevr_epochs import by_epoch
from .clevr_schedules import SCHEDULES
from .clevr_tables import GROUPS, TABLES
from .experiment import Experiment

TITLE = "CLEVR: questions about scenes"
PRECISIONS = {"float32": "highest", "tf32": "high", "bfloat16": "high"}
LONGEST = 45  # words of a question, about
ALIVE = {"weight": 1e-12, "row": 1e-8}  # norms from which weights are not dead


@dataclass(frozen=True, kw_only=True)
class ClevrCell(Cell):
    """One network. The defaults are the paper's, and where it is silent its code's."""

    tallies: ClassVar[tuple[str, ...]] = ("right",)

    pool: str = "fspool"
    knots: int = 20
    init: str = "ones"  # of FSPool
    slots: int = 12
    pool_padding: bool = True  # by all but FSPool, as in the released code
    scaled: bool = True  # what is pooled times the slots, as in the released code
    embedding: int = 32
    hidden: int = 256
    width: int = 512
    dropout: float = 0.05
    batch: int = 640
    epochs: int = 350
    learning_rate: float = 5e-6
    peak: float = 5e-4
    schedule: str = "paper"
    decay: float = 1e-4
    clip: float = 50.0
    precision: str = "bfloat16"  # of products of matrices: float32, tf32 or bfloat16
    scenes: int = 0  # only the first ones, of a twin that is made if need be; 0: all
    group: str = ""  # only questions of this one, such as zero_hop
    questions: int = 700_000  # this and the next two are as the data has it
    tried: int = 150_000
    content: str = ""
    data: str = place()

    def __post_init__(self) -> None:
        nearest("pool", self.pool, POOLS)
        nearest("init", self.init, INITS)
        nearest("schedule", self.schedule, SCHEDULES)
        nearest("precision", self.precision, PRECISIONS)
        nearest("dtype", self.dtype, ("float32", "float64"))
        if self.group:
            nearest("group", self.group, GROUPS)
        check_count("knots", self.knots, 2, "knots of the weight functions")
        check_count("slots", self.slots, OBJECTS, "room for the objects of every scene")
        for name in ("embedding", "hidden", "width", "batch", "epochs", "questions", "tried"):
            check_count(name, getattr(self, name), 1, "a number of them")
        check_scenes("scenes", self.scenes, 0)
        if not 0 <= self.decay < float("inf"):
            raise ValueError(f"decay is {self.decay}; expected a number of at least 0.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; expected a probability below 1.")
        for name in ("learning_rate", "peak", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; expected a positive number.")
        object.__setattr__(self, "steps", self.epochs * self.tally_every)  # never a setting

    def at(self, **places: object) -> ClevrCell:
        """The same cell for the data that is there, which decides how many steps it has."""
        cell = super().at(**places)
        questions, tried, content = contents(cell.data, cell.scenes, cell.group)
        return replace(cell, questions=questions, tried=tried, content=content)

    @property
    def tally_every(self) -> int:
        """Steps of an epoch."""
        return -(-self.questions // self.batch)

    @property
    def footprint(self) -> int:
        places = (OBJECTS + 1) ** 2 if self.pool == "rn" else OBJECTS + 2
        return self.batch * max(places * self.width, LONGEST * 4 * self.hidden)

    @property
    def matmul_precision(self) -> str:
        return PRECISIONS[self.precision]

    @property
    def weight_decay(self) -> float:
        return self.decay

    @property
    def largest_gradient(self) -> float:
        return self.clip

    def model(self) -> nn.Module:
        names = "pool knots slots embedding hidden width pool_padding scaled init".split()
        settings = {name: getattr(self, name) for name in names}
        return QuestionAnswering(len(WORDS), len(ANSWERS), **settings)

    def rate(self, step: int) -> float:
        schedule = SCHEDULES[self.schedule]
        return schedule(self.learning_rate, self.peak, step // self.tally_every + 1)

    def batches(
        self, seeds: Sequence[int], steps: range, device: torch.device
    ) -> Iterator[QuestionBatch]:
        desk = self.desk("train", device)
        self._check(desk, self.questions)
        drawing = {"units": 2 * self.width, "dropout": self.dropout, "dtype": self.torch_dtype}
        return train_batches(desk, seeds, steps, self.batch, **drawing)

    def output(self, model: nn.Module, batch: QuestionBatch) -> Tensor:
        return self._scores(model, batch, batch.keep)

    def loss(self, output: Tensor, batch: QuestionBatch, matched: None) -> Tensor:
        losses = cross_entropy(
            output.flatten(0, 1), batch.answers.flatten(), ignore_index=-1, reduction="none"
        )
        return losses.unflatten(0, batch.answers.shape).sum(-1) / batch.count.squeeze(-1)

    def share(self, batch: QuestionBatch, rank: int, size: int) -> QuestionBatch:
        return parallel.even_share(batch, rank, size)

    def trials(self, seeds: Sequence[int], device: torch.device) -> list[QuestionBatch]:
        desk = self.desk("val", device)
        self._check(desk, self.tried)
        room = 1 << (28 if device.type == "cuda" else 24)
        piece = max(1, room // (self.footprint * len(seeds)))
        found = tried_batches(desk, seeds, self.batch, piece)
        return [part._replace(objects=part.objects.to(self.torch_dtype)) for part in found]

    def share_trials(self, trials: list, rank: int, size: int) -> list[QuestionBatch]:
        return trials[rank::size]

    def tally(self, model: nn.Module, trials: list[QuestionBatch]) -> Tensor:
        counts = next(model.parameters()).new_zeros(self._runs(model), 1, dtype=torch.int64)
        for part in trials:
            counts = counts + self._right(model, part).sum(-1, keepdim=True)
        return counts

    def evaluate(self, model: nn.Module, seeds: Sequence[int], device: torch.device) -> Evaluation:
        """Accuracy after the last epoch, in all and by group of questions, and what is alive."""
        right = torch.cat([self._right(model, part) for part in self.trials(seeds, device)], -1)
        data = split_of(*self._source("val"))
        right = right.cpu().double()[:, self._asked()]
        metrics = {"accuracy": right.mean(-1).tolist()}
        for group in GROUPS:
            own = of_group(data, group)
            if own.any():
                metrics[f"accuracy {group}"] = right[:, own].mean(-1).tolist()
        return Evaluation(metrics | _alive(model), _functions(model))

    def desk(self, split: str, device: torch.device) -> Desk:
        """The questions of a split, where they are needed."""
        return desk_of(*self._source(split), _known(device))

    def _source(self, split: str) -> tuple[str, str, int, str]:
        return self.data, split, self.scenes, self.group

    def _asked(self) -> Tensor:
        """Where the trials have questions: their last piece may have room to spare."""
        places = torch.arange(-(-self.tried // self.batch) * self.batch)
        return places < self.tried

    def _right(self, model: nn.Module, part: QuestionBatch) -> Tensor:
        return self._scores(model, part).argmax(-1) == part.answers

    def _scores(self, model: nn.Module, batch: QuestionBatch, keep: Tensor | None = None) -> Tensor:
        half = self.precision == "bfloat16"
        with torch.autocast(batch.objects.device.type, torch.bfloat16, enabled=half):
            return model(*batch[:4], keep=keep).to(self.torch_dtype)

    def _runs(self, model: nn.Module) -> int:
        return len(next(model.parameters()))

    def _check(self, desk: Desk, count: int) -> None:
        if len(desk) != count:
            raise UserError(
                f"{find_root(self.data or None)} has {len(desk)} questions, but this run was "
                f"planned for {count}; point --data at the data that it began with."
            )


def _known(device: torch.device) -> torch.device:
    return torch.empty(0, device=device).device  # cuda:0 is cuda


def _alive(model: nn.Module) -> dict[str, list[float]]:
    """Weight decay kills features: how many are left, in the last layer of g."""
    if not hasattr(model, "rest"):
        return {}
    rows = model.rest[-1].weight.norm(dim=-1) > ALIVE["row"]
    return {"rows alive": rows.sum(-1).double().tolist()}


def _functions(model: nn.Module) -> dict[str, Tensor]:
    """The weight functions of the first run that are not dead."""
    weight = getattr(model.pool, "weight", None)
    if weight is None:
        return {}
    own = weight[0].detach().float().cpu()
    return {"functions": own[own.abs().sum(-1) > ALIVE["weight"]].contiguous()}


# --------------------------------------------------------------------------------------------------
# Presets


def cells(preset: str) -> dict[str, ClevrCell]:
    if preset == "quick":
        return quick()
    base = ClevrCell(schedule=preset)
    if preset == "released":
        base = replace(base, knots=21, init="normal")
    found = {pool: replace(base, pool=pool) for pool in POOLS if pool != "none"}
    found["question"] = replace(base, pool="none")
    found |= {f"fspool-k{knots}": replace(base, knots=knots) for knots in (5, 40)}
    return found | {"fspool-tf32": replace(base, precision="tf32")}


def quick() -> dict[str, ClevrCell]:
    """Small networks, few scenes, and a learning rate that does not wait for 100 epochs."""
    base = ClevrCell(
        scenes=1400,
        questions=14_000,
        tried=3_000,
        hidden=64,
        width=64,
        batch=64,
        epochs=6,
        learning_rate=1e-3,
        schedule="constant",
        precision="float32",
    )
    pools = {"fspool": "fspool", "sum": "sum", "max": "max", "question": "none"}
    return {f"{name}-short": replace(base, pool=pool) for name, pool in pools.items()}


EXPERIMENT = Experiment(
    name="clevr",
    title=TITLE,
    cell=ClevrCell,
    cells=cells,
    seeds={"quick": 1, "paper": 10, "released": 10},
    settable=(
        *("epochs", "learning_rate", "peak", "schedule", "precision", "knots", "init", "slots"),
        *("pool_padding", "scaled", "dropout", "batch", "decay", "clip", "scenes"),
        "group",
    ),
    by_data=("questions", "tried", "content"),
    enough=lambda settings: settings["questions"] > 690_000 and settings["tried"] > 140_000,
    tables=TABLES,
    shown=("fspool",),
    gather=lambda settings, seeds, tallies: tallies,
    combine=by_epoch,
)
