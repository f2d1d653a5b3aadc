"""A search for a question of a family about a scene, depth first and in random order.

What led nowhere once is not tried again: the rest of a question depends only on the results that
its remaining steps use, however they were described.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from .families import FAMILIES, Choice, Family, Step
from .programs import FUNCTIONS, written
from .tables import Option, Random, Table, shuffled
from .vocabulary import ATTRIBUTES, FILLED


class Part(NamedTuple):
    """A step of a family, ready to be searched."""

    options: Callable[[Search], Iterable[Option]]
    finish: Callable[[int], object]  # a set to the result of the step
    closed: int  # slots that stay empty, as bits
    unlike: tuple[int, ...]  # steps before it whose results must be others
    sides: tuple[int, ...]  # relations that must matter for what is found
    live: tuple[int, ...]  # results that it and what follows depend on


class Search:
    """One search; afterwards it has the choices and the answer."""

    def __init__(self, family: Family, table: Table, welcome: set[str], random: Random) -> None:
        self.table, self.welcome, self.random = table, welcome, random
        self.parts = PARTS[family]
        self.results: list = [None] * len(self.parts)
        self.choices = [Choice()] * len(self.parts)
        self.dead: set[tuple] = set()
        self.answer = ""

    def run(self, k: int = 0) -> bool:
        """Find the rest of the question, from step k on."""
        if k == len(self.parts):
            self.answer = written(self.results[-1])
            return self.answer in self.welcome
        part, results = self.parts[k], self.results
        key = (k, *[results[i] for i in part.live])
        if key in self.dead:
            return False
        for relation, description, found in part.options(self):
            if FILLED[description] & part.closed:
                continue
            if part.sides and self._idle(part, description, found):
                continue
            result = part.finish(found)
            if part.unlike and any(results[i] == result for i in part.unlike):
                continue
            results[k] = result
            if self.run(k + 1):
                self.choices[k] = Choice(relation, description)
                return True
        self.dead.add(key)
        return False

    def _idle(self, part: Part, description: int, found: int) -> bool:
        """Would the answer be the same without one of the relations?

        Whether the objects are counted, or the only one is asked about: just if the set is.
        """
        fits = self.table.fits[description]
        return any(self.results[i] & fits == found for i in part.sides)


# --------------------------------------------------------------------------------------------------
# Parts


def _plan(family: Family) -> list[Part]:
    return [_part(family, k) for k in range(len(family.steps))]


def _part(family: Family, k: int) -> Part:
    step = family.steps[k]
    end = step.kind.split()[-1] if step.free else ""
    sides = _sides(family, step)
    return Part(
        options=_options(step),
        finish=_FINISH.get(end, _as_it_is),
        closed=sum(1 << ATTRIBUTES.index(name) for name in step.empty.split()),
        unlike=tuple(a for a, b in family.differ if b == k),
        sides=sides,
        live=_live(family, k),
    )


_FINISH: dict[str, Callable] = {
    "unique": lambda found: found.bit_length() - 1,
    "count": int.bit_count,
    "exist": bool,
}


def _as_it_is(found):
    return found


def _sides(family: Family, step: Step) -> tuple[int, ...]:
    """The plain relations that meet in a step, or in the one that it filters."""
    if step.kind != "intersect" and step.inputs:
        step = family.steps[step.inputs[0]]
    return step.inputs if step.kind == "intersect" else ()


def _live(family: Family, k: int) -> tuple[int, ...]:
    """Results from before step k that are used from there on."""
    used = {a for a, b in family.differ if b >= k}
    for step in family.steps[k:]:
        used |= {*step.inputs, *_sides(family, step)}
    return tuple(sorted(i for i in used if i < k))


def _options(step: Step) -> Callable[[Search], Iterable[Option]]:
    """What may be said in a step, in random order."""
    if not step.free:
        return _computed(step)
    words = step.kind.split()
    name, end = step.kind.partition("filter_")[2], words[-1] if words[-1] in _FINISH else ""

    def options(search: Search) -> Iterator[Option]:
        table, random = search.table, search.random
        given = search.results[step.inputs[0]] if step.inputs else table.facts.everything
        if name:
            found = table.values(given, name)
        elif words == ["relate"]:
            found = table.sides(given)
        elif words[0] == "relate":
            found = table.relates(given, end, random)
        else:
            found = table.filters(given, end, random)
        return shuffled(found, random)

    return options


def _computed(step: Step) -> Callable[[Search], Iterable[Option]]:
    apply = FUNCTIONS[step.kind].apply

    def options(search: Search) -> Iterable[Option]:
        arguments = [search.results[i] for i in step.inputs]
        return ((None, 0, apply(search.table.facts, None, *arguments)),)

    return options


PARTS = {family: _plan(family) for family in FAMILIES}
