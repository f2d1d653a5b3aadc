"""From the relaxed sort to the ordinary one in the course of training."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from .pool import FSPool


class TemperatureDecay:
    """Lower the temperature of relaxed pools step by step, so that they can sort hard afterwards.

    .. math:: \\tau_t = \\tau_0 \\left(\\tau_T / \\tau_0\\right)^{\\min(t / T, 1)}

    Args:
        modules: A model, or several modules, whose relaxed :class:`FSPool` layers to drive.
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
        if not 0 < end <= start:
            raise ValueError(f"start={start} and end={end}; expected 0 < end <= start.")
        if steps < 1:
            raise ValueError(f"steps is {steps}; expected at least 1.")
        modules = [modules] if isinstance(modules, nn.Module) else list(modules)
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
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]
        self._write()

    def _write(self) -> None:
        progress = min(self.count / self.steps, 1.0)
        value = self.start * (self.end / self.start) ** progress
        for pool in self.pools:
            pool.temperature.fill_(value)
