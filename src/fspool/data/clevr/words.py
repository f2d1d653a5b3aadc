"""Questions in English, worded for this project.

A question is put together from phrases: a noun phrase for each description, relations, and a frame
for what is asked. Synonyms, optional words and frames are chosen at random; each choice says the
same.
"""

from __future__ import annotations

from collections.abc import Callable

from .families import Choice, Family
from .tables import Random
from .vocabulary import ATTRIBUTES, DESCRIPTIONS, RELATIONS, VALUES

SYNONYMS = {
    "large": ("large", "big"),
    "small": ("small", "tiny"),
    "metal": ("metallic", "metal", "shiny"),
    "rubber": ("rubber", "matte"),
    "sphere": ("sphere", "ball"),
    "cube": ("cube", "block"),
    "cylinder": ("cylinder",),
    "thing": ("thing", "object"),
    "left": ("left of", "to the left of", "on the left side of"),
    "right": ("right of", "to the right of", "on the right side of"),
    "front": ("in front of",),
    "behind": ("behind",),
}


def word(family: Family, choices: list[Choice], random: Random) -> str:
    """The text of a question."""
    text = _WORDINGS[family.group](Speaker(random), family, choices)
    return f"{text[0].upper()}{text[1:]}?"


class Speaker:
    """Phrases with random synonyms."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def pick(self, *forms: str) -> str:
        return forms[int(self.random() * len(forms))]

    def maybe(self, words: str) -> str:
        return f"{words} " if self.random() < 0.5 else ""

    # Noun phrases

    def noun(self, description: int, plural: bool = False) -> str:
        slots = DESCRIPTIONS[description]
        names = [VALUES[n][i - 1] for n, i in zip(ATTRIBUTES, slots, strict=True) if i]
        names += [] if slots[3] else ["thing"]
        words = [self.pick(*SYNONYMS.get(name, (name,))) for name in names]
        return " ".join(words) + ("s" if plural else "")

    def nouns(self, description: int) -> str:
        return self.noun(description, plural=True)

    def a(self, description: int) -> str:
        noun = self.noun(description)
        return f"an {noun}" if noun.startswith("object") else f"a {noun}"

    def the(self, description: int) -> str:
        return f"the {self.noun(description)}"

    def relation(self, choice: Choice, to: str) -> str:
        return f"{self.pick(*SYNONYMS[RELATIONS[choice.relation]])} {to}"

    def at(self, head: str, choice: Choice, to: str, plural: bool = False) -> str:
        """Something that stands in a relation to something else."""
        return (
            f"{head} {self.maybe('that are' if plural else 'that is')}{self.relation(choice, to)}"
        )

    def chain(self, choices: list[Choice]) -> str:
        """The object at the end of relations that begin with the first."""
        phrase = self.the(choices[0].description)
        for choice in choices[1:]:
            phrase = self.at(self.the(choice.description), choice, phrase)
        return phrase

    # Frames

    def many(self) -> str:
        return self.pick("how many", "what number of")

    def query(self, name: str, subject: str) -> str:
        frames = [f"what {name} is {subject}", f"what is the {name} of {subject}"]
        frames += [f"{subject} is what {name}"]
        if name == "size":
            frames += [f"how big is {subject}"]
        if name == "material":
            frames += [
                f"what is {subject} made of",
                f"what material is {subject} made of",
                f"{subject} is made of what {self.maybe('material')}".rstrip(),
            ]
        return self.pick(*frames)

    def query_it(self, name: str, introduced: str) -> str:
        """A statement first, and then a question."""
        frames = [f"what {name} is it", f"what is its {name}"]
        frames += {"size": ["how big is it"], "material": ["what is it made of"]}.get(name, [])
        return f"there is {introduced}; {self.pick(*frames)}"

    def same(self, name: str, to: str, plural: bool = False) -> str:
        """Of the same size as something, as a phrase behind a noun."""
        are, have = ("are", "have") if plural else ("is", "has")
        forms = [f"of the same {name} as", f"that {have} the same {name} as"]
        forms += [f"that {are} the same {name} as"]
        if name == "material":
            forms += [f"{self.maybe(f'that {are}')}made of the same material as"]
        return f"{self.pick(*forms)} {to}"


# --------------------------------------------------------------------------------------------------
# Groups


def _hops(say: Speaker, family: Family, choices: list[Choice]) -> str:
    function = family.function
    if function.startswith("query_"):
        return _query_chain(say, function.removeprefix("query_"), choices[:-1])
    *before, last = choices
    if not before:
        return _plain(say, function, last.description)
    to = say.chain(before)
    start = ""
    if say.random() < 0.3:
        start, to = f"there is {_introduced(say, before)}; ", "it"
    return start + _counted(say, function, last, to)


def _plain(say: Speaker, function: str, description: int) -> str:
    if function == "count":
        return f"{say.many()} {say.nouns(description)} are {say.pick('there', 'visible')}"
    return say.pick(
        f"are there any {say.nouns(description)}",
        f"is there {say.a(description)}",
        f"are any {say.nouns(description)} visible",
        f"is {say.a(description)} visible",
    )


def _counted(say: Speaker, function: str, last: Choice, to: str) -> str:
    """How many, or whether any, are somewhere."""
    if function == "count":
        heads = f"{say.many()} {say.nouns(last.description)}"
        return say.pick(
            f"{heads} are {say.relation(last, to)}",
            f"{heads} are there {say.relation(last, to)}",
        )
    return say.pick(
        f"are there any {say.at(say.nouns(last.description), last, to, plural=True)}",
        f"is there {say.at(say.a(last.description), last, to)}",
    )


def _introduced(say: Speaker, choices: list[Choice]) -> str:
    """A chain whose last object is new to the listener."""
    *before, last = choices
    phrase = say.a(last.description)
    return say.at(phrase, last, say.chain(before)) if before else phrase


def _query_chain(say: Speaker, name: str, choices: list[Choice]) -> str:
    if say.random() < 0.3:
        return say.query_it(name, _introduced(say, choices))
    return say.query(name, say.chain(choices))


def _single_and(say: Speaker, family: Family, choices: list[Choice]) -> str:
    first, side, second, other, _, third, *_ = choices
    one = say.relation(side, say.the(first.description))
    two = say.relation(other, say.the(second.description))
    where = f"{say.maybe('both')}{one} and {two}"
    if family.function == "count":
        return f"{say.many()} {say.nouns(third.description)} are {say.maybe('there')}{where}"
    name = family.function.removeprefix("query_")
    if say.random() < 0.3:
        return say.query_it(name, f"{say.a(third.description)} that is {where}")
    return say.query(name, f"{say.the(third.description)} that is {where}")


def _single_or(say: Speaker, family: Family, choices: list[Choice]) -> str:
    union = next(k for k, step in enumerate(family.steps) if step.kind == "union")
    one, two = (_members(say, family, choices, k) for k in family.steps[union].inputs)
    extra = choices[union + 1].description  # 0 where there is only a count
    heads = f"{say.many()} {say.nouns(extra)} are "
    return f"{heads}{say.maybe('either')}{one} or {two}"


def _members(say: Speaker, family: Family, choices: list[Choice], k: int) -> str:
    heads = say.nouns(choices[k].description)
    if choices[k].relation is None:
        return heads
    to = say.the(choices[family.steps[k].inputs[0]].description)
    return say.at(heads, choices[k], to, plural=True)


def _same_relate(say: Speaker, family: Family, choices: list[Choice]) -> str:
    name = family.steps[1].kind.removeprefix("same_")
    first, second = choices[0].description, choices[2].description
    other = "" if _exclude(first, second) else "other "
    to = say.the(first)
    if family.function == "count":
        return _count_same(say, name, f"{other}{say.nouns(second)}", to)
    if family.function == "exist":
        return _exist_same(say, name, second, bool(other), to)
    subject = f"the {other}{say.noun(second)} {say.same(name, to)}"
    return say.query(family.function.removeprefix("query_"), subject)


def _count_same(say: Speaker, name: str, heads: str, to: str) -> str:
    start = f"{say.many()} {heads}"
    forms = [f"{start} have the same {name} as {to}", f"{start} are the same {name} as {to}"]
    forms += [f"{start} are there {say.same(name, to, plural=True)}"]
    if name == "material":
        forms += [f"{start} are made of the same material as {to}"]
    return say.pick(*forms)


def _exist_same(say: Speaker, name: str, second: int, other: bool, to: str) -> str:
    one, many = say.same(name, to), say.same(name, to, plural=True)
    if not other:
        return say.pick(
            f"are there any {say.nouns(second)} {many}", f"is there {say.a(second)} {one}"
        )
    forms = [f"are there any other {say.nouns(second)} {many}"]
    forms += [f"is there another {say.noun(second)} {one}"]
    forms += [f"is there any other {say.noun(second)} {one}"]
    if not second:
        forms += [f"is there anything else {one}", f"is anything else the same {name} as {to}"]
    return say.pick(*forms)


def _exclude(first: int, second: int) -> bool:
    """Can no object fit both descriptions?"""
    pairs = zip(DESCRIPTIONS[first], DESCRIPTIONS[second], strict=True)
    return any(a and b and a != b for a, b in pairs)


def _comparison(say: Speaker, family: Family, choices: list[Choice]) -> str:
    name = family.function.removeprefix("equal_")
    one, two = (say.chain(part) for part in _halves(family, choices))
    forms = [
        f"does {one} have the same {name} as {two}",
        f"do {one} and {two} have the same {name}",
        f"is the {name} of {one} the same as the {name} of {two}",
        f"is {one} the same {name} as {two}",
        f"are {one} and {two} the same {name}",
    ]
    if name == "material":
        forms += [f"is {one} made of the same material as {two}"]
        forms += [f"are {one} and {two} made of the same material"]
    return say.pick(*forms)


def _compare_integer(say: Speaker, family: Family, choices: list[Choice]) -> str:
    one, two = (_some(say, part) for part in _halves(family, choices))
    first, second = f"the number of {one}", f"the number of {two}"
    return say.pick(
        *{
            "equal_integer": (
                f"are there an equal number of {one} and {two}",
                f"are there the same number of {one} and {two}",
                f"is {first} the same as {second}",
                f"is {first} equal to {second}",
            ),
            "less_than": (f"are there fewer {one} than {two}", f"is {first} less than {second}"),
            "greater_than": (
                f"are there more {one} than {two}",
                f"is {first} greater than {second}",
            ),
        }[family.function]
    )


def _some(say: Speaker, choices: list[Choice]) -> str:
    *before, last = choices
    heads = say.nouns(last.description)
    return say.at(heads, last, say.chain(before), plural=True) if before else heads


def _halves(family: Family, choices: list[Choice]) -> tuple[list[Choice], list[Choice]]:
    """The two chains that are compared; the second begins where nothing comes before."""
    starts = [k for k, step in enumerate(family.steps) if not step.inputs]
    end = next(k for k, step in enumerate(family.steps) if not step.free)
    return choices[: starts[1]], choices[starts[1] : end]


_WORDINGS: dict[str, Callable[[Speaker, Family, list[Choice]], str]] = {
    "zero_hop": _hops,
    "one_hop": _hops,
    "two_hop": _hops,
    "three_hop": _hops,
    "single_and": _single_and,
    "single_or": _single_or,
    "same_relate": _same_relate,
    "comparison": _comparison,
    "compare_integer": _compare_integer,
}
