"""The hard pool of as many elements in sets of every size: time against N."""

from __future__ import annotations

from dataclasses import replace

from . import pool
from .case import Case

ELEMENTS, DIM = 1 << 17, 256
LENGTHS = [1 << power for power in range(2, 14)]  # 4 to 8192
COMPARED = ("fspool", "plain", "sum")


def cases(device: str) -> list[Case]:
    return [point(length) for length in LENGTHS]


def point(length: int) -> Case:
    case = pool.full((ELEMENTS // length, DIM, length))
    variants = tuple(v for v in case.variants if v.name in COMPARED)
    return replace(case, benchmark="sweep", variants=variants, checked=32, brief=True)
