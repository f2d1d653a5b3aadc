"""What the laboratory has to know of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..checks import UserError


class Chunk(NamedTuple):
    """The batches of several steps as one: tensors (steps, G, ...)."""

    whole: Any

    def each(self) -> list[Any]:
        """Batch by batch."""
        leaves, form = pytree.tree_flatten(self.whole)
        rows = zip(*(leaf.unbind() for leaf in leaves), strict=True)
        return [pytree.tree_unflatten(own, form) for own in rows]

    def part(self, begin: int, end: int) -> Chunk:
        return Chunk(pytree.tree_map(lambda leaf: leaf[begin:end], self.whole))


class Evaluation(NamedTuple):
    """What is measured on a trained group of runs."""

    metrics: dict[str, list[float]]  # one number for every seed
    arrays: dict[str, Tensor]  # small tensors that the figures need


def place() -> str:
    """A field for where something lies on this machine: it is no part of what a run is."""
    return field(default="", compare=False, metadata={"place": True})


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table: a model with all its settings, to be trained with several seeds.

    Its subclasses are the experiments. Whatever takes ``seeds`` works for all of them at once: a
    model, a batch and a loss have a leading replica axis G, one entry for each seed.
    """

    own: ClassVar[tuple[str, ...]] = ()  # settings of which every run of a model has its own
    tallies: ClassVar[tuple[str, ...]] = ()  # what is counted now and then during training

    steps: int = 0  # 0: nothing to train
    learning_rate: float = 1e-3
    dtype: str = "float32"

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def footprint(self) -> int:
        """Numbers in the largest tensor of one run, from which the size of a group is chosen."""
        return 1

    def likeness(self) -> tuple:
        """Cells of equal likeness can be trained as one model: they differ in their own settings
        alone, which change how a run starts, its batches and its evaluation, and nothing else."""
        shared = {name: v for name, v in self.settings().items() if name not in self.own}
        return type(self), *shared.items()

    @property
    def most_runs(self) -> int | None:
        """How many seeds are enough, whatever was asked for: for what is very slow."""
        return None

    @property
    def recordable(self) -> bool:
        """Can a step on CUDA be a graph? Where something waits for the device it cannot."""
        return True

    @property
    def matmul_precision(self) -> str:
        """Of float32 products on CUDA: "highest", or "high" for TF32."""
        return "highest"

    def check(self, seeds: Sequence[int]) -> None:
        """Is everything there that these runs need? A UserError says what is not, before anything
        is written."""

    def origins(self, seeds: Sequence[int]) -> dict:
        """What these runs started from, for the record."""
        return {}

    @property
    def weight_decay(self) -> float:
        """Times the weights, this is added to their gradients."""
        return 0.0

    @property
    def largest_gradient(self) -> float | None:
        """The norm that the gradient of a run is cut to; None: it may be as large as it is."""
        return None

    def model(self) -> nn.Module:
        """A fresh model of one run. torch's random numbers were seeded for it."""
        raise NotImplementedError

    def begin(self, model: nn.Module, seeds: Sequence[int]) -> None:
        """Write what does not come from random numbers into a fresh model of all runs."""

    def batches(
        self, seeds: Sequence[int], steps: range, device: torch.device
    ) -> Tensor | Chunk | Iterable[Any]:
        """The input of every step, (G, ...). All at once, a tensor (steps, G, ...) or a Chunk of
        such, they can go through many steps of one CUDA graph; or one by one."""
        raise NotImplementedError

    def output(self, model: nn.Module, batch: Any) -> Tensor:
        """What the model makes of a batch, (G, ...)."""
        raise NotImplementedError

    def match(self, output: Tensor, batch: Any) -> Tensor | None:
        """What the loss needs to know that has to be found on the host, if anything.

        Everything else in a training step runs on the device without waiting for it.
        """
        return None

    def loss(self, output: Tensor, batch: Any, matched: Tensor | None) -> Tensor:
        """The loss of every run, (G,)."""
        raise NotImplementedError

    def share(self, batch: Any, rank: int, size: int) -> Any:
        """The part of a batch that one of several processes has, whose losses add up."""
        raise UserError(
            f"{size} processes were started for one training, which only clevr and dspn can share; "
            "start fspool without torchrun."
        )

    def share_trials(self, trials: Any, rank: int, size: int) -> Any:
        """The part of the trials whose counts add up."""
        raise NotImplementedError

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return self.learning_rate

    def adjust(self, model: nn.Module, step: int) -> None:
        """Whatever else a schedule has to write, in place, before a step."""

    @property
    def adjusts(self) -> bool:
        """Is there anything that :meth:`adjust` writes?"""
        return type(self).adjust is not Cell.adjust

    @property
    def milestones(self) -> tuple[int, ...]:
        """Steps after which the model is probed while it is trained."""
        return ()

    def probe(
        self, model: nn.Module, seeds: Sequence[int], device: torch.device, step: int
    ) -> dict[str, list[float]]:
        """Metrics at a milestone, whose names say which one it is."""
        return {}

    @property
    def tally_every(self) -> int:
        """Steps between two counts."""
        return self.steps

    def trials(self, seeds: Sequence[int], device: torch.device) -> Any:
        """What the model is tried on whenever there is a count: tensors (G, ...), made once."""
        raise NotImplementedError

    def tally(self, model: nn.Module, trials: Any) -> Tensor:
        """How often, in whole numbers (G, tallies). Nothing here waits for the device.

        All counts of a run, (G, counts) by name, are kept with its arrays.
        """
        raise NotImplementedError

    def evaluate(self, model: nn.Module, seeds: Sequence[int], device: torch.device) -> Evaluation:
        raise NotImplementedError

    def at(self, **places: object) -> Cell:
        """The same cell, which takes what it needs from these places; None: from the usual one."""
        own = {f.name for f in fields(self) if "place" in f.metadata}
        new = {key: str(value) for key, value in places.items() if key in own and value is not None}
        return replace(self, **new)

    def settings(self) -> dict:
        """What makes a run what it is."""
        return {f.name: getattr(self, f.name) for f in fields(self) if "place" not in f.metadata}

    def places(self) -> dict:
        """Where on this machine it took things from, for the record."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if "place" in f.metadata}
        return {name: value for name, value in found.items() if value}
