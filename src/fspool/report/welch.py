"""Is the model that a table is about better than the best other one, or is that chance?"""

from __future__ import annotations

import math

from ..experiments.welch import p_value
from .grids import Place
from .verdicts import Sample


def label(lead: str) -> str:
    return f"Welch test, {lead} against the best other"


def compare(lead: Sample | None, others: dict[str, Sample]) -> Place:
    """Welch's t-test, two-sided, against the other with the best mean."""
    others = {name: sample for name, sample in others.items() if sample.complete}
    if lead is None or not lead.complete or not others:
        return Place()
    name = max(others, key=lambda name: others[name].rating)
    p = p_value(lead.good, others[name].good)
    if math.isnan(p):
        return Place()
    # A reader takes a small p for the lead's success, unless told.
    better = ", better mean" if others[name].rating > lead.rating else ""
    return Place(show_p(p), against=f"{name}{better}")


def show_p(p: float) -> str:
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.{2 if p >= 0.01 else 3}f}"
