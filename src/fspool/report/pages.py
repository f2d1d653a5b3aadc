"""Which experiments have more to show than tables: each a module with ``parts(records)``."""

from __future__ import annotations

from types import ModuleType

from . import polygon_page
from .parts import Parts
from .records import Record

PAGES: dict[str, ModuleType] = {"polygons": polygon_page}


def parts_of(experiment: str, records: dict[str, Record]) -> Parts:
    return PAGES[experiment].parts(records) if experiment in PAGES else Parts()
