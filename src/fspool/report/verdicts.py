"""Is a measured number level with a published one?"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from ..experiments.experiment import Published

LEVEL, AHEAD, BEHIND = "level", "ahead", "behind"
ABOVE, BELOW = "above", "below"  # of a closed form, which nobody can be ahead of
SLACK = 1e-9  # a difference that is exactly allowed is level in binary numbers too


@dataclass(frozen=True)
class Sample:
    """One number a seed; None where a run diverged or did not arrive."""

    values: tuple[float | None, ...]
    higher_is_better: bool = False

    @property
    def good(self) -> list[float]:
        return [value for value in self.values if value is not None and math.isfinite(value)]

    @property
    def complete(self) -> bool:
        return len(self.good) == len(self.values)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.good)

    @property
    def spread(self) -> float:
        """Sample standard deviation; 0 for a single run, of which nothing is known."""
        return statistics.stdev(self.good) if len(self.good) > 1 else 0.0

    @property
    def worst(self) -> float:
        """A run that diverged is worse than any number."""
        if self.higher_is_better:
            return min(self.good) if self.complete else -math.inf
        return max(self.good) if self.complete else math.inf

    @property
    def rating(self) -> float:
        """The mean, its sign such that more is better."""
        return self.mean if self.higher_is_better else -self.mean


def against_published(sample: Sample, published: Published, *, trained: bool) -> str:
    """Where no standard deviation is published, 0 stands for it.

    What is not trained differs between seeds only as much as its evaluation is inexact, and the
    published evaluation was as inexact.
    """
    if len(sample.good) < published.share * len(sample.values):
        return BEHIND  # its mean is infinite, at the wrong end
    spread = published.spread
    if spread is None:
        spread = 0.0 if trained else sample.spread
    allowed = 2 * math.hypot(spread, sample.spread) + published.unit
    words = (AHEAD, BEHIND) if sample.higher_is_better else (BEHIND, AHEAD)
    return _judge(sample.mean - published.value, allowed, words)


def against_closed_form(sample: Sample, value: float, digits: int) -> str:
    """By the standard error of our mean, and one unit of the last digit that we print."""
    if not sample.complete:
        return BELOW if sample.higher_is_better else ABOVE
    allowed = 2 * sample.spread / math.sqrt(len(sample.values)) + 10.0**-digits
    return _judge(sample.mean - value, allowed, (ABOVE, BELOW))


def _judge(difference: float, allowed: float, words: tuple[str, str]) -> str:
    if abs(difference) <= allowed + SLACK * max(1.0, allowed):
        return LEVEL
    return words[0] if difference > 0 else words[1]
