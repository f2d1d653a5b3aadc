"""CLEVR's programs: who runs them, and what family they belong to."""

from collections import Counter

import pytest
from hypothesis import given

from fspool.checks import UserError
from fspool.data.clevr.families import FAMILIES, UNKNOWN, expand, recognise
from fspool.data.clevr.programs import FUNCTIONS, Node, Unanswerable, answer, parse
from fspool.data.clevr.relations import facts
from fspool.data.clevr.vocabulary import ATTRIBUTES

from . import clevr

pytestmark = pytest.mark.usefixtures("one_thread")


def facts_of(scenes, row=0):
    return facts(scenes.attributes[row].tolist(), scenes.relations[row].tolist())


# --------------------------------------------------------------------------------------------------
# Programs


ENDS = [name for name, function in FUNCTIONS.items() if function.gives not in ("set", "object")]


@pytest.mark.parametrize("last", ENDS)
def test_the_executor_agrees_with_lists_and_loops(tmp_path, last):
    outcomes, functions = Counter(), set()

    @given(clevr.scenes_and_programs(last))
    def check(both):
        scene, nodes = both
        known = facts_of(clevr.read_one(tmp_path, scene))
        expected = clevr.slow_answer(nodes, scene)
        functions.update(node["function"] for node in nodes)
        outcomes[expected] += 1
        if expected is None:
            with pytest.raises(Unanswerable, match=r"unique has \d+ objects; expected 1"):
                answer(parse(nodes), known)
        else:
            assert answer(parse(nodes), known) == expected

    check()
    assert len(set(outcomes) - {None}) > 1  # there were different answers
    assert functions >= {"scene", "filter_color", last}


def test_there_are_26_functions():
    assert len(FUNCTIONS) == 26 and len(ENDS) == 13


CHAIN = [
    {"function": "scene", "inputs": [], "value_inputs": []},
    {"function": "filter_color", "inputs": [0], "value_inputs": ["red"]},
    {"function": "unique", "inputs": [1], "value_inputs": []},
    {"function": "query_shape", "inputs": [2], "value_inputs": []},
]


def test_the_public_generator_calls_functions_types():
    other = [{**node, "type": node["function"]} for node in CHAIN]
    for node in other:
        del node["function"]
    assert parse(other) == parse(CHAIN)
    assert parse(CHAIN)[1] == Node("filter_color", (0,), "red")


@pytest.mark.parametrize(
    "place, change, sentence",
    [
        (None, [], "program is []; expected a list of nodes."),
        (None, "count", "program is 'count'; expected a list of nodes."),
        (None, CHAIN[:3], "program gives a object; expected an answer from its last node."),
        (None, CHAIN[:1], "program gives a set; expected an answer from its last node."),
        (1, 7, "node 1 is 7; expected an object with a function."),
        (1, {"function": "uniqe"}, "node 1 has function 'uniqe'; perhaps 'unique'."),
        (1, {"function": None}, "node 1 has function None; expected one of scene, unique, relate"),
        (1, {"function": ["a"]}, "node 1 has function ['a']; expected one of scene, unique"),
        (1, {"inputs": [1]}, "node 1 has inputs [1]; expected earlier nodes."),
        (1, {"inputs": [-1]}, "node 1 has inputs [-1]; expected earlier nodes."),
        (1, {"inputs": [True]}, "node 1 has inputs [True]; expected earlier nodes."),
        (1, {"inputs": 0}, "node 1 has inputs 0; expected earlier nodes."),
        (1, {"inputs": []}, "node 1: filter_color is given nothing; expected set."),
        (3, {"inputs": [1]}, "node 3: query_shape is given set; expected object."),
        (3, {"function": "union", "inputs": [0, 2]}, "node 3: union is given set and object; "),
        (1, {"value_inputs": []}, "node 1 has values []; expected 1 for filter_color."),
        (2, {"value_inputs": ["red"]}, "node 2 has values ['red']; expected 0 for unique."),
        (1, {"value_inputs": ["rde"]}, "node 1: filter_color has 'rde'; perhaps 'red'."),
        (1, {"value_inputs": ["cube"]}, "node 1: filter_color has 'cube'; "),
        (1, {"value_inputs": [3]}, "node 1: filter_color has 3; expected one of cyan, blue"),
        (1, {"value_inputs": "red"}, "node 1 has values 'red'; expected 1 for filter_color."),
    ],
)  # fmt: skip
def test_programs_that_make_no_sense_are_named(place, change, sentence):
    nodes = change
    if place is not None:
        nodes = [dict(node) for node in CHAIN]
        nodes[place] = change if not isinstance(change, dict) else nodes[place] | change
    with pytest.raises(UserError) as error:
        parse(nodes)
    assert str(error.value).startswith(sentence)


# --------------------------------------------------------------------------------------------------
# Families


def test_there_are_ninety_families_in_nine_groups():
    groups = Counter(family.group for family in FAMILIES)
    assert dict(groups) == {
        "zero_hop": 6, "one_hop": 6, "two_hop": 6, "three_hop": 6, "single_and": 5,
        "single_or": 8, "same_relate": 28, "comparison": 16, "compare_integer": 9,
    }  # fmt: skip
    assert len(set(FAMILIES)) == 90
    functions = Counter(family.function for family in FAMILIES)
    assert functions["count"] == 4 + 1 + 8 + 8 and functions["exist"] == 4 + 8
    assert all(functions[f"query_{name}"] == 4 + 1 + 3 for name in ATTRIBUTES)
    assert all(functions[f"equal_{name}"] == 4 for name in ATTRIBUTES)
    for name in ("equal_integer", "less_than", "greater_than"):
        assert functions[name] == 3


def test_families_are_recognised_by_their_programs():
    for _, found in clevr.asked():
        number, family = recognise(found.program), FAMILIES[found.family]
        if number != found.family:  # the description of the others is empty
            other = FAMILIES[number]
            assert expand(other, found.choices) == found.program
            assert (family.group, other.group) == ("same_relate",) * 2 and number < found.family
    known = {recognise(found.program) for _, found in clevr.asked()}
    assert known == set(range(90))


def test_other_programs_belong_to_none():
    for function in ("intersect", "union"):
        nodes = [Node("scene"), Node(function, (0, 0)), Node("exist", (1,))]
        assert recognise(nodes) == UNKNOWN
    assert recognise([Node("scene"), Node("exist", (0,))]) == 1
