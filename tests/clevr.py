"""Scenes and programs of CLEVR for tests, and the plainest way to answer a question."""

import functools
import json
import random

import pytest
import torch
from hypothesis import strategies as st

from fspool.data.clevr import Scenes, blocks, compact
from fspool.data.clevr.programs import FUNCTIONS
from fspool.data.clevr.questions import Asker
from fspool.data.clevr.scene_files import read_scenes
from fspool.data.clevr.tables import tables
from fspool.data.clevr.vocabulary import ATTRIBUTES, RELATIONS, VALUES


@functools.cache
def block(count: int = 250, split: str = "train") -> blocks.Made:
    """Scenes with their questions, the same in all tests."""
    return blocks.make(blocks.Block(0, split, 0, count, True))


def scenes_of(made: blocks.Made) -> Scenes:
    return Scenes(**{name: torch.from_numpy(array) for name, array in made.scenes.items()})


@functools.cache
def asked():
    """Every question of some scenes, with the table of its scene."""
    asker = Asker(random.Random(0).random)
    return [(table, found) for table in tables(scenes_of(block())) for found in asker.ask(table)]


def records(made: blocks.Made) -> tuple[list[dict], list[dict]]:
    """Scenes and questions as they are in files."""
    questions = [
        json.loads(b'{"question_index": %d, ' % i + tail)
        for i, tail in enumerate(made.question_records)
    ]
    return list(map(json.loads, made.scene_records)), questions


def write_split(folder, split="train", made=None, spoil=lambda scenes, questions: None):
    """The two files of a split, in v1.0's layout; spoil may change the records."""
    scenes, questions = records(made or block(8, split))
    spoil(scenes, questions)
    for key, values in (("scenes", scenes), ("questions", questions)):
        (folder / key).mkdir(parents=True, exist_ok=True)
        path = folder / key / f"CLEVR_{split}_{key}.json"
        path.write_text(json.dumps({"info": {"split": split}, key: values}))
    return folder


# --------------------------------------------------------------------------------------------------
# Scenes and programs of any kind


@st.composite
def scene_records(draw):
    """A scene as in a file, its objects anywhere; relations follow from places."""
    number = st.integers(-300, 300).map(lambda n: n / 100)
    look = st.tuples(*(st.sampled_from(VALUES[name]) for name in ATTRIBUTES))
    alike = draw(st.booleans())
    objects = [
        {
            **dict(zip(ATTRIBUTES, values, strict=True)),
            "3d_coords": [draw(number), draw(number), 0.7],
            "pixel_coords": [0, 0, 1.0],
            "rotation": 0.0,
        }
        for values in draw(st.lists(look, min_size=1, max_size=10, unique=not alike))
    ]
    directions = {
        "left": (-0.6563112735748291, -0.7544902563095093),
        "right": (0.6563112735748291, 0.7544902563095093),
        "front": (0.754490315914154, -0.6563112735748291),
        "behind": (-0.754490315914154, 0.6563112735748291),
    }

    def is_at(a, b, name):
        offset = [p - q for p, q in zip(a["3d_coords"], b["3d_coords"], strict=True)]
        return offset[0] * directions[name][0] + offset[1] * directions[name][1] > 0.2

    relationships = {
        name: [[j for j, a in enumerate(objects) if is_at(a, b, name)] for b in objects]
        for name in RELATIONS
    }
    return {"image_index": 0, "objects": objects, "relationships": relationships}


@st.composite
def scenes_and_programs(draw, last):
    """A scene, and a program that ends with a function; not all that is asked for is unique."""
    scene, nodes = draw(scene_records()), []

    def add(name, depth):
        function = FUNCTIONS[name]
        inputs = [give(kind, depth) for kind in function.takes]
        values = [draw(st.sampled_from(function.values))] if function.values else []
        return put(name, inputs, values)

    def put(name, inputs, values=()):
        nodes.append({"function": name, "inputs": inputs, "value_inputs": list(values)})
        return len(nodes) - 1

    def give(kind, depth):
        if kind == "object" and draw(st.integers(0, 9)):
            return point_out(draw(st.sampled_from(scene["objects"])))
        able = [name for name, f in FUNCTIONS.items() if f.gives == kind]
        if kind == "set":
            able = [name for name in able if depth or name == "scene"]
        return add(draw(st.sampled_from(able)), depth - (kind == "set"))

    def point_out(item):
        place = put("scene", [])
        for name in ATTRIBUTES:
            place = put(f"filter_{name}", [place], [item[name]])
        return put("unique", [place])

    add(last, draw(st.integers(1, 3)))
    return scene, nodes


def read_one(tmp_path, record) -> Scenes:
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"scenes": [record]}))
    return read_scenes(path)


def slow_answer(nodes, scene):
    """Lists and loops; None where something is not unique."""
    objects = scene["objects"]
    results = []
    for node in nodes:
        name, value = node["function"], (node["value_inputs"] or [None])[0]
        given = [results[i] for i in node["inputs"]]
        action, _, attribute = name.partition("_")
        if name == "scene":
            result = list(range(len(objects)))
        elif action == "filter":
            result = [i for i in given[0] if objects[i][attribute] == value]
        elif name == "unique":
            if len(given[0]) != 1:
                return None
            result = given[0][0]
        elif name == "relate":
            result = scene["relationships"][value][given[0]]
        elif action == "same":
            wanted = objects[given[0]][attribute]
            result = [i for i, o in enumerate(objects) if o[attribute] == wanted and i != given[0]]
        elif name == "union":
            result = sorted({*given[0], *given[1]})
        elif name == "intersect":
            result = [i for i in given[0] if i in given[1]]
        elif name == "count":
            result = len(given[0])
        elif name == "exist":
            result = len(given[0]) > 0
        elif action == "query":
            result = objects[given[0]][attribute]
        elif name == "less_than":
            result = given[0] < given[1]
        elif name == "greater_than":
            result = given[0] > given[1]
        else:
            result = given[0] == given[1]
        results.append(result)
    last = results[-1]
    return {True: "yes", False: "no"}[last] if isinstance(last, bool) else str(last)


# --------------------------------------------------------------------------------------------------
# Fixtures, which a file of tests takes by name


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Whoever forgets to say where the data is finds nothing."""
    monkeypatch.delenv("FSPOOL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def root(tmp_path):
    """Eight scenes, with ten questions each."""
    return write_split(tmp_path / "root")


def same(a, b):
    parts = zip((*a.scenes, *a.questions), (*b.scenes, *b.questions), strict=True)
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in parts)


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def no_reading(monkeypatch):
    def fail(*_):
        raise AssertionError("it is read again")

    monkeypatch.setattr(compact, "read_scenes", fail)
    monkeypatch.setattr(compact, "read_questions", fail)
