"""What runs took of their devices, from their provenance."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise


def device_of(origin: dict) -> str:
    return str(origin.get("device") or "–")


def _unit_of(origin: dict) -> tuple[str, str | None]:
    """There may be many devices of one name. Older results do not tell them apart."""
    return device_of(origin), origin.get("unit")


def seconds_of(origins: list[dict]) -> list[float | None]:
    """The time that each group of runs took of its device: those that ran at once share it."""
    clocks = [(_unit_of(origin), origin.get("clock")) for origin in origins]
    spent = [
        0.0 if clock else _sum(origin) for origin, (_, clock) in zip(origins, clocks, strict=True)
    ]
    for unit in {unit for unit, clock in clocks if clock}:
        intervals = [
            (start, stop, index)
            for index, (own, clock) in enumerate(clocks)
            if own == unit
            for start, stop in clock or []
        ]
        for index, share in _shares(intervals):
            spent[index] += share
    return spent


def may_have_moved(origins: list[dict]) -> bool:
    """Whether some went on after a stop, perhaps elsewhere: the last device is written down."""
    units = {_unit_of(origin) for origin in origins if origin.get("unit")}
    return len(units) > 1 and any(len(origin.get("clock") or []) > 1 for origin in origins)


def _shares(intervals: list[tuple[float, float, int]]) -> Iterator[tuple[int, float]]:
    """Between any two ends of intervals, equal shares of what goes on then."""
    ends = sorted({end for start, stop, _ in intervals for end in (start, stop)})
    for start, stop in pairwise(ends):
        active = [index for a, b, index in intervals if a <= start and stop <= b]
        yield from ((index, (stop - start) / len(active)) for index in active)


def _sum(origin: dict) -> float | None:
    """What was written down before there were clocks."""
    seconds = origin.get("seconds")
    return sum(seconds.values()) if seconds else None
