"""What a question may say about a scene, as look-ups: which description fits which objects.

An option is (relation, description, result): what is said, and the set that it leads to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from .arrays import Scenes
from .relations import facts
from .vocabulary import ATTRIBUTES, DESCRIPTIONS, FEATURES, OBJECTS, RADIX, RELATIONS, VALUES

COUNTS = np.array([mask.bit_count() for mask in range(1 << OBJECTS)])  # of a mask
BITS = 1 << np.arange(OBJECTS)
TRIVIAL = 0.1  # share of options whose relation changes nothing

Option = tuple[int | None, int, int]
Random = Callable[[], float]


def tables(scenes: Scenes) -> list[Table]:
    """One table for each scene."""
    attributes = scenes.attributes.tolist()
    relations = scenes.relations.tolist()
    rows = zip(attributes, relations, fitting(scenes), strict=True)
    return [Table(*row) for row in rows]


def fitting(scenes: Scenes) -> np.ndarray:
    """The objects that each description fits, as masks ``(S, 324)``."""
    masks = []
    for axis, name in enumerate(ATTRIBUTES):
        column = scenes.attributes[..., FEATURES.index(name), None].numpy()
        same = column == np.arange(RADIX[axis])
        same[..., 0] = scenes.mask[..., None].numpy()[..., 0]  # an empty slot fits all
        shape = [-1, 1, 1, 1, 1]
        shape[4 - axis] = RADIX[axis]  # size is the last axis, as in DESCRIPTIONS
        masks.append((same * BITS[:, None]).sum(1).reshape(shape))
    return reduce(np.bitwise_and, masks).reshape(len(scenes.sizes), len(DESCRIPTIONS))


class Table:
    """A scene for whoever asks questions about it; lists of options are made when needed."""

    def __init__(self, attributes: list, relations: list, fitting: np.ndarray) -> None:
        self.facts = facts(attributes, relations)
        self.related = np.array(relations).T[..., None]  # (object, relation, 1)
        self.fits: list[int] = fitting.tolist()
        self.occurring = np.flatnonzero(fitting)  # descriptions that fit some object
        self.sets = fitting[self.occurring]
        self._known: dict[tuple, list | tuple] = {}

    def filters(self, among: int, end: str, random: Random) -> list[Option]:
        """Descriptions for some of a set: of one object, or of any number, made up ones too."""
        if end == "unique":
            return self._filters(among, True)
        known = self._filters(among, False)
        extra = len(known) if end == "exist" else len(self._filters(among, True))
        options = known[:] if end else known[1:]  # the first is the empty one
        said = {description for _, description, _ in known}
        for _ in range(extra):
            description = int(random() * len(DESCRIPTIONS))
            if description not in said:
                said.add(description)
                options.append((None, description, self.fits[description] & among))
        return options

    def _filters(self, among: int, unique: bool) -> list[Option]:
        if (key := (among, unique)) not in self._known:
            sets = self.sets & among
            chosen = COUNTS[sets] == 1 if unique else slice(None)
            pairs = zip(self.occurring[chosen].tolist(), sets[chosen].tolist(), strict=True)
            self._known[key] = [(None, description, found) for description, found in pairs]
        return self._known[key]

    def relates(self, one: int, end: str, random: Random) -> list[Option]:
        """Relations to an object with descriptions; few of those where the relation is idle."""
        key = ("relates", one, end)
        if key not in self._known:
            self._known[key] = self._relates(one, end)
        clear, idle = self._known[key]
        few = round(len(clear) * TRIVIAL / (1 - TRIVIAL))
        return clear + take(idle, few, random)

    def _relates(self, one: int, end: str) -> tuple[list[Option], list[Option]]:
        found = self.related[one] & self.sets  # (relation, description)
        counts = COUNTS[found]
        chosen = {"unique": counts == 1, "": counts > 0}.get(end, counts >= 0)
        idle = found == self.sets
        return self._list(found, chosen & ~idle), self._list(found, chosen & idle)

    def _list(self, found: np.ndarray, chosen: np.ndarray) -> list[Option]:
        relation, place = np.nonzero(chosen)
        columns = (relation, self.occurring[place], found[chosen])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def sides(self, one: int) -> list[Option]:
        """All that is left, right, ... of an object."""
        return [(r, 0, self.facts.related[name][one]) for r, name in enumerate(RELATIONS)]

    def values(self, among: int, name: str) -> list[Option]:
        """The objects of a set that have a value, for each value of an attribute."""
        step = int(np.prod(RADIX[: ATTRIBUTES.index(name)]))
        numbers = [step * (i + 1) for i in range(len(VALUES[name]))]
        return [(None, number, self.fits[number] & among) for number in numbers]


def take(items: list, count: int, random: Random) -> list:
    """Some of the items, at random."""
    if count >= len(items):
        return items
    return [item for _, item in zip(range(count), shuffled(items, random), strict=False)]


def shuffled(items: list, random: Random):
    """The items in random order, shuffled as far as they are asked for."""
    items = list(items)
    for last in range(len(items) - 1, -1, -1):
        place = int(random() * (last + 1))
        items[place], items[last] = items[last], items[place]
        yield items[last]
