"""What the laboratory has to know of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Evaluation(NamedTuple):
    """What is measured on a trained group of runs."""

    metrics: dict[str, list[float]]  # one number for every seed
    arrays: dict[str, Tensor]  # small tensors that the figures need


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table: a model with all its settings, to be trained with several seeds.

    Its subclasses are the experiments. Whatever takes ``seeds`` works for all of them at once: a
    model, a batch and a loss have a leading replica axis G, one entry for each seed.
    """

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

    def model(self) -> nn.Module:
        """A fresh model of one run. torch's random numbers were seeded for it."""
        raise NotImplementedError

    def batches(self, seeds: Sequence[int], steps: range, device: torch.device) -> Sequence[Any]:
        """The input of every step, (G, ...)."""
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

    def adjust(self, model: nn.Module, step: int) -> None:
        """Whatever a schedule has to write, in place, before a step."""

    def evaluate(self, model: nn.Module, seeds: Sequence[int], device: torch.device) -> Evaluation:
        raise NotImplementedError

    def settings(self) -> dict:
        return asdict(self)
