"""From the relaxed sort to the ordinary one in the course of training."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ..checks import check_count
from .pool import FSPool


class TemperatureDecay:
    """Lower the temperature of relaxed pools step by step, so that they can sort hard afterwards.

    .. math:: \\tau_t = \\tau_0 \\left(\\tau_T / \\tau_0\\right)^{\\min(t / T, 1)}

    Args:
        modules: A model, or several modules, whose relaxed :class:`~fspool.FSPool` layers to drive.
        start: Temperature :math:`\\tau_0` of the first step.
        end: Temperature :math:`\\tau_T` after ``steps`` steps and from then on.
        steps: T, how many calls of :meth:`step` the way takes.

    Example:
        >>> pool = fspool.FSPool(dim=4, temperature=1.0, hard_eval=True)
        >>> decay = fspool.nn.TemperatureDecay(pool, end=0.01, steps=2)
        >>> for _ in range(2):
        ...     decay.step()  # after optimizer.step()
        >>> pool
        FSPool(dim=4, knots=20, temperature=0.01)
    """

    def __init__(
        self,
        modules: nn.Module | Iterable[nn.Module],
        *,
        start: float = 1.0,
        end: float = 1e-3,
        steps: int,
    ) -> None:
        if not torch.finfo(torch.float32).tiny <= end <= start < float("inf"):
            raise ValueError(
                f"start={start} and end={end}; expected finite numbers with 0 < end <= start."
            )
        steps = check_count("steps", steps, 1, "the number of steps")
        modules = [modules] if isinstance(modules, nn.Module) else list(modules)
        for module in modules:
            if not isinstance(module, nn.Module):
                kind = type(module).__name__
                raise TypeError(f"modules holds a {kind}; expected modules with FSPool layers.")
        found = [m for module in modules for m in module.modules() if isinstance(m, FSPool)]
        self.pools = [pool for pool in found if pool.temperature is not None]
        if not self.pools:
            raise ValueError(
                "modules holds no relaxed FSPool; expected at least one made with a temperature."
            )
        self.start, self.end, self.steps = start, end, steps
        self.count = 0
        self._write()

    def step(self) -> None:
        """Take one step; writes the temperatures in place."""
        self.count += 1
        self._write()

    def state_dict(self) -> dict[str, int]:
        """How far the schedule is: save it with the model, whose own state holds only weights."""
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there; writes the temperatures."""
        self.count = state["count"]
        self._write()

    def _write(self) -> None:
        progress = min(self.count / self.steps, 1.0)
        value = self.start * (self.end / self.start) ** progress
        for pool in self.pools:
            pool.temperature.fill_(value)
