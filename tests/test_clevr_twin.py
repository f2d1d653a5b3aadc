"""A twin of CLEVR, and the command that makes and reads it."""

import errno
import json
import os
import re
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch

from fspool import cli, storage
from fspool.checks import UserError
from fspool.data.clevr import (
    compact,
    generate,
    load,
    programs,
)

from . import clevr
from .clevr import left, no_reading, same

pytestmark = pytest.mark.usefixtures("one_thread")
elsewhere, root = clevr.elsewhere, clevr.root


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
    with pytest.raises(UserError, match="holds something else; remove it: fspool run makes"):
        load(tmp_path / "b", "val")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="cannot be read: .*; remove it: fspool run makes"):
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


def test_a_part_of_a_twin_is_not_kept(tmp_path):
    """The next try would find it in its way."""

    def stop(split, done, total):
        if split == "val":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate.generate(tmp_path / "b", {"train": 3, "val": 3}, progress=stop)
    assert left(tmp_path) == []
    assert set(generate.generate(tmp_path / "b", {"train": 3, "val": 3}).splits) == {"train", "val"}


def test_no_twin_in_a_folder_that_is_marked_read_only(tmp_path):
    tmp_path.chmod(0o555)  # root could
    with pytest.raises(UserError, match="cannot take the twin .the folder is read-only.; choose"):
        generate.generate(tmp_path / "b", {"val": 3})
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
        (["clevr", "--seed", "7"], "a twin has --scenes, and only clevr has twins"),
        (["mnist", "--no-json"], "a twin has --scenes, and only clevr has twins"),
        (["clevr", "--scenes", "5", "--out", "x", "--data", "y"], "out is 'x', where --data has"),
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
