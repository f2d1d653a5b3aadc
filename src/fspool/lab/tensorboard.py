"""Loss curves for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..checks import UserError


def writer(folder: Path, seeds: Sequence[int]) -> Callable[[int, list[float]], None]:
    """A function that writes the losses of a step beside the run's other files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "TensorBoard is not installed; pip install tensorboard, or leave --tensorboard out."
        ) from None
    board = SummaryWriter(str(folder / "tensorboard"))

    def write(step: int, losses: list[float]) -> None:
        for seed, loss in zip(seeds, losses, strict=True):
            board.add_scalar(f"loss/seed-{seed}", loss, step)
        board.flush()

    return write
