"""Programs that answer questions: what their functions are, and how they run.

A set of objects is a mask of 10 bits, so a filter or a relation is one look-up and one ``&``.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...checks import UserError
from .vocabulary import ATTRIBUTES, RELATIONS, VALUES


class Node(NamedTuple):
    """One step of a program."""

    function: str
    inputs: tuple[int, ...] = ()  # the steps whose results it takes
    value: str | None = None


class Facts(NamedTuple):
    """What programs ask of a scene, as tables of masks."""

    everything: int
    having: dict[str, int]  # the objects that have a value
    values: dict[str, Sequence[str]]  # of an attribute, for every object
    same: dict[str, Sequence[int]]  # the others that share an attribute, for every object
    related: dict[str, Sequence[int]]  # the objects that are left of it, ..., for every object


class Unanswerable(Exception):
    """A program that asks for the only object of a set with none or several."""


class Function(NamedTuple):
    """What goes in, what comes out, and how; kinds are set, object, number, truth, attributes."""

    takes: tuple[str, ...]
    gives: str
    apply: Callable
    values: tuple[str, ...] = ()


def _unique(facts: Facts, value, mask: int) -> int:
    if mask.bit_count() != 1:
        raise Unanswerable(f"unique has {mask.bit_count()} objects; expected 1")
    return mask.bit_length() - 1


def _function(takes: str, gives: str, apply: Callable, values=()) -> Function:
    return Function(tuple(takes.split()), gives, apply, tuple(values))


FUNCTIONS = {
    "scene": _function("", "set", lambda facts, value: facts.everything),
    "unique": _function("set", "object", _unique),
    "relate": _function(
        "object", "set", lambda facts, value, one: facts.related[value][one], RELATIONS
    ),
    "union": _function("set set", "set", lambda facts, value, a, b: a | b),
    "intersect": _function("set set", "set", lambda facts, value, a, b: a & b),
    "count": _function("set", "number", lambda facts, value, mask: mask.bit_count()),
    "exist": _function("set", "truth", lambda facts, value, mask: mask != 0),
}
for _name, _compare in {
    "equal_integer": operator.eq,
    "less_than": operator.lt,
    "greater_than": operator.gt,
}.items():
    FUNCTIONS[_name] = _function(
        "number number", "truth", lambda facts, value, a, b, compare=_compare: compare(a, b)
    )
for _name in ATTRIBUTES:
    FUNCTIONS |= {
        f"filter_{_name}": _function(
            "set", "set", lambda facts, value, mask: mask & facts.having[value], VALUES[_name]
        ),
        f"same_{_name}": _function(
            "object", "set", lambda facts, value, one, name=_name: facts.same[name][one]
        ),
        f"query_{_name}": _function(
            "object", _name, lambda facts, value, one, name=_name: facts.values[name][one]
        ),
        f"equal_{_name}": _function(f"{_name} {_name}", "truth", lambda facts, value, a, b: a == b),
    }


def run(program: Sequence[Node], facts: Facts) -> list:
    """The results of all steps: masks, places of objects, numbers, truths, names of values."""
    results: list = []
    for function, inputs, value in program:
        arguments = [results[i] for i in inputs]
        results.append(FUNCTIONS[function].apply(facts, value, *arguments))
    return results


def answer(program: Sequence[Node], facts: Facts) -> str:
    """What the last step gives, as it is written in a file."""
    return written(run(program, facts)[-1])


def written(result: bool | int | str) -> str:
    """Yes, no, a number or a value. The public generator writes booleans and integers."""
    if isinstance(result, bool):
        return "yes" if result else "no"
    return str(result)


# --------------------------------------------------------------------------------------------------
# Programs of files


def parse(nodes: object) -> list[Node]:
    """A program as it is in a file, checked: afterwards it can only fail at ``unique``."""
    if not isinstance(nodes, list) or not nodes:
        raise UserError(f"program is {_short(nodes)}; expected a list of nodes.")
    program: list[Node] = []
    kinds: list[str] = []
    for place, node in enumerate(nodes):
        program.append(_parse_node(place, node, kinds))
        kinds.append(FUNCTIONS[program[-1].function].gives)
    if kinds[-1] in ("set", "object"):
        raise UserError(f"program gives a {kinds[-1]}; expected an answer from its last node.")
    return program


def _parse_node(place: int, node: object, kinds: list[str]) -> Node:
    if not isinstance(node, dict):
        raise UserError(f"node {place} is {_short(node)}; expected an object with a function.")
    name = node.get("function", node.get("type"))  # the public generator writes type
    function = FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None:
        raise UserError(f"node {place} has function {_short(name)}{_hint(name, FUNCTIONS)}.")
    inputs, values = node.get("inputs"), node.get("value_inputs", [])
    if not isinstance(inputs, list) or not all(type(i) is int and 0 <= i < place for i in inputs):
        raise UserError(f"node {place} has inputs {_short(inputs)}; expected earlier nodes.")
    found = tuple(kinds[i] for i in inputs)
    if found != function.takes:
        wanted = " and ".join(function.takes) or "nothing"
        raise UserError(f"node {place}: {name} is given {_list(found)}; expected {wanted}.")
    if not isinstance(values, list) or len(values) != bool(function.values):
        count = len(function.values[:1])
        raise UserError(f"node {place} has values {_short(values)}; expected {count} for {name}.")
    if values and values[0] not in function.values:
        raise UserError(
            f"node {place}: {name} has {_short(values[0])}{_hint(values[0], function.values)}."
        )
    return Node(name, tuple(inputs), values[0] if values else None)


def _list(words: tuple[str, ...]) -> str:
    return " and ".join(words) or "nothing"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _hint(value: object, valid) -> str:
    close = difflib.get_close_matches(str(value), list(valid), n=1, cutoff=0.5)
    expected = f"perhaps {close[0]!r}" if close else f"expected one of {', '.join(valid)}"
    return f"; {expected}"
