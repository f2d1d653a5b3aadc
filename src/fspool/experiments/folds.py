"""Cross-validation: which graphs a run is trained, chosen and tested on.

Run number r is fold r % 10 of repeat r // 10. A repeat shuffles the graphs once and cuts them into
ten folds: fold f is for the test, the next one (after the last the first) for validation, and the
other eight are for training. So the tests of a repeat are a partition of all graphs, and so are
their validations. Model and grid point have no part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..data import draws

FOLDS, REPEATS = 10, 10
RUNS = FOLDS * REPEATS


class Split(NamedTuple):
    """Numbers of graphs, one row a run; the end of a row that is too long is filled with -1."""

    train: Tensor
    validation: Tensor
    test: Tensor


def cuts(count: int) -> list[int]:
    """Where the folds of so many shuffled graphs begin, and where the last one ends."""
    return [fold * count // FOLDS for fold in range(FOLDS + 1)]


def splits(count: int, runs: Sequence[int], *, reshuffle: bool = False) -> Split:
    """The graphs of some runs.

    ``reshuffle``: as the released code has it, every fold shuffles anew, so the ten tests of a
    repeat are ten tenths that overlap; validation is the first tenth, rounded up, of what is not
    for the test.
    """
    whole = _all(count, reshuffle)
    return Split(*(part[list(runs)] for part in whole))


@lru_cache(maxsize=4)
def _all(count: int, reshuffle: bool) -> Split:
    """Of all runs: so the rows of some have the same length as those of others."""
    way = _released if reshuffle else _partition
    each = [way(count, run) for run in range(RUNS)]
    return Split(*(_rows(parts) for parts in zip(*each, strict=True)))


def sizes(count: int, *, reshuffle: bool = False) -> dict[str, list[int]]:
    """How many graphs each fold of a repeat has for ``validation`` and for ``test``."""
    bounds = cuts(count)
    tests = [end - begin for begin, end in zip(bounds, bounds[1:], strict=False)]
    following = [-(-count // FOLDS)] * FOLDS if reshuffle else [*tests[1:], tests[0]]
    return {"validation": following, "test": tests}


def most_training(count: int, *, reshuffle: bool = False) -> int:
    """The most graphs that a run is trained on."""
    pairs = zip(*sizes(count, reshuffle=reshuffle).values(), strict=True)
    return max(count - sum(pair) for pair in pairs)


def _partition(count: int, run: int) -> tuple[Tensor, Tensor, Tensor]:
    repeat, fold = divmod(run, FOLDS)
    order, bounds = _shuffled(count, repeat, "folds"), cuts(count)
    parts = [order[begin:end] for begin, end in zip(bounds, bounds[1:], strict=False)]
    following = (fold + 1) % FOLDS
    rest = [part for number, part in enumerate(parts) if number not in (fold, following)]
    return torch.cat(rest), parts[following], parts[fold]


def _released(count: int, run: int) -> tuple[Tensor, Tensor, Tensor]:
    order, bounds, fold = _shuffled(count, run, "reshuffled folds"), cuts(count), run % FOLDS
    rest = torch.cat((order[: bounds[fold]], order[bounds[fold + 1] :]))
    tenth = -(-count // FOLDS)
    return rest[tenth:], rest[:tenth], order[bounds[fold] : bounds[fold + 1]]


def _shuffled(count: int, seed: int, purpose: str) -> Tensor:
    return draws.permutations([seed], range(1), purpose, (count,))[0, 0]


def _rows(parts: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=-1)
