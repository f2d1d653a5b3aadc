"""Welch's t-test: do runs of one model and runs of another differ by more than chance?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def p_value(one: Sequence[float], other: Sequence[float]) -> float:
    """Two-sided. Not a number where there is nothing to test with: single runs, or runs that are
    all the same."""
    from scipy.stats import ttest_ind  # slow to import, and few tables need it

    if min(len(one), len(other)) < 2:
        return math.nan
    if statistics.pvariance(one) == statistics.pvariance(other) == 0:
        return math.nan
    return float(ttest_ind(one, other, equal_var=False).pvalue)
