"""CLEVR's questions: what may be asked of a scene, the search, words."""

import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool.data.clevr import programs, words
from fspool.data.clevr.families import FAMILIES, Choice, expand
from fspool.data.clevr.placement import sample
from fspool.data.clevr.programs import Node, Unanswerable, answer, parse
from fspool.data.clevr.questions import welcome
from fspool.data.clevr.search import Search
from fspool.data.clevr.tables import fitting, shuffled, tables, take
from fspool.data.clevr.vocabulary import (
    ANSWERS,
    ATTRIBUTES,
    DESCRIPTIONS,
    FEATURES,
    FILLED,
    RELATIONS,
    VALUES,
    WORDS,
    describe,
    tokens,
)

from . import clevr

pytestmark = pytest.mark.usefixtures("one_thread")


def of_group(name):
    return [
        (t, f, FAMILIES[f.family]) for t, f in clevr.asked() if FAMILIES[f.family].group == name
    ]


# --------------------------------------------------------------------------------------------------
# Tables and options


def slots_fit(slots, attributes):
    return all(
        not slot or attributes[FEATURES.index(name)] == slot
        for name, slot in zip(ATTRIBUTES, slots, strict=True)
    )


def test_descriptions_fit_what_they_say():
    scenes = sample(5, "fits", 40)
    found = fitting(scenes)
    for row in range(40):
        attributes = scenes.attributes[row, : scenes.sizes[row]].tolist()
        for number, slots in enumerate(DESCRIPTIONS):
            mask = sum(1 << i for i, a in enumerate(attributes) if slots_fit(slots, a))
            assert found[row, number] == mask
    assert len(DESCRIPTIONS) == 324 and DESCRIPTIONS[0] == (0, 0, 0, 0)
    number = describe(color="red", shape="cube")
    assert DESCRIPTIONS[number] == (0, 5, 0, 2) and FILLED[number] == 0b1010


def options_of(table, end, among=None):
    among = table.facts.everything if among is None else among
    return table.filters(among, end, random.Random(1).random)


def test_options_of_filters():
    for table in tables(sample(6, "options", 30)):
        fits, everything = table.fits, table.facts.everything
        for among in (everything, table.facts.related["left"][0], 0b101):
            occurring = [n for n in range(324) if fits[n]]
            one = [n for n in occurring if (fits[n] & among).bit_count() == 1]
            assert [d for _, d, _ in options_of(table, "unique", among)] == one
            for end, extra in (("count", len(one)), ("exist", len(occurring)), ("", len(one))):
                found = [d for _, d, _ in options_of(table, end, among)]
                known = occurring if end else occurring[1:]  # 0 is nothing but a thing
                assert found[: len(known)] == known and len(set(found)) == len(found)
                assert len(found) <= len(known) + extra
                assert (0 in found) == bool(end)
                assert extra < 20 or len(found) > len(known)
            for _, number, result in options_of(table, "exist", among):
                assert result == fits[number] & among


def test_options_of_relations():
    idle_total = clear_total = 0
    for table in tables(sample(7, "options", 30)):
        for end, wanted in (("unique", {1}), ("", set(range(1, 11))), ("count", set(range(11)))):
            found = table.relates(1, end, random.Random(2).random)
            clear = idle = 0
            for relation, number, result in found:
                side = table.facts.related[RELATIONS[relation]][1]
                assert result == table.fits[number] & side and table.fits[number]
                assert result.bit_count() in wanted
                idle += result == table.fits[number]
                clear += result != table.fits[number]
            expected = sum(
                1
                for name in RELATIONS
                for n in range(324)
                if table.fits[n]
                and table.fits[n] & ~table.facts.related[name][1]
                and (table.fits[n] & table.facts.related[name][1]).bit_count() in wanted
            )
            assert clear == expected and idle <= round(clear / 9)
            idle_total, clear_total = idle_total + idle, clear_total + clear
    assert 0.07 < idle_total / (idle_total + clear_total) < 0.101


def test_random_order_and_random_parts():
    draw = random.Random(0).random
    orders = Counter(tuple(shuffled([1, 2, 3], draw)) for _ in range(6000))
    assert len(orders) == 6 and all(850 < count < 1150 for count in orders.values())
    pairs = Counter(tuple(sorted(take([1, 2, 3], 2, draw))) for _ in range(3000))
    assert set(pairs) == {(1, 2), (1, 3), (2, 3)} and min(pairs.values()) > 850
    assert take([1, 2], 5, draw) == [1, 2]


# --------------------------------------------------------------------------------------------------
# The search


def test_ten_questions_a_scene_and_every_answer_is_right():
    assert len(clevr.asked()) == 2500
    for table, found in clevr.asked():
        assert answer(found.program, table.facts) == found.answer
        assert parse(clevr_nodes(found.program)) == found.program


def clevr_nodes(program):
    return [
        {"function": f, "inputs": list(i), "value_inputs": [v] if v else []} for f, i, v in program
    ]


def test_families_take_turns():
    used = Counter(found.family for _, found in clevr.asked())
    hopeless = [n for n, family in enumerate(FAMILIES) if family.possible == ("no",)]
    assert len(hopeless) == 1 and used.pop(hopeless[0]) == 1  # its counts always differ
    assert min(used.values()) >= 27 and max(used.values()) <= 32
    per_scene = [clevr.asked()[i : i + 10] for i in range(0, 2500, 10)]
    assert all(len({found.family for _, found in ten}) == 10 for ten in per_scene)


def test_answers_are_in_balance():
    counts = {number: dict.fromkeys(FAMILIES[number].answers, 0) for number in range(90)}
    for _, found in clevr.asked():
        before = counts[found.family]
        assert found.answer in welcome(before)
        before[found.answer] += 1
    for number, found in counts.items():
        first, second, *_ = sorted(found.values(), reverse=True)
        assert first <= 1.1 * second + 1, (number, found)
    total = Counter(found.answer for _, found in clevr.asked())
    assert abs(total["yes"] - total["no"]) < 60  # 90 families, each off by one at most
    assert 0.8 < total["metal"] / total["rubber"] < 1.25
    shares = {"no": 20.7, "yes": 19.7, "0": 7.1, "1": 8.2, "2": 3.9, "large": 4.5, "cube": 3.0}
    for name, share in shares.items():  # those of the public generator
        assert abs(total[name] / 25 - share) < 0.75, name


@pytest.mark.parametrize(
    "counts, expected",
    [
        ([0, 0, 0], [0, 1, 2]),
        ([1, 0, 0], [1, 2]),
        ([1, 1, 0], [0, 1, 2]),
        ([10, 9, 9], [1, 2]),
        ([11, 10, 0], [0, 1, 2]),
        ([25, 25, 0], [0, 1, 2]),
        ([26, 26, 0], [2]),
        ([26, 26, 6], [0, 1, 2]),
        ([31, 30, 6], [1, 2]),
    ],
)
def test_which_answers_are_welcome(counts, expected):
    names = VALUES["shape"]
    # The median of three is the second largest, so a fourth and fifth value make it small.
    values = dict(zip(names, counts, strict=True)) | {"x": counts[2], "y": counts[2]}
    found = [names.index(name) for name in names if name in welcome(values)]
    assert found == expected


def test_every_answer_can_be_asked_for():
    found = set()
    scenes = tables(sample(8, "answers", 300))
    draw = random.Random(0).random
    for family in FAMILIES[:6]:
        for name in family.possible:
            for table in scenes:
                search = Search(family, table, {name}, draw)
                if search.run():
                    assert search.answer == name
                    assert answer(expand(family, search.choices), table.facts) == name
                    found.add(name)
                    break
    assert found == set(ANSWERS)


def test_a_search_that_finds_nothing_is_right():
    """Against all descriptions of an object and of one beside it."""
    draw = random.Random(3).random
    family = FAMILIES[9]
    assert [step.kind for step in family.steps][-1] == "query_color"
    hits = 0
    for table in tables(sample(9, "nothing", 60)):
        reachable = colours(table)
        for name in VALUES["color"]:
            search = Search(family, table, {name}, draw)
            if search.run():
                assert name in reachable and search.answer == name
                hits += 1
            else:
                assert name not in reachable or name in colours(table, idle=True)
    assert hits > 150


def colours(table, idle=None):
    """What one hop can lead to, by brute force; idle: only where the relation changes nothing."""
    found = set()
    for one in range(table.facts.everything.bit_count()):
        if not any(mask == 1 << one for mask in table.fits):
            continue
        for name in RELATIONS:
            side = table.facts.related[name][one]
            for number in range(324):
                there = table.fits[number] & side
                if DESCRIPTIONS[number][1] == 0 and there.bit_count() == 1:
                    if idle is None or (there == table.fits[number]) == idle:
                        found.add(table.facts.values["color"][there.bit_length() - 1])
    return found


def test_descriptions_leave_out_what_is_asked():
    for _, found in clevr.asked():
        family = FAMILIES[found.family]
        for step, choice in zip(family.steps, found.choices, strict=True):
            for name in step.empty.split():
                assert not DESCRIPTIONS[choice.description][ATTRIBUTES.index(name)]
        if family.function.startswith("query_"):  # as the program says it
            name, place = family.function.removeprefix("query_"), len(found.program) - 3
            while found.program[place].function.startswith("filter_"):
                assert found.program[place].function != f"filter_{name}"
                place -= 1


def test_what_must_differ_differs():
    for table, found, _ in of_group("comparison"):
        results = programs.run(found.program, table.facts)
        one, two = (found.program[i].inputs[0] for i in found.program[-1].inputs)
        assert results[one] != results[two]
    for table, found, family in of_group("compare_integer"):
        results = programs.run(found.program, table.facts)
        one, two = found.program[-1].inputs
        if "relate" not in [node.function for node in found.program]:
            assert results[one] != results[two]
        elif family.differ:
            objects = [r for r, n in zip(results, found.program, strict=True) if n[0] == "unique"]
            assert objects[0] != objects[1]
    for table, found, family in of_group("single_or"):
        if family.differ:
            results = programs.run(found.program, table.facts)
            union = next(n for n in found.program if n.function == "union")
            assert results[union.inputs[0]] != results[union.inputs[1]]


def test_no_relation_of_two_is_idle():
    """The answer changes, or is gone, if either is replaced by the whole scene."""
    questions = of_group("single_and")
    assert len(questions) > 120
    for table, found, _ in questions:
        places = [i for i, node in enumerate(found.program) if node.function == "relate"]
        assert len(places) == 2
        for place in places:
            changed = list(found.program)
            changed[place] = Node("scene")
            try:
                assert answer(changed, table.facts) != found.answer
            except Unanswerable:
                pass


def test_without_that_rule_many_would_be():
    """The search finds a question for an answer just when the rule allows one."""
    family = next(f for f in FAMILIES if f.group == "single_and" and f.function == "query_size")
    draw, lost = random.Random(0).random, 0
    for table in tables(sample(10, "idle", 40)):
        search = Search(family, table, {"large"}, draw)
        if not search.run():
            lost += 1
            assert not any_and(table, "large")
    assert lost > 3


def any_and(table, size):
    """Is there an object that two relations find, and neither alone? By brute force."""
    named = [i for i in range(10) if any(mask == 1 << i for mask in table.fits)]
    sides = {table.facts.related[name][i] for i in named for name in RELATIONS}
    for a in sides:
        for b in sides - {a}:
            for number in range(324):
                fits = table.fits[number]
                both = a & b & fits
                if not DESCRIPTIONS[number][0] and both.bit_count() == 1:
                    if (a & fits).bit_count() > 1 < (b & fits).bit_count():
                        if table.facts.values["size"][both.bit_length() - 1] == size:
                            return True
    return False


# --------------------------------------------------------------------------------------------------
# Words


def texts():
    return [record["question"] for record in clevr.records(clevr.block())[1]]


def test_all_words_occur_and_no_others():
    found = Counter(word for text in texts() for word in tokens(text))
    assert set(found) == set(WORDS) and len(WORDS) == 82 and list(WORDS) == sorted(WORDS)
    sizes = [len(tokens(text)) for text in texts()]
    assert 4 <= min(sizes) and 35 < max(sizes) <= 50 and 18 < np.mean(sizes) < 20.5


def test_questions_look_like_sentences():
    for text in texts():
        assert text.endswith("?") and text[0].isupper() and "  " not in text and " ?" not in text
        assert text.count("?") == 1 and text == text.strip() and " a object" not in text


def test_tokens_are_words_and_punctuation():
    text = "There is a cube; is it (very) big?"
    assert tokens(text) == [
        "there",
        "is",
        "a",
        "cube",
        ";",
        "is",
        "it",
        "(",
        "very",
        ")",
        "big",
        "?",
    ]


def test_two_programs_never_have_the_same_words():
    """Few descriptions and relations, so that many questions are nearly the same."""
    draw = random.Random(0)
    said = {}
    for number, family in enumerate(FAMILIES):
        for _ in range(150):
            choices = [any_choice(draw, step) for step in family.steps]
            program = expand(family, choices)
            text = words.word(family, choices, draw.random)
            assert said.setdefault(canonical(text), program) == program, (number, text)
    assert len(said) > 5000


def any_choice(draw, step):
    if step.kind.startswith("filter_"):
        name = step.kind.removeprefix("filter_")
        return Choice(None, describe(**{name: VALUES[name][0]}))
    if not step.free:
        return Choice()
    kinds = [{}, {"color": "red"}, {"size": "small"}, {"shape": "cube", "material": "metal"}]
    kinds = [k for k in kinds if not set(k) & set(step.empty.split())]
    relation = draw.randrange(2) if "relate" in step.kind else None
    said = draw.choice(kinds) if "filter" in step.kind else {}
    return Choice(relation, describe(**said))


def canonical(text):
    """With the first of all synonyms."""
    text = text.lower()
    for forms in words.SYNONYMS.values():
        for form in sorted(forms[1:], key=len, reverse=True):
            text = text.replace(form, forms[0])
    return text.replace("an thing", "a thing")


@given(st.integers(0, 89), st.randoms(use_true_random=False))
def test_every_filled_slot_is_said(number, draw):
    family = FAMILIES[number]
    choices = [any_choice(draw, step) for step in family.steps]
    text = tokens(canonical(words.word(family, choices, draw.random)))
    said = Counter(word.removesuffix("s") for word in text)
    for value, form in (("red", "red"), ("small", "small"), ("cube", "cube")):
        name = next(n for n in ATTRIBUTES if value in VALUES[n])
        slot = VALUES[name].index(value) + 1
        filled = sum(DESCRIPTIONS[c.description][ATTRIBUTES.index(name)] == slot for c in choices)
        assert said[form] == filled
    assert said["left"] == sum(c.relation == 0 for c in choices)


def test_other_is_said_where_it_is_needed():
    family = next(f for f in FAMILIES if f.steps[-1].kind == "filter count" and "same" in f.group)
    red, blue = describe(color="red"), describe(color="blue")
    cube = describe(shape="cube")
    assert family.steps[0].empty == "size"
    for first, second, other in ((red, blue, False), (red, red, True), (red, cube, True)):
        choices = [Choice(None, first), Choice(), Choice(None, second)]
        for seed in range(20):
            text = words.word(family, choices, random.Random(seed).random)
            assert ("other" in tokens(text)) == other


def test_the_same_draws_give_the_same_questions():
    assert torch.equal(
        torch.from_numpy(
            clevr.blocks.make(clevr.blocks.Block(0, "train", 0, 30, False)).questions["words"]
        ),
        torch.from_numpy(
            clevr.blocks.make(clevr.blocks.Block(0, "train", 0, 30, True)).questions["words"]
        ),
    )
