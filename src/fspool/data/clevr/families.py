"""The ninety families of questions, in nine groups, and the programs that they expand to.

A step of a family is one or more functions of its program, such as ``relate filter unique``. A
``filter`` stands for those functions whose slot is filled in a description that is still to be
found; so is the value of ``relate``, and that of a step ``filter_color``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .programs import FUNCTIONS, Node
from .vocabulary import ATTRIBUTES, DESCRIPTIONS, NUMBERS, RELATIONS, TRUTHS, VALUES, describe

UNKNOWN = 255  # a program that none of the families gives


class Step(NamedTuple):
    kind: str
    inputs: tuple[int, ...] = ()  # earlier steps; none is the whole scene
    empty: str = ""  # the slots that its description leaves empty

    @property
    def free(self) -> bool:
        """Is there something to be found?"""
        return self.kind.startswith(("filter", "relate"))


class Choice(NamedTuple):
    """What was found for a step."""

    relation: int | None = None  # a place in RELATIONS
    description: int = 0


class Family(NamedTuple):
    group: str
    steps: tuple[Step, ...]
    differ: tuple[tuple[int, int], ...] = ()  # steps that must not give the same

    @property
    def function(self) -> str:
        """The function that gives the answer."""
        return self.steps[-1].kind.split()[-1]

    @property
    def answers(self) -> tuple[str, ...]:
        """Those that its counts are balanced over."""
        kind = FUNCTIONS[self.function].gives
        return {"truth": TRUTHS, "number": NUMBERS, **VALUES}[kind]

    @property
    def possible(self) -> tuple[str, ...]:
        """Two counts that must differ are never equal; so it is in the original, too."""
        last = self.steps[-1]
        hopeless = last.kind == "equal_integer" and last.inputs in self.differ
        return ("no",) if hopeless else self.answers


def _chain(hops: int, end: str, first: int = 0) -> list[Step]:
    """The object that is left of the one that is ..., and a question about it."""
    steps = []
    for hop in range(hops + 1):
        kind, inputs = ("relate filter", (first + hop - 1,)) if hop else ("filter", ())
        steps.append(Step(f"{kind} unique", inputs))
    last, asked = steps[-1], end.partition("_")[2]
    if not asked:
        return [*steps[:-1], last._replace(kind=last.kind.replace("unique", end))]
    return [*steps[:-1], last._replace(empty=asked), Step(end, (first + hops,))]


def _hops(group: str, hops: int) -> list[Family]:
    ends = ["count", "exist", *(f"query_{name}" for name in ATTRIBUTES)]
    return [Family(group, tuple(_chain(hops, end))) for end in ends]


def _both() -> list[Family]:
    one = (Step("filter unique"), Step("relate", (0,)))
    other = (Step("filter unique"), Step("relate", (2,)))
    meet = (*one, *other, Step("intersect", (1, 3)))
    families = [Family("single_and", (*meet, Step("filter count", (4,))))]
    for name in ATTRIBUTES:
        query = (Step("filter unique", (4,), name), Step(f"query_{name}", (5,)))
        families.append(Family("single_and", (*meet, *query), differ=((1, 3),)))
    return families


def _either() -> list[Family]:
    some, the = Step("filter"), Step("filter unique")
    plain = (some, some, Step("union", (0, 1)), Step("count", (2,)))
    families = [Family("single_or", plain, ((0, 1),))]
    for name in ATTRIBUTES:
        part = some._replace(empty=name)
        extra = Step(f"filter_{name}", (2,))
        steps = (part, part, Step("union", (0, 1)), extra, Step("count", (3,)))
        families.append(Family("single_or", steps, ((0, 1),)))
    for steps in (
        (the, Step("relate filter", (0,)), the, Step("relate filter", (2,))),
        (the, Step("relate filter", (0,)), some),
        (some, the, Step("relate filter", (1,))),
    ):
        last = len(steps) - 1
        pair = (0, last) if steps[0] == some else (1, last)
        union = (Step("union", pair), Step("count", (last + 1,)))
        families.append(Family("single_or", (*steps, *union)))
    return families


def _same() -> list[Family]:
    families = []
    for end in ("exist", "count", "filter exist", "filter count"):
        for name in ATTRIBUTES:
            empty = name if end.startswith("filter") else ""
            steps = (Step("filter unique", (), name), Step(f"same_{name}", (0,)))
            families.append(Family("same_relate", (*steps, Step(end, (1,), empty))))
    for name, asked in itertools.permutations(ATTRIBUTES, 2):
        steps = (
            Step("filter unique", (), name),
            Step(f"same_{name}", (0,)),
            Step("filter unique", (1,), f"{name} {asked}"),
            Step(f"query_{asked}", (2,)),
        )
        families.append(Family("same_relate", steps))
    return families


def _compare() -> list[Family]:
    families = []
    for hops in ((0, 0), (1, 0), (0, 1), (1, 1)):
        for name in ATTRIBUTES:
            one = _chain(hops[0], f"query_{name}")[:-1]
            other = _chain(hops[1], f"query_{name}", len(one))[:-1]
            if hops == (1, 0) and name == "size":  # the original leaves out another size
                one[0], other[0] = one[0]._replace(empty=name), other[0]._replace(empty="")
            a, b = len(one) - 1, len(one) + len(other) - 1
            queries = (Step(f"query_{name}", (a,)), Step(f"query_{name}", (b,)))
            end = Step(f"equal_{name}", (b + 1, b + 2))
            families.append(Family("comparison", (*one, *other, *queries, end), ((a, b),)))
    return families


def _compare_counts() -> list[Family]:
    families = []
    for hops in ((0, 0), (1, 0), (1, 1)):
        one = _chain(hops[0], "count")
        other = _chain(hops[1], "count", len(one))
        a, b = len(one) - 1, len(one) + len(other) - 1
        differ = {(0, 0): ((a, b),), (1, 0): (), (1, 1): ((0, 2),)}[hops]
        for function in ("equal_integer", "less_than", "greater_than"):
            steps = (*one, *other, Step(function, (a, b)))
            families.append(Family("compare_integer", steps, differ))
    return families


FAMILIES = (
    *_hops("zero_hop", 0),
    *_hops("one_hop", 1),
    *_hops("two_hop", 2),
    *_hops("three_hop", 3),
    *_both(),
    *_either(),
    *_same(),
    *_compare(),
    *_compare_counts(),
)


# --------------------------------------------------------------------------------------------------
# Programs


def expand(family: Family, choices: Sequence[Choice]) -> list[Node]:
    """The program of a family once something is found for each of its steps."""
    nodes: list[Node] = []
    ends: list[int] = []  # the node that gives the result of a step

    def add(function: str, inputs: tuple[int, ...] = (), value: str | None = None) -> None:
        nodes.append(Node(function, inputs, value))

    for step, choice in zip(family.steps, choices, strict=True):
        inputs = tuple(ends[i] for i in step.inputs)
        if not inputs:
            add("scene")
            inputs = (len(nodes) - 1,)
        for part in step.kind.split():
            if part.startswith("filter"):
                for name, number in zip(ATTRIBUTES, DESCRIPTIONS[choice.description], strict=True):
                    if number:
                        add(f"filter_{name}", inputs, VALUES[name][number - 1])
                        inputs = (len(nodes) - 1,)
            else:
                add(part, inputs, RELATIONS[choice.relation] if part == "relate" else None)
                inputs = (len(nodes) - 1,)
        ends.append(inputs[0])
    return nodes


def recognise(program: Sequence[Node]) -> int:
    """The number of the family that a program belongs to, or 255.

    Of two that give the same program, where a description is empty, the first one counts.
    """
    return _FORMS.get(_form(program), UNKNOWN)


def _form(program: Sequence[Node]) -> tuple:
    """A program as a tree, without values, and with only those filters that make a difference."""
    forms: list[tuple] = []
    for function, inputs, _ in program:
        form = (function, *[forms[i] for i in inputs])
        if function.startswith("filter_") and form[1][0] != "union":
            form = ("filter", form[1]) if form[1][0].startswith("same_") else form[1]
        forms.append(form)
    return forms[-1]


def _examples(family: Family) -> Iterator[list[Choice]]:
    """With descriptions that are empty, and with some that are not."""
    for name in ("", ATTRIBUTES[0]):
        names = [step.kind.partition("filter_")[2] or name for step in family.steps]
        yield [Choice(0, describe(**{n: VALUES[n][0]}) if n else 0) for n in names]


_FORMS: dict[tuple, int] = {}
for _number, _family in enumerate(FAMILIES):
    for _choices in _examples(_family):
        _FORMS.setdefault(_form(expand(_family, _choices)), _number)
