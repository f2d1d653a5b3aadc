"""Which experiments have more to show than tables: each a function of its records."""

from __future__ import annotations

from collections.abc import Callable

from . import clevr_page, dspn_page, graph_page, mnist_page, polygon_page
from .parts import Parts
from .records import Record

PAGES: dict[str, Callable[[dict[str, Record]], Parts]] = {
    "polygons": polygon_page.parts,
    "mnist-reconstruction": mnist_page.reconstruction,
    "mnist-classification": mnist_page.classification,
    "clevr": clevr_page.parts,
    "graphs": graph_page.parts,
    "dspn": dspn_page.parts,
}


def parts_of(experiment: str, records: dict[str, Record]) -> Parts:
    return PAGES[experiment](records) if experiment in PAGES else Parts()
