"""Which settings and which epoch? Chosen by validation, from runs that are finished.

For each repeat of the cross-validation the accuracy is averaged over its ten folds. The width,
batch, dropout and epoch with the best such average in validation are chosen, the first of several
that are equally good, and their test accuracy is what counts. Averages are compared as whole
numbers: what is equal has to be equal in the last bit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ..data import tu
from .experiment import Combined
from .folds import FOLDS, sizes
from .graph_tables import BASES, BIO, CODE, PAPER, SOCIAL

FEWEST = 6  # data sets: over five the test cannot find anything below 0.05
GRID = ("width", "batch", "dropout")

Metrics = dict[str, list[float]]


class Tried(Protocol):
    """The finished runs of one grid point, as a report knows them."""

    name: str
    settings: dict
    tallies: dict[str, Tensor]  # what by_repeat returns


class Choice(NamedTuple):
    """What one repeat comes to."""

    repeat: int
    point: int  # place in the grid
    epoch: int  # from 0
    accuracy: float  # in the test
    best: float  # the best test accuracy of all, which nobody can know beforehand


# --------------------------------------------------------------------------------------------------
# From runs to repeats


def by_repeat(settings: dict, seeds: Sequence[int], tallies: dict[str, Tensor]) -> dict:
    """Right answers (runs, epochs) to averages over folds (repeats, epochs), in parts of 1.

    Repeats that lack a fold are left out; ``repeat`` says which ones are there. How many parts make
    1 is what :func:`whole` says.
    """
    place = {seed: index for index, seed in enumerate(seeds)}
    runs = {r: range(FOLDS * r, FOLDS * (r + 1)) for r in {seed // FOLDS for seed in seeds}}
    complete = sorted(r for r, folds in runs.items() if all(run in place for run in folds))
    found = {"repeat": torch.tensor(complete, dtype=torch.int32)}
    for name, counts in tallies.items():
        rows = [[place[run] for run in runs[r]] for r in complete]
        own = counts[torch.tensor(rows, dtype=torch.int64).view(-1, FOLDS)].long()
        found[name] = (own * _weights(settings, name)[:, None]).sum(1).int()
    return found


def whole(settings: dict, name: str) -> int:
    """Parts that make 1: in the folds of a repeat, which may differ by a graph, each counts 1."""
    return FOLDS * math.lcm(*_sizes(settings, name))


def _weights(settings: dict, name: str) -> Tensor:
    folds = _sizes(settings, name)
    return torch.tensor([math.lcm(*folds) // size for size in folds])


def _sizes(settings: dict, name: str) -> list[int]:
    graphs = tu.SOURCES[settings["dataset"]].counts.graphs
    return sizes(graphs, reshuffle=settings["reshuffle"])[name]


# --------------------------------------------------------------------------------------------------
# From repeats to numbers in tables


def chosen(records: Iterable[Tried]) -> dict[str, Combined]:
    """By model and data set, such as "fspool MUTAG": what every repeat comes to."""
    found = {}
    for key, points in grids(records).items():
        if metrics := _metrics(points):
            found[" ".join(key)] = Combined(metrics, [point.name for point in points])
    return found | _over_datasets(found)


def grids(records: Iterable[Tried]) -> dict[tuple[str, str], list[Tried]]:
    """The grid points of every model on every data set, small before large."""
    found: dict[tuple[str, str], list[Tried]] = {}
    for record in records:
        dataset = record.settings["dataset"]
        model = record.name.partition(f"-{dataset}-")[0]
        found.setdefault((model, dataset), []).append(record)
    return {key: sorted(points, key=_place) for key, points in found.items()}


def _place(record: Tried) -> tuple:
    return tuple(record.settings[name] for name in GRID)


def choices(points: Sequence[Tried]) -> list[Choice]:
    """One for each repeat that all points of a grid have."""
    known = [set(point.tallies.get("repeat", torch.empty(0)).tolist()) for point in points]
    return [_choose(points, repeat) for repeat in sorted(set.intersection(*known))]


def _choose(points: Sequence[Tried], repeat: int) -> Choice:
    validation, test = (
        [_row(point, name, repeat) for point in points] for name in ("validation", "test")
    )
    first = int(np.concatenate(validation).argmax())  # numpy's is the first of equals
    ends = np.cumsum([len(row) for row in validation])
    point = int(np.searchsorted(ends, first, side="right"))
    epoch = first - int(ends[point]) + len(validation[point])
    unit = whole(points[point].settings, "test")
    best = max(int(row.max()) for row in test)
    return Choice(repeat, point, epoch, int(test[point][epoch]) / unit, best / unit)


def _row(point: Tried, name: str, repeat: int) -> np.ndarray:
    return point.tallies[name][point.tallies["repeat"].tolist().index(repeat)].numpy()


def _metrics(points: Sequence[Tried]) -> Metrics:
    """One number for every repeat."""
    found = choices(points)
    if not found:
        return {}
    settings = [points[choice.point].settings for choice in found]
    return {
        "whole": [int(_is_whole(points))] * len(found),
        "accuracy": [choice.accuracy for choice in found],
        "epoch": [choice.epoch for choice in found],
        "best": [choice.best for choice in found],
        **{key: [own[key] for own in settings] for key in GRID},
        **_as_released(points, {choice.repeat for choice in found}),
    }


def _as_released(points: Sequence[Tried], repeats: set[int]) -> Metrics:
    """Without dropout on social graphs, where others have it."""
    some = [p for p in points if p.settings["dataset"] in SOCIAL and not p.settings["dropout"]]
    if not 0 < len(some) < len(points):
        return {}
    return {CODE: [choice.accuracy for choice in choices(some) if choice.repeat in repeats]}


def _is_whole(points: Sequence[Tried]) -> bool:
    """Was all of the grid searched? Its points are all combinations of some values."""
    found = [{point.settings[name] for point in points} for name in GRID]
    settings = points[0].settings
    bio = settings["dataset"] in BIO
    dropouts = 2 if bio or not settings["reshuffle"] else 1  # the released code has one there
    counts = [2 if bio else 1, 2, dropouts]
    return [len(values) for values in found] == counts and len(points) == math.prod(counts)


def _over_datasets(found: dict[str, Combined]) -> dict[str, Combined]:
    """Is FSPool better, or sooner at its best, on more data sets than chance explains?"""
    pairs = [(f"fspool {name}", f"{BASES[name]} {name}") for name in PAPER]
    pairs = [pair for pair in pairs if set(pair) <= set(found)]
    if len(pairs) < FEWEST:
        return {}
    cells = [cell for pair in pairs for name in pair for cell in found[name].cells]
    tests = {}
    for metric, sign in (("accuracy", 1), ("epoch", -1)):
        means = [[statistics.fmean(found[name].metrics[metric]) for name in pair] for pair in pairs]
        # Equal gains of other signs have equal ranks: not where they differ in the last bit.
        gains = [sign * round(lead - base, 9) for lead, base in means]
        if any(gains):
            tests[f"{metric} over data sets"] = Combined(_signed_ranks(gains), cells)
    return tests


def _signed_ranks(gains: list[float]) -> Metrics:
    """Wilcoxon's test, two-sided."""
    from scipy.stats import wilcoxon  # slow to import

    test = wilcoxon(gains)
    return {
        "data sets": [len(gains)],
        "better": [sum(gain > 0 for gain in gains)],
        "W": [float(test.statistic)],
        "p": [float(test.pvalue)],
    }
