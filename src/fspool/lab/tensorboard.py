"""Loss curves for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..checks import UserError


@contextmanager
def writer(folder: Path, seeds: Sequence[int]) -> Iterator[Callable[[int, list[float]], None]]:
    """A function that writes the losses of a step beside the run's other files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "TensorBoard is not installed; pip install tensorboard, or leave --tensorboard out."
        ) from None
    board = None

    def write(step: int, losses: list[float]) -> None:
        nonlocal board
        # What a stopped run wrote after its last saved state is written again: from here on.
        board = board or SummaryWriter(str(folder / "tensorboard"), purge_step=step)
        for seed, loss in zip(seeds, losses, strict=True):
            board.add_scalar(f"loss/seed-{seed}", loss, step)
        board.flush()

    try:
        yield write
    finally:
        if board:
            board.close()
