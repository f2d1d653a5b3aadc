"""How the learning rate of the questions grows, by epoch, counted from 1."""

from __future__ import annotations

EVERY = 20  # epochs between two doublings


def paper(start: float, peak: float, epoch: int) -> float:
    """Doubled again and again, up to the peak: 5e-6 to 5e-4, reached in epoch 141."""
    return min(start * 2 ** ((epoch - 1) // EVERY), peak)


def released(start: float, peak: float, epoch: int) -> float:
    """As the released code has it: it begins with twice the start and two epochs ahead, and the
    peak only ends the doubling. 1e-5 to 6.4e-4, reached in epoch 119."""
    rate = 2 * start
    for _ in range((epoch + 1) // EVERY):
        rate *= 2 if rate <= peak else 1
    return rate


def constant(start: float, peak: float, epoch: int) -> float:
    return start


SCHEDULES = {"paper": paper, "released": released, "constant": constant}
