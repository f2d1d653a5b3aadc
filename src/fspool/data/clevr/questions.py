"""Questions about scenes: families in turn, and answers kept in balance."""

from __future__ import annotations

from typing import NamedTuple

from .families import FAMILIES, Choice, expand
from .programs import Node
from .search import Search
from .tables import Random, Table

PER_SCENE = 10
BLOCK = 250  # scenes after which all counts begin again
LEAD = 1.1  # an answer may not be ahead of the second by more than this factor
PEAK = 5  # nor ahead of the median, or of 5, by this one


class Found(NamedTuple):
    """A question that is still to be worded."""

    family: int
    choices: list[Choice]
    program: list[Node]
    answer: str


class Asker:
    """Asks about the scenes of a block, one after another."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.used = [0] * len(FAMILIES)
        self.counts = [dict.fromkeys(family.answers, 0) for family in FAMILIES]

    def ask(self, table: Table) -> list[Found]:
        """Up to ten questions, each of another family; those that were used least come first."""
        asked: list[Found] = []
        for number in sorted(range(len(FAMILIES)), key=self.used.__getitem__):
            if found := self._try(number, table):
                asked.append(found)
                if len(asked) == PER_SCENE:
                    break
        return asked

    def _try(self, number: int, table: Table) -> Found | None:
        family, counts = FAMILIES[number], self.counts[number]
        open_to = welcome(counts) & set(family.possible)
        if not open_to:
            return None
        search = Search(family, table, open_to, self.random)
        if not search.run():
            return None
        self.used[number] += 1
        counts[search.answer] += 1
        program = expand(family, search.choices)
        return Found(number, search.choices, program, search.answer)


def welcome(counts: dict[str, int]) -> set[str]:
    """The answers that are not yet too far ahead of the others."""
    order = sorted(counts.values())
    most = min(LEAD * order[-2], PEAK * max(order[len(order) // 2], 5))
    return {answer for answer, count in counts.items() if count <= most}
