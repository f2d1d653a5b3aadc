"""CLEVR's files: read as a stream and checked, kept in compact form, made as a twin."""

import errno
import gzip
import json
import os
import re
import shutil
import signal
import zipfile
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool import cli, storage
from fspool.checks import UserError
from fspool.data.clevr import (
    Clevr,
    Questions,
    Scenes,
    compact,
    generate,
    load,
    programs,
    records,
)
from fspool.data.clevr.families import FAMILIES
from fspool.data.clevr.questions import Asker
from fspool.data.clevr.relations import facts, members
from fspool.data.clevr.scene_files import read_scenes
from fspool.data.clevr.tables import tables
from fspool.data.clevr.vocabulary import ANSWERS, FEATURES, VALUES, WORDS, tokens

from . import clevr

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = os.environ.get("FSPOOL_DATA", "")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Whoever forgets to say where the data is finds nothing."""
    monkeypatch.delenv("FSPOOL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def root(tmp_path):
    """Eight scenes, with ten questions each."""
    return clevr.write_split(tmp_path / "root")


def same(a, b):
    parts = zip((*a.scenes, *a.questions), (*b.scenes, *b.questions), strict=True)
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in parts)


def left(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --------------------------------------------------------------------------------------------------
# Streams


def stream(path, content, key="things"):
    path.write_bytes(content)
    return list(records.records(path, key))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=3)


@given(st.lists(objects, max_size=5), objects, objects, st.integers(1, 40), st.booleans())
def test_records_come_one_after_another(tmp_path, items, before, after, piece, packed):
    before.pop("things", None), after.pop("things", None)
    text = json.dumps({**before, "things": items, **after}, indent=piece % 3 or None).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE", piece)
        content = gzip.compress(text) if packed else text
        assert stream(tmp_path / "a.json", content) == items


def test_a_file_that_was_cut_off_is_noticed_wherever_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "PIECE", 16)
    text = json.dumps({"info": [1, {"a": 2.5}], "things": [{"a": "b"}, {"c": 3}], "x": 1}).encode()
    assert len(stream(tmp_path / "a.json", text)) == 2
    for size in range(len(text)):
        with pytest.raises(UserError, match=r"a\.json.*; expected .*, so fetch it again\.$"):
            stream(tmp_path / "a.json", text[:size])


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"", " ends too early; expected an object"),
        (b"[]", " has '[]'; expected an object"),
        (b"<html>", " has '<html>'; expected an object"),
        (b'{"info": {}}', " has no list of things; expected {..., 'things': [...]}"),
        (b'{"things": 3}', " has '3}'; expected a list of things"),
        (b'{"things": [{}, 7]}', ", record 1 of things, has '7'; expected an object"),
        (b'{"things": [{}, {"a": tru}]}', ", record 1 of things, is cut off or damaged ("),
        (b'{"things": [{} {}]}', ", record 1 of things, has '{}]}'; expected a comma or the end"),
        (b'{"things": [{}]} {}', " goes on after its end; expected one object"),
        (b'{"things": [{}], 5', " has '5'"),
    ],
)
def test_foreign_json_is_named(tmp_path, content, sentence):
    path = tmp_path / "a.json"
    with pytest.raises(UserError) as error:
        stream(path, content)
    if sentence != " has '5'":
        assert str(error.value).startswith(f"{path}{sentence}")
    assert str(error.value).endswith(", so fetch it again.")


def test_only_little_of_a_file_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "PIECE", 100)
    monkeypatch.setattr(records, "LARGEST", 1000)
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"things": [{"a": i} for i in range(1000)]}))
    with open(path, encoding="utf-8") as text:
        reader = records._Reader(path, "things", text)
        sizes = [len(reader.piece) for _ in reader.records()]
    assert len(sizes) == 1000 and max(sizes) < 300
    path.write_text('{"things": [{"a": "' + "x" * 5000)
    with open(path, encoding="utf-8") as text:
        with pytest.raises(UserError, match="record 0 of things, is cut off or damaged"):
            list(records._Reader(path, "things", text).records())
        assert text.tell() < 1500  # it does not read to the end of what is no record


@pytest.mark.parametrize(
    "content, sentence",
    [
        (gzip.compress(b'{"things": []}')[:-3], "is not a whole gzip file (.*); remove it and"),
        (gzip.compress(b'{"things": []}')[:-8] + bytes(8), "is not a whole gzip file"),
        (b'{"things": [{"a": "\xff"}]}', "is not text (invalid start byte); fetch it again"),
    ],
)
def test_broken_bytes_are_named(tmp_path, content, sentence):
    with pytest.raises(UserError, match=sentence.replace("(", r"\(").replace(")", r"\)").replace(
        r"\(.*\)", ".*"
    )):  # fmt: skip
        stream(tmp_path / "a.json", content)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="cannot be read .*directory.*; make it readable, or fetch"):
        list(records.records(tmp_path, "things"))
    with pytest.raises(UserError, match=r"no\.json cannot be read \(No such file"):
        list(records.records(tmp_path / "no.json", "things"))


# --------------------------------------------------------------------------------------------------
# Reading


def test_files_come_back_as_they_were_made(root):
    made = clevr.block(8)
    found = load(root, "train")
    expected = Clevr(
        Scenes(**{k: torch.from_numpy(v) for k, v in made.scenes.items()}),
        Questions(**{k: torch.from_numpy(v) for k, v in made.questions.items()}),
    )
    assert same(found, expected) and found.questions.right.all()
    dtypes = {str(t.dtype).removeprefix("torch.") for t in (*found.scenes, *found.questions)}
    assert dtypes == {"int32", "uint8", "float32", "int16", "int64", "bool"}


def test_what_a_model_is_told(root):
    scenes, questions = clevr.records(clevr.block(8))
    data = load(root, "train")
    order = [record["image_index"] for record in scenes]
    rows = data.questions.padded(60)
    assert rows.shape == (80, 60) and rows.dtype == torch.uint8
    for i, record in enumerate(questions):
        words = [WORDS[n - 1] for n in rows[i].tolist() if n]
        assert words == tokens(record["question"]) and not rows[i, len(words) :].any()
        assert ANSWERS[data.questions.answers[i]] == record["answer"]
        assert order[data.questions.scene[i]] == record["image_index"]
        assert data.questions.families[i] == record["question_family_index"]
    assert data.questions.padded().shape[1] == data.questions.offsets.diff().max()
    features = data.scenes.features()
    for i, record in enumerate(scenes):
        for j, item in enumerate(record["objects"]):
            names = [
                VALUES[n][int(v) - 1] for n, v in zip(FEATURES, features[i, j, 3:], strict=True)
            ]
            assert names == [item[name] for name in FEATURES]
            assert features[i, j, :3].tolist() == item["3d_coords"]
        assert not features[i, len(record["objects"]) :].any()


def test_data_moves_to_another_device(root):
    moved = load(root, "train").to("meta")
    assert isinstance(moved, Clevr)
    assert {t.device.type for t in (*moved.scenes, *moved.questions)} == {"meta"}


def test_a_wrong_answer_is_noticed(root, tmp_path):
    def spoil(scenes, questions):
        wrong = questions[7]["answer"]
        questions[7]["answer"] = next(a for a in ("yes", "red", "2") if a != wrong)
        node = {"function": "unique", "inputs": [0], "value_inputs": []}
        questions[9]["program"][1:] = [node, {**node, "function": "query_size", "inputs": [1]}]

    spoiled = clevr.write_split(tmp_path / "spoiled", spoil=spoil)
    right = load(spoiled, "train").questions.right
    assert torch.nonzero(~right)[:, 0].tolist() == [7, 9]


def test_answers_of_the_public_generator_are_booleans_and_numbers(root, tmp_path):
    def change(scenes, questions):
        for record in questions:
            answer = record["answer"]
            record["answer"] = {"yes": True, "no": False}.get(answer, answer)
            if answer.isdigit():
                record["answer"] = int(answer)

    assert same(load(clevr.write_split(tmp_path / "b", spoil=change), "train"), load(root, "train"))


def set_to(place, *keys):
    """Change one thing of a scene or question."""

    def change(items, value):
        target = items[place]
        for key in keys[:-1]:
            target = target[key]
        target[keys[-1]] = value

    return change


SCENE = [
    (("image_index",), "3", "image_index is '3'; expected a number of its own."),
    (("image_index",), 0, "image_index is 0; expected a number of its own."),
    (("image_index",), -1, "image_index is -1; expected a number of its own."),
    (("objects",), None, "it has no list of objects; expected 1 to 10, the slots of a scene."),
    (("objects",), [], "it has 0 objects; expected 1 to 10, the slots of a scene."),
    (("objects",), [{}] * 12, "it has 12 objects; expected 1 to 10, the slots of a scene."),
    (("objects", 1), "ball", "object 1: it is 'ball'; expected shape, size, material, ...."),
    (("objects", 1, "color"), "rde", "object 1: color is 'rde'; expected one of cyan, blue, "),
    (("objects", 1, "shape"), None, "object 1: shape is None; expected one of sphere, cube, "),
    (("objects", 1, "size"), ["a"], "object 1: size is ['a']; expected one of large, small."),
    (("objects", 1, "material"), "wood", "object 1: material is 'wood'; expected one of rubber, "),
    (("objects", 0, "3d_coords"), [1, 2], "object 0: 3d_coords is [1, 2]; expected 3"),
    (("objects", 0, "3d_coords"), [1, 2, float("nan")], "object 0: 3d_coords is [1, 2, nan]; "),
    (("objects", 0, "3d_coords"), [1, 2, "x"], "object 0: 3d_coords is [1, 2, 'x']; expected 3"),
    (("objects", 0, "pixel_coords"), None, "object 0: pixel_coords is None; expected 3 finite"),
    (("objects", 0, "rotation"), "x", "object 0: rotation is ['x']; expected 1 finite number(s)."),
    (("relationships",), None, "relationships have no "),
    (("relationships", "left"), [], "relationships have no "),
    (("relationships", "left", 0), [99], "left has [99]; expected objects from 0 to "),
    (("relationships", "left", 0), 5, "left has 5; expected objects from 0 to "),
]  # fmt: skip


@pytest.mark.parametrize("keys, value, sentence", SCENE)
def test_a_bad_scene_is_named_with_file_and_record(tmp_path, keys, value, sentence):
    change = set_to(3, *keys)
    folder = clevr.write_split(tmp_path, spoil=lambda scenes, _: change(scenes, value))
    with pytest.raises(UserError) as error:
        load(folder, "train")
    path = tmp_path / "scenes" / "CLEVR_train_scenes.json"
    assert str(error.value).startswith(f"{path}, scene 3: {sentence}")
    assert not (tmp_path / "compact-train.safetensors").exists()


QUESTION = [
    (("image_index",), 99, "image_index is 99; expected an image of "),
    (("image_index",), None, "image_index is None; expected an image of "),
    (("image_index",), [1], "image_index is [1]; expected an image of "),
    (("question",), None, "question is None; expected a text."),
    (("question",), " ", "question is ' '; expected a text."),
    (("question",), "Is there a dog?", "word is 'dog'; expected one of CLEVR's."),
    (("answer",), "maybe", "answer is 'maybe'; expected one of yes, no, 0, 1, "),
    (("answer",), None, "answer is 'None'; expected one of "),
    (("answer",), 11, "answer is '11'; expected one of "),
    (("program",), None, "program is None; expected a list of nodes."),
    (("program", 0, "function"), "scenes", "node 0 has function 'scenes'; perhaps 'scene'."),
    (("program", 0, "inputs"), [5], "node 0 has inputs [5]; expected earlier nodes."),
]  # fmt: skip


@pytest.mark.parametrize("keys, value, sentence", QUESTION)
def test_a_bad_question_is_named_with_file_and_record(tmp_path, keys, value, sentence):
    change = set_to(5, *keys)
    folder = clevr.write_split(tmp_path, spoil=lambda _, questions: change(questions, value))
    with pytest.raises(UserError) as error:
        load(folder, "train")
    path = tmp_path / "questions" / "CLEVR_train_questions.json"
    assert str(error.value).startswith(f"{path}, question 5: {sentence}")
    if "image" in sentence:
        assert str(tmp_path / "scenes" / "CLEVR_train_scenes.json") in str(error.value)


@pytest.mark.parametrize("kind", ["scenes", "questions"])
def test_a_file_without_records(root, kind):
    path = root / kind / f"CLEVR_train_{kind}.json"
    path.write_text(json.dumps({kind: []}))
    with pytest.raises(UserError, match=f"{path} has no {kind}; expected some, so fetch it again"):
        load(root, "train")


# --------------------------------------------------------------------------------------------------
# Places, and what is kept


@pytest.mark.parametrize("folder", ["clevr/CLEVR_v1.0", "clevr", "CLEVR_v1.0", "."])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("public", [False, True])
def test_files_are_found_in_every_layout(root, tmp_path, folder, packed, public):
    place = tmp_path / "new" / folder
    for path in compact.source_paths(root, "train"):
        name = (
            f"train/CLEVR_{path.parent.name}.json" if public else f"{path.parent.name}/{path.name}"
        )
        target = place / (name + ".gz" * packed)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(path.read_bytes()) if packed else path.read_bytes())
    assert same(load(tmp_path / "new", "train"), load(root, "train"))
    assert (place / "compact-train.safetensors").is_file()


def test_nothing_is_there(tmp_path, root):
    (root / "scenes" / "CLEVR_train_scenes.json").unlink()
    for place in (tmp_path / "nowhere", root):
        with pytest.raises(UserError) as error:
            load(place, "train")
        assert str(error.value) == (
            "CLEVR_train_scenes.json and CLEVR_train_questions.json are not in scenes and questions"
            f" of {place} or {place}/clevr; point --data at CLEVR_v1.0, or make a twin by "
            "fspool data clevr --scenes 70000 --out DIR."
        )
    with pytest.raises(UserError, match="split is 'tain'; .* perhaps 'train'"):
        load(root, "tain")


def no_reading(monkeypatch):
    def fail(*_):
        raise AssertionError("it is read again")

    monkeypatch.setattr(compact, "read_scenes", fail)
    monkeypatch.setattr(compact, "read_questions", fail)


def test_the_compact_form_is_kept_and_used(root, monkeypatch):
    first = load(root, "train")
    kept = root / "compact-train.safetensors"
    before = kept.read_bytes()
    no_reading(monkeypatch)
    assert same(load(root, "train"), first) and kept.read_bytes() == before
    for path in compact.source_paths(root, "train"):  # content counts, not time
        os.utime(path, (1, 1))
    assert same(load(root, "train"), first)


def test_a_source_that_cannot_be_read_is_named(root, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(compact.hashlib, "file_digest", fail)
    path = root / "scenes" / "CLEVR_train_scenes.json"
    with pytest.raises(UserError, match=rf"{path} cannot be read \(Input/output error\); make"):
        load(root, "train")


@pytest.mark.parametrize("kind", ["scenes", "questions"])
def test_other_files_make_another_compact_form(root, kind):
    load(root, "train")
    path, said = root / kind / f"CLEVR_train_{kind}.json", []
    path.write_text(path.read_text().replace('"info"', '"other"'))
    load(root, "train", said.append)
    assert len(said) == 1 and "holds something else" in said[0]
    assert "compact-train.safetensors.damaged-0" in left(root)
    load(root, "train", said.append)
    assert len(said) == 1


@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b"", lambda b: b[:-9] + bytes(9)])
def test_a_damaged_compact_form_is_set_aside(root, spoil):
    first, said = load(root, "train"), []
    kept = root / "compact-train.safetensors"
    kept.write_bytes(spoil(kept.read_bytes()))
    assert same(load(root, "train", said.append), first)
    assert len(said) == 1 and said[0].endswith("compact-train.safetensors.damaged-0.")


def test_too_little_disk_is_said_and_nothing_is_lost(root, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    said = []
    monkeypatch.setattr(storage.Path, "write_bytes", full)
    data = load(root, "train", said.append)
    kept = root / "compact-train.safetensors"
    size = sum(tensor.nbytes for part in data for tensor in part)
    assert said == [
        f"{kept} cannot be kept (No space left on device); it needs {size / 1e6:.1f} MB, so make "
        "room, or it is made again every time."
    ]
    assert not kept.exists() and data.questions.right.all()


def test_a_folder_that_is_marked_read_only_is_left_alone(root):
    said = []
    root.chmod(0o555)
    try:
        load(root, "train", said.append)
    finally:
        root.chmod(0o755)
    assert len(said) == 1 and "cannot be kept (the folder is read-only)" in said[0]
    assert not any("compact" in name for name in left(root))


# --------------------------------------------------------------------------------------------------
# Twins

COUNTS = {"train": 260, "val": 3}  # two blocks and a small one


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """A twin made by one process; tests only look at it."""
    out = tmp_path_factory.mktemp("twin") / "a"
    shown = []
    made = generate.generate(out, COUNTS, seed=1, progress=lambda *a: shown.append(a))
    return SimpleNamespace(out=out, made=made, shown=shown)


def test_a_twin_has_the_files_of_the_original(twin):
    assert left(twin.out) == [
        "compact-train.safetensors",
        "compact-val.safetensors",
        "questions/CLEVR_train_questions.json",
        "questions/CLEVR_val_questions.json",
        "scenes/CLEVR_train_scenes.json",
        "scenes/CLEVR_val_scenes.json",
    ]
    for split, count in COUNTS.items():
        scenes, questions = (
            json.loads(path.read_text()) for path in compact.source_paths(twin.out, split)
        )
        assert scenes["info"] == questions["info"] and scenes["info"]["seed"] == 1
        assert [s["image_index"] for s in scenes["scenes"]] == list(range(count))
        numbers = [q["question_index"] for q in questions["questions"]]
        assert numbers == list(range(10 * count))
        for record in scenes["scenes"] + questions["questions"]:
            assert record["split"] == split
            name = f"CLEVR_{split}_{record['image_index']:06d}.png"
            assert record["image_filename"] == name
        assert set(questions["questions"][0]) == {
            "question_index", "split", "image_index", "image_filename", "question_family_index",
            "question", "answer", "program",
        }  # fmt: skip
        assert set(scenes["scenes"][0]) == {
            "split", "image_index", "image_filename", "objects", "directions", "relationships",
        }  # fmt: skip
        assert set(scenes["scenes"][0]["objects"][0]) == {
            "color", "material", "shape", "size", "3d_coords", "pixel_coords", "rotation",
        }  # fmt: skip


def test_a_twin_is_what_its_files_say(twin, tmp_path, monkeypatch):
    for split in COUNTS:
        for path in compact.source_paths(twin.out, split):
            target = tmp_path / path.relative_to(twin.out)
            target.parent.mkdir(exist_ok=True)
            shutil.copy(path, target)
        read = load(tmp_path, split)
        assert read.questions.right.all() and len(read.questions.right) == 10 * COUNTS[split]
        assert same(read, twin.made.splits[split])
        name = f"compact-{split}.safetensors"
        assert (tmp_path / name).read_bytes() == (twin.out / name).read_bytes()
    no_reading(monkeypatch)
    assert same(load(twin.out, "train"), twin.made.splits["train"])


def test_every_question_of_a_twin_is_answered_once_more(tmp_path, monkeypatch):
    answers = iter(["nonsense"] * 4)
    monkeypatch.setattr(programs, "answer", lambda *_, a=programs.answer: next(answers, a(*_)))
    right = generate.generate(tmp_path / "b", {"val": 3}).splits["val"].questions.right
    assert right.tolist() == [False] * 4 + [True] * 26


def test_slow_answers_agree_with_a_twin(twin):
    scenes, questions = (
        json.loads(path.read_text()) for path in compact.source_paths(twin.out, "train")
    )
    for record in questions["questions"]:
        scene = scenes["scenes"][record["image_index"]]
        assert clevr.slow_answer(record["program"], scene) == record["answer"]


def test_a_seed_gives_the_same_bytes_on_one_process_and_on_two(twin, tmp_path):
    generate.generate(tmp_path / "b", COUNTS, seed=1, workers=2)
    assert left(tmp_path / "b") == left(twin.out)
    for name in left(twin.out):
        assert (tmp_path / "b" / name).read_bytes() == (twin.out / name).read_bytes(), name


def test_another_seed_gives_other_scenes_and_questions(twin, tmp_path):
    other = generate.generate(tmp_path / "b", {"val": 3}, seed=2).splits["val"]
    assert not torch.equal(other.scenes.coords, twin.made.splits["val"].scenes.coords)
    assert not torch.equal(other.questions.words, twin.made.splits["val"].questions.words)


def test_splits_do_not_share_scenes(twin):
    train, val = (twin.made.splits[split].scenes.coords for split in COUNTS)
    assert not (train[:, None, 0] == val[None, :, 0]).all(-1).any()


def test_progress_and_seconds_are_told(twin):
    assert twin.shown == [
        ("train", 0, 260), ("train", 250, 260), ("train", 260, 260), ("val", 0, 3), ("val", 3, 3),
    ]  # fmt: skip
    parts = {"placement", "visibility", "questions", "words and files"}
    assert set(twin.made.clock) == parts and min(twin.made.clock.values()) > 0


def test_a_twin_without_files(twin, tmp_path):
    generate.generate(tmp_path / "b", {"val": 3}, seed=1, files=False)
    assert left(tmp_path / "b") == ["compact-val.safetensors"]
    assert same(load(tmp_path / "b", "val"), twin.made.splits["val"])
    path = tmp_path / "b" / "compact-val.safetensors"
    tensors, notes = storage.read_tensors(path)
    storage.write_tensors(path, tensors, notes | {"format": 0})
    with pytest.raises(UserError, match="holds something else; remove it, and make it again by"):
        load(tmp_path / "b", "val")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="cannot be read: .*; remove it, and make it again by"):
        load(tmp_path / "b", "val")


def test_what_is_there_is_not_replaced(twin, tmp_path):
    for name in left(twin.out):
        target = tmp_path / "b" / name
        target.parent.mkdir(parents=True)
        target.write_text("mine")
        with pytest.raises(UserError) as error:
            generate.generate(tmp_path / "b", COUNTS)
        assert str(error.value).startswith(f"{target} is there already; remove it, or choose")
        assert left(tmp_path / "b") == [name] and target.read_text() == "mine"
        shutil.rmtree(tmp_path / "b")


def test_too_little_room_for_a_twin(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=20_000_000))
    with pytest.raises(UserError) as error:
        generate.generate(tmp_path / "a" / "b", {"train": 70_000, "val": 15_000})
    assert str(error.value) == (
        f"{tmp_path}/a/b has 20 MB of room; the twin needs 1216 MB, so make room, or choose another"
        " folder."
    )
    assert not list(tmp_path.iterdir())


def test_the_room_that_is_asked_for_is_enough(twin):
    files = sum((twin.out / name).stat().st_size for name in left(twin.out) if "json" in name)
    kept = sum((twin.out / name).stat().st_size for name in left(twin.out) if "compact" in name)
    scenes = sum(COUNTS.values())
    assert 0.7 * generate.FILES < files / scenes <= generate.FILES
    assert 0.5 * generate.COMPACT < kept / scenes <= generate.COMPACT


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_twin_that_cannot_be_finished_leaves_no_file(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(storage, "give_name", fail)
    kind, words = (UserError, "cannot take the twin .No space left.; choose another folder")
    with pytest.raises(kind if isinstance(error, OSError) else KeyboardInterrupt) as raised:
        generate.generate(tmp_path / "b", {"val": 3})
    assert not isinstance(error, OSError) or re.search(words, str(raised.value))
    assert left(tmp_path) == []


def test_no_scenes_are_no_twin(tmp_path):
    with pytest.raises(ValueError, match="scenes of val is 0; expected a number of scenes"):
        generate.generate(tmp_path, {"val": 0})


def end(block):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_ended_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "make", end)
    with pytest.raises(UserError, match="a process was ended from outside; run the command again"):
        generate.generate(tmp_path, {"val": 600}, workers=2)
    assert left(tmp_path) == []


# --------------------------------------------------------------------------------------------------
# The command


def test_the_command_makes_a_twin_and_reads_it(fspool, tmp_path, monkeypatch):
    monkeypatch.setattr(cli.data, "cores", lambda: 1)
    code, out, _ = fspool("data", "clevr", "--scenes", 14, "--out", "twin", "--seed", 3)
    assert code == 0 and "A twin of CLEVR in twin, seed 3." in out
    lines = out.splitlines()
    for line, split, count in zip(lines[1:], ("train", "val"), (14, 3), strict=False):
        assert re.fullmatch(
            rf"{split}: {count} scenes of \d+ to \d+ objects, \d+\.\d\d on average, all relations "
            rf"follow from places; {10 * count} questions, all programs give their answers", line
        )  # fmt: skip
    assert re.fullmatch(
        r"1 process: placement \d+\.\d s, visibility \d+\.\d s, questions \d+\.\d s, words and "
        r"files \d+\.\d s\.", lines[3]
    )  # fmt: skip
    code, again, _ = fspool("data", "clevr", "--data", "twin")
    assert code == 0 and again.splitlines() == ["CLEVR in twin", *lines[1:3]]
    code, _, error = fspool("data", "clevr", "--scenes", 14, "--out", "twin")
    assert code == 1 and "is there already; remove it, or choose another folder." in error


def test_the_command_puts_a_twin_where_data_is_looked_for(fspool, tmp_path, monkeypatch):
    monkeypatch.setenv("FSPOOL_DATA", "some where")
    options = ("--scenes", 2, "--validation", 5, "--no-json")
    assert fspool("data", "clevr", *options)[0] == 0
    names = ["compact-train.safetensors", "compact-val.safetensors"]
    assert left(tmp_path / "some where" / "clevr") == names
    code, out, _ = fspool("data", "clevr")
    assert code == 0 and "train: 2 scenes" in out and "val: 5 scenes" in out


def test_the_command_in_a_terminal_has_bars(fspool, monkeypatch, tmp_path):
    monkeypatch.setattr(cli.console, "_force_terminal", True)
    code, out, _ = fspool("data", "clevr", "--scenes", 2, "--out", "twin")
    assert code == 0 and "━" in out and "2/2" in out


def test_the_command_counts_wrong_answers_and_relations(fspool, tmp_path):
    def spoil(scenes, questions):
        questions[7]["answer"] = "yes" if questions[7]["answer"] == "no" else "no"
        scenes[4]["relationships"]["left"][0] = [0]

    folder = clevr.write_split(tmp_path / "spoiled", spoil=spoil)
    code, out, error = fspool("data", "clevr", "--data", folder)
    assert code == 1 and re.search(r"\d programs do not give the answer of their question", error)
    assert "7 relations follow from places, those of number 4 not" in out
    assert re.search(r"\d\d programs give their answers, those of number 7 not", out)


def test_the_command_reads_a_split_that_is_alone(fspool, root):
    code, out, _ = fspool("data", "clevr", "--data", root)
    assert code == 0 and "train: 8 scenes" in out and "val" not in out


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["clevr"], "CLEVR_train_scenes.json and .* make a twin by fspool data clevr --scenes"),
        (["clevr", "CUBES"], "clevr has no parts, but 'CUBES' was asked for; leave it out"),
        (["mnist", "--scenes", "5"], "a twin has --scenes, and only clevr has twins"),
        (["clevr", "--out", "x"], "a twin has --scenes, and only clevr has twins"),
        (["clevr", "--validation", "3"], "a twin has --scenes, and only clevr has twins"),
        (["tu", "--scenes", "5"], "a twin has --scenes, and only clevr has twins"),
    ],
)
def test_errors_of_the_command_are_one_sentence(fspool, tmp_path, arguments, sentence):
    code, out, error = fspool("data", *arguments)
    assert code == 1 and out == "" and error.count("\n") == 1 and error.endswith(".\n")
    assert re.search(sentence, error), error
    assert not list(tmp_path.iterdir())


def test_ctrl_c_while_a_twin_is_made(fspool, monkeypatch, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "make", stop)
    monkeypatch.setattr(cli.data, "cores", lambda: 1)
    code, out, _ = fspool("data", "clevr", "--scenes", 2, "--out", "twin")
    assert code == 130 and out == "Stopped. Nothing was kept.\n" and left(tmp_path) == []


# --------------------------------------------------------------------------------------------------
# The real thing


@pytest.fixture
def style(tmp_path):
    """The CLEVR-style set of 125 pictures, its JSON unpacked."""
    archive = Path(DATA) / "clevr" / "clevr_style_125_images.zip"
    if not DATA or not archive.is_file():
        pytest.skip("FSPOOL_DATA has no CLEVR-style set")
    with zipfile.ZipFile(archive) as packed:
        names = [name for name in packed.namelist() if name.endswith(".json")]
        packed.extractall(tmp_path / "style", names)
    return tmp_path / "style"


def test_every_answer_of_the_clevr_style_set(style, fspool):
    total = 0
    for split, count in (("train", 1000), ("val", 200), ("test", 50)):
        data = load(style, split)
        assert len(data.questions.right) == count and data.questions.right.all()
        assert (data.questions.families < len(FAMILIES)).all()
        total += count
        _, questions = (style / split / f"CLEVR_{k}.json" for k in ("scenes", "questions"))
        check_steps(data, json.loads(questions.read_text())["questions"])
    assert total == 1250
    code, out, _ = fspool("data", "clevr", "--data", style)
    assert code == 0 and out.count("all programs give their answers") == 3
    assert out.count("all relations follow from places") == 3


def check_steps(data, questions):
    """That set has the results of all steps, too."""
    rows = {image: row for row, image in enumerate(data.scenes.image.tolist())}
    for record in questions:
        row = rows[record["image_index"]]
        lists = (data.scenes.attributes[row].tolist(), data.scenes.relations[row].tolist())
        program = programs.parse(record["program"])
        for node, step, result in zip(
            record["program"], program, programs.run(program, facts(*lists)), strict=True
        ):
            if programs.FUNCTIONS[step.function].gives == "set":
                result = members(result)
                node["_output"] = sorted(node["_output"])
            assert result == node["_output"]


def test_the_original_scenes_can_be_asked_about(fspool):
    path = Path(DATA) / "clevr" / "CLEVR_train_scenes_1000.json.gz"
    if not DATA or not path.is_file():
        pytest.skip("FSPOOL_DATA has no original scenes")
    scenes = Scenes(*(t[:100] for t in read_scenes(path)))
    asker = Asker(Random(0).random)
    asked = [(table, found) for table in tables(scenes) for found in asker.ask(table)]
    assert len(asked) == 1000
    assert all(programs.answer(f.program, t.facts) == f.answer for t, f in asked)
