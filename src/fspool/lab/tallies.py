"""Counts that are made while a model is trained, such as of right answers after every epoch.

They stay on the device, and are part of the state of a run: nobody waits for them, and a run that
goes on after a stop goes on with those it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from . import parallel
from .capture import Recorded
from .cell import Cell

PREFIX = "tally."


class Tallies:
    """Writes a column of every tally (G, counts) whenever one is due."""

    def __init__(
        self, model: nn.Module, cell: Cell, seeds: Sequence[int], device: torch.device
    ) -> None:
        self.model, self.cell, self.seeds, self.device = model, cell, seeds, device
        shape = len(seeds), (cell.steps // cell.tally_every if cell.tallies else 0)
        self.tensors = {
            PREFIX + name: torch.zeros(shape, dtype=torch.int32, device=device)
            for name in cell.tallies
        }
        self._count: Callable[[], Tensor] | None = None

    def after(self, step: int) -> None:
        """So many steps are done."""
        if not self.tensors or step % self.cell.tally_every:
            return
        self.model.eval()
        with torch.no_grad():
            self._count = self._count or self._prepared()
            counts = self._count()
        parallel.add_up([counts])
        self.model.train()
        for tensor, values in zip(self.tensors.values(), counts.unbind(-1), strict=True):
            tensor[:, step // self.cell.tally_every - 1] = values

    def _prepared(self) -> Callable[[], Tensor]:
        trials = self.cell.trials(self.seeds, self.device)
        if parallel.team().size > 1:
            trials = self.cell.share_trials(trials, *parallel.team())

        def count() -> Tensor:
            return self.cell.tally(self.model, trials)

        on_device = self.device.type == "cuda" and self.cell.recordable
        return Recorded(count) if on_device else count


def tallies_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those among the tensors of a state, by name."""
    return {
        name.removeprefix(PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(PREFIX)
    }
