"""Run folders: who may use them, what they keep, what they do about damage."""

import fcntl
import json
import math
import shutil
import time
from threading import Thread

import pytest
import torch

from fspool import storage
from fspool.checks import UserError
from fspool.lab import runs
from fspool.lab.cell import Evaluation
from fspool.lab.runs import RunFolder, State, differing, folder_name, seeds_of

CONFIG = {"format": 1, "cell": {"steps": 256, "pool": "sum"}, "seeds": (0, 1)}
OTHER = CONFIG | {"cell": {"steps": 512, "pool": "sum"}}


@pytest.fixture
def folder(tmp_path):
    """A run folder that remembers what it said."""
    said = []
    folder = RunFolder(tmp_path / "cell" / "seeds-0-1", said.append)
    folder.said = said
    return folder


def state(step):
    curve = [{"step": s, "loss": [1 / s, 0.1]} for s in range(64, step + 1, 64)]
    return State(step, {"model.weight": torch.full((2, 3), float(step))}, curve)


def train(folder, *steps):
    for step in steps:
        folder.log(state(step).curve[-1])
        folder.save(state(step))


def finish(folder, **metrics):
    curve = state(128).curve
    evaluation = Evaluation(metrics, {"sweep": torch.zeros(2)})
    folder.finish({"weight": torch.ones(3)}, evaluation, curve, {"device": "a"})


def names(folder):
    return sorted(path.name for path in folder.path.iterdir())


def metrics(folder):
    return [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


# --------------------------------------------------------------------------------------------------
# Whose folder it is


def test_the_same_configuration_may_come_again(folder):
    for _ in range(2):
        with folder.claim(CONFIG):
            pass
    assert folder.config() == json.loads(json.dumps(CONFIG)) and not folder.said


def test_another_configuration_is_refused_and_the_setting_named(folder):
    with folder.claim(CONFIG):
        train(folder, 64)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    with pytest.raises(UserError) as caught, folder.claim(OTHER):
        pass
    assert str(caught.value) == (
        f"{folder.path} holds another configuration (cell.steps is 256 there and 512 here); "
        "choose another --out, or pass --overwrite to replace it."
    )
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_overwrite_replaces_everything_of_another_configuration(folder):
    with folder.claim(CONFIG):
        train(folder, 64, 128)
        (folder.path / "tensorboard").mkdir()
        (folder.path / "tensorboard" / "events").write_text("")
        finish(folder, mse=[1.0, 2.0])
    with folder.claim(OTHER, overwrite=True):
        assert not folder.finished and folder.restore() is None
    assert folder.config()["cell"]["steps"] == 512 and not folder.said
    assert names(folder) == ["config.json", "lock", "metrics.jsonl"]


def test_overwrite_keeps_what_is_the_same(folder):
    with folder.claim(CONFIG):
        finish(folder, mse=[1.0, 2.0])
    with folder.claim(CONFIG, overwrite=True):
        assert folder.finished


@pytest.mark.parametrize("work", ["state", "result"])
def test_work_of_another_configuration_that_is_lost_is_set_aside(folder, work):
    with folder.claim(CONFIG):
        train(folder, 64) if work == "state" else finish(folder, mse=[1.0, 2.0])
        (folder.path / "tensorboard").mkdir()
    (folder.path / "config.json").unlink()
    before = {p.name: p.read_bytes() for p in folder.path.iterdir() if p.is_file()}
    with folder.claim(OTHER):
        assert folder.restore() is None and not folder.finished
    assert folder.said == [
        f"{folder.path} has lost its config.json; whatever else it holds is set aside as damaged, "
        "and it starts again."
    ]
    del before["lock"]
    assert len(before) > 1 and folder.config() is not None
    for name, content in before.items():
        assert (folder.path / f"{name}.damaged-0").read_bytes() == content
    assert (folder.path / "tensorboard.damaged-0").is_dir()


@pytest.mark.parametrize("work", ["states", "result"])
def test_a_damaged_configuration_is_written_again_for_work_that_bears_its_mark(folder, work):
    with folder.claim(CONFIG):
        train(folder, 64, 128) if work == "states" else finish(folder, mse=[1.0, 2.0])
    (folder.path / "config.json").write_text("{")
    with folder.claim(CONFIG):
        assert folder.restore().step == 128 if work == "states" else folder.finished
    assert len(folder.said) == 2 and folder.said[0].startswith(f"{folder.path / 'config.json'} is")
    assert folder.said[1] == f"{folder.path} has lost its config.json; it is written again."
    assert "config.json.damaged-0" in names(folder)
    assert folder.config() == json.loads(json.dumps(CONFIG))


def test_without_a_configuration_and_without_a_mark_nobody_knows(folder):
    """States that an earlier version wrote."""
    folder.path.mkdir(parents=True)
    train(folder, 64)
    with folder.claim(CONFIG):
        assert folder.restore() is None
    assert "starts again" in folder.said[0] and "state-000000064.safetensors.damaged-0" in names(
        folder
    )


def test_a_folder_without_work_needs_no_configuration(folder):
    folder.path.mkdir(parents=True)
    with folder.claim(CONFIG):
        assert folder.restore() is None
    assert not folder.said


@pytest.mark.parametrize("work", ["state", "result"])
def test_work_that_was_copied_from_another_configuration_is_set_aside(folder, work, tmp_path):
    """As by rsync --ignore-existing of two folders of runs."""
    other = RunFolder(tmp_path / "other" / "seeds-0-1")
    with other.claim(OTHER):
        train(other, 64)
        if work == "result":
            finish(other, mse=[0.1, 0.2])
    with folder.claim(CONFIG):
        pass
    for path in other.path.iterdir():
        if path.name not in ("config.json", "lock"):
            shutil.copy(path, folder.path)
    with folder.claim(CONFIG):
        assert not folder.finished and folder.restore() is None
    assert any("is of another configuration; it is now" in text for text in folder.said)
    with other.claim(OTHER):
        assert other.finished == (work == "result")


def test_what_a_killed_writer_left_is_removed(folder):
    with folder.claim(CONFIG):
        (folder.path / ".state-000000064.safetensors.123.part").write_bytes(b"half")
    with folder.claim(CONFIG):
        assert names(folder) == ["config.json", "lock"]


def test_a_folder_in_use_is_refused_in_one_sentence(folder, monkeypatch):
    monkeypatch.setattr(runs, "PATIENCE", 0.05)
    with folder.claim(CONFIG):
        with pytest.raises(UserError) as caught, RunFolder(folder.path).claim(CONFIG):
            pass
    assert str(caught.value) == (
        f"{folder.path} is in use by another process; wait for it, or choose another --out."
    )
    with folder.claim(CONFIG):
        pass


def test_a_folder_in_use_is_waited_for(folder):
    def let_go():
        time.sleep(0.2)
        fcntl.flock(lock, fcntl.LOCK_UN)

    folder.path.mkdir(parents=True)
    with open(folder.path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = Thread(target=let_go)
        other.start()
        with folder.claim(CONFIG):
            other.join()
    assert folder.config() is not None


def test_the_first_difference_is_found_at_any_depth():
    assert differing(json.loads(json.dumps(CONFIG)), CONFIG) == ""
    assert differing({"a": {"b": 1}}, {"a": {"b": 2}}) == "a.b is 1 there and 2 here"
    assert differing({"a": 1}, {}) == "a is 1 there and None here"
    assert differing({}, {"a": {"b": 1}}) == "a is None there and {'b': 1} here"


def test_seeds_are_in_the_name_of_the_folder(tmp_path):
    assert folder_name([3, 4, 5]) == "seeds-3-5"
    assert seeds_of(tmp_path / "seeds-3-5") == [3, 4, 5]
    for other in ("seeds-3", "seeds-3-5.damaged-0", "lock"):
        assert seeds_of(tmp_path / other) is None


# --------------------------------------------------------------------------------------------------
# States


def test_the_last_two_states_are_kept(folder):
    with folder.claim(CONFIG):
        assert folder.restore() is None
        train(folder, 64, 128, 192)
        assert [name for name in names(folder) if name.startswith("state")] == [
            "state-000000128.safetensors",
            "state-000000192.safetensors",
        ]
        got = folder.restore()
    assert got.step == 192 and got.curve == state(192).curve
    assert torch.equal(got.tensors["model.weight"], state(192).tensors["model.weight"])


def test_a_damaged_state_is_named_and_the_one_before_is_used(folder):
    with folder.claim(CONFIG):
        train(folder, 64, 128)
        damage(folder.path / "state-000000128.safetensors")
        assert folder.restore().step == 64
        assert folder.said == [
            f"{folder.path}/state-000000128.safetensors does not match its checksum; "
            "it is now state-000000128.safetensors.damaged-0."
        ]
        assert metrics(folder) == state(64).curve  # what came after never was
        train(folder, 128)
        assert folder.restore().step == 128 and len(folder.said) == 1
    assert "state-000000128.safetensors.damaged-0" in names(folder)


@pytest.mark.parametrize(
    "notes",
    [
        {},
        {"step": "128", "curve": []},
        {"step": 64, "curve": []},
        {"step": 128, "curve": [{"step": 64}]},
        {"step": 128, "curve": {}},
        {"step": 128, "curve": [], "clock": [[1.0]]},
    ],
    ids=["nothing", "text", "another step", "no loss", "no curve", "half a time"],
)
def test_a_state_of_another_form_is_set_aside_whatever_its_checksum_says(folder, notes):
    with folder.claim(CONFIG):
        train(folder, 64, 128)
    path = folder.path / "state-000000128.safetensors"
    storage.write_tensors(path, state(128).tensors, notes)
    with folder.claim(CONFIG):
        assert folder.restore().step == 64
    (said,) = folder.said
    assert said.startswith(f"{path} holds no ") and said.endswith(
        "it is now state-000000128.safetensors.damaged-0."
    )


def test_with_both_states_damaged_it_starts_anew(folder):
    with folder.claim(CONFIG):
        train(folder, 64, 128)
        damage(folder.path / "state-000000128.safetensors")
        (folder.path / "state-000000064.safetensors").write_bytes(b"")
        assert folder.restore() is None and len(folder.said) == 2
        assert metrics(folder) == []
        assert [name for name in names(folder) if "damaged" in name] == [
            "state-000000064.safetensors.damaged-0",
            "state-000000128.safetensors.damaged-0",
        ]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe{", b'{"step": 64, "loss": [0.5, 0.1]}\n'])
def test_damaged_metrics_are_set_aside_and_made_again(folder, content):
    path = folder.path / "metrics.jsonl"
    with folder.claim(CONFIG):
        train(folder, 64, 128)
        path.write_bytes(content)
        folder.restore()
    assert folder.said == [f"{path} is damaged; it is now metrics.jsonl.damaged-0."]
    assert (folder.path / "metrics.jsonl.damaged-0").read_bytes() == content
    assert metrics(folder) == state(128).curve


def test_metrics_that_are_ahead_of_the_state_are_cut_back(folder):
    with folder.claim(CONFIG):
        train(folder, 64)
        folder.log(state(128).curve[-1])
        with open(folder.path / "metrics.jsonl", "a") as file:
            file.write('{"step": 19')  # killed in the middle of a line
        folder.restore()
    assert metrics(folder) == state(64).curve and not folder.said


def test_missing_metrics_are_made_again(folder):
    with folder.claim(CONFIG):
        train(folder, 64)
        (folder.path / "metrics.jsonl").unlink()
        folder.restore()
    assert metrics(folder) == state(64).curve and not folder.said


def test_a_loss_that_is_not_a_number_is_no_damage(folder):
    diverged = State(64, {}, [{"step": 64, "loss": [math.nan, math.inf]}])
    with folder.claim(CONFIG):
        folder.log(diverged.curve[-1])
        folder.save(diverged)
        assert folder.restore().curve == [{"step": 64, "loss": [None, None]}]
    assert metrics(folder) == [{"step": 64, "loss": [None, None]}] and not folder.said


# --------------------------------------------------------------------------------------------------
# Results


def test_a_result_is_the_end(folder):
    with folder.claim(CONFIG):
        train(folder, 64, 128)
        assert not folder.finished
        finish(folder, mse=[0.5, math.nan])
        assert folder.finished
    assert folder.result() == {
        "metrics": {"mse": [0.5, None]},
        "curve": state(128).curve,
        "config": storage.digest(CONFIG),
    }
    assert metrics(folder) == state(128).curve and not folder.said
    assert storage.read_json(folder.path / "provenance.json") == {"device": "a"}
    assert names(folder) == [
        "arrays.safetensors",
        "config.json",
        "lock",
        "metrics.jsonl",
        "model.safetensors",
        "provenance.json",
        "result.json",
    ]


def test_the_result_is_written_last_and_the_states_go_after_it(folder, monkeypatch):
    """Whoever is stopped before the result can go on from the states."""
    written, write = [], storage.write

    def record(path, content):
        assert len(list(folder.path.glob("state-*"))) == 2
        written.append(path.name)
        write(path, content)

    with folder.claim(CONFIG):
        train(folder, 64, 128)
        monkeypatch.setattr(storage, "write", record)
        finish(folder, mse=[0.5, 0.5])
    assert written[-1] == "result.json" and len(written) == 5


def test_a_damaged_result_is_no_result(folder):
    with folder.claim(CONFIG):
        finish(folder, mse=[1.0, 2.0])
        path = folder.path / "result.json"
        path.write_text(path.read_text().replace("2.0", "3.0"))
        assert not folder.finished
    assert folder.said == [f"{path} does not match its checksum; it is now result.json.damaged-0."]
