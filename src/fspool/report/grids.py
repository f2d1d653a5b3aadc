"""What a filled table is made of: plain text in every place, which all renderings share."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

NONE = "–"


@dataclass(frozen=True)
class Place:
    """One place of a table, as it is printed."""

    value: str = NONE  # mean over runs
    spread: str = ""  # standard deviation over runs
    worst: str = ""
    runs: int = 0
    reached: str = ""  # "7/10" where some runs diverged or did not arrive
    published: str = ""
    verdict: str = ""
    against: str = ""  # what a test compares with


@dataclass(frozen=True)
class Row:
    label: str
    places: list[Place]
    measured: bool = True  # False for what was computed, such as a closed form
    reached: str = ""  # what the fractions count


@dataclass(frozen=True, eq=False)
class Grid:
    """A filled table."""

    title: str
    note: str
    head: str
    columns: list[str]
    rows: list[Row]
    published: bool = False  # does the paper have this table?
    lead: str = ""  # the row that the table is about
    higher_is_better: bool = False
    worst: bool = True  # is the worst run of interest?
    judged: bool = True  # by the paper's numbers
    source: str = ""  # its number in the paper

    @property
    def told(self) -> str:
        """What stands between the title and the numbers."""
        return " ".join(filter(None, (self.note, self.source and f"{self.source} of the paper.")))

    def verdicts(self, label: str = "") -> Counter:
        """How often the paper's numbers were met, missed or beaten, by one model or by all."""
        rows = [row for row in self.rows if row.measured and label in ("", row.label)]
        return Counter(place.verdict for row in rows for place in row.places if place.verdict)


def digits_for(value: float, digits: int) -> int:
    """As many as the table has; up to five, so that a small number keeps two significant."""
    if not digits or not value or not math.isfinite(value):
        return digits
    return max(digits, min(5, 1 - math.floor(math.log10(abs(value)))))


def show(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return "−∞" if value < 0 else "∞"
    text = f"{value:.{digits}f}"
    return f"<{10.0**-digits:.{digits}f}" if value > 0 and float(text) == 0 else text
