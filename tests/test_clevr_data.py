"""CLEVR's files: read and checked, found, kept in compact form; the published ones."""

import errno
import gzip
import json
import os
import zipfile
from pathlib import Path
from random import Random

import pytest
import torch

from fspool import storage
from fspool.checks import UserError
from fspool.data.clevr import (
    Clevr,
    Questions,
    Scenes,
    compact,
    load,
    programs,
)
from fspool.data.clevr.families import FAMILIES
from fspool.data.clevr.questions import Asker
from fspool.data.clevr.relations import facts, members
from fspool.data.clevr.scene_files import read_scenes
from fspool.data.clevr.tables import tables
from fspool.data.clevr.vocabulary import ANSWERS, FEATURES, VALUES, WORDS, tokens

from . import clevr
from .clevr import left, no_reading, same

pytestmark = pytest.mark.usefixtures("one_thread")
elsewhere, root = clevr.elsewhere, clevr.root


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
    assert len(said) == 1 and "was made of other files, or by another version" in said[0]
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


DATA = os.environ.get("FSPOOL_DATA", "")


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


# --------------------------------------------------------------------------------------------------
# Kept files whose checksum is right, and which cannot be


def change(name, function):
    return lambda tensors: tensors | {name: function(tensors[name]).contiguous()}


@pytest.mark.parametrize(
    "harm",
    [
        change("scenes.coords", lambda t: t.double()),
        change("scenes.image", lambda t: t[:-1]),
        change("scenes.sizes", lambda t: t * 0),
        change("scenes.sizes", lambda t: t * 0 + 11),
        change("scenes.attributes", lambda t: t + 100),
        change("scenes.pixels", lambda t: t / 0),
        change("scenes.relations", lambda t: t | 1 << 14),
        change("questions.scene", lambda t: t + 8),
        change("questions.answers", lambda t: t.float()),
        change("questions.families", lambda t: t[1:]),
        change("questions.offsets", lambda t: t[1:]),
        change("questions.offsets", lambda t: t.flip(0)),
        change("questions.words", lambda t: t * 0),
        change("questions.words", lambda t: t * 0 + 255),
        change("questions.words", lambda t: t[:, None]),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_a_compact_form_that_cannot_be_is_made_again_or_refused(root, harm, alone):
    expected = load(root, "train")
    path = compact.kept_path(root, "train")
    tensors, notes = storage.read_tensors(path)
    storage.write_tensors(path, harm(tensors), notes)
    if not alone:
        said = []
        assert same(load(root, "train", said.append), expected)
        assert said == [f"{path} holds something else; it is now {path.name}.damaged-0."]
        return
    for source in compact.source_paths(root, "train"):
        source.unlink()
    with pytest.raises(UserError, match="holds something else; remove it: fspool run makes"):
        load(root, "train")
