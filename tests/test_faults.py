"""Runs that are killed, run out of disk or find damage, step by step; `tests/faults` does more."""

import fcntl
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fspool import storage
from fspool.cli.running import choose
from fspool.experiments import find
from fspool.experiments import polygons as experiment
from fspool.experiments.polygons import Polygons
from fspool.lab import trainer
from fspool.lab.launch import Job, Options, jobs_of, launch, perform

pytestmark = pytest.mark.usefixtures("one_thread")

CELL = Polygons(points=3, batch=2, steps=80, evaluation_sets=8)
CHUNK, ANGLES = 8, 360  # a state every 8 steps, and a coarse sweep

# A process for each attempt, without importing everything each time.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([__name__, "torch._dynamo"])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    make_small(monkeypatch)


def make_small(patch):
    patch.setattr(trainer, "CHUNK", CHUNK)
    patch.setattr(experiment, "ANGLES", ANGLES)
    patch.setenv("FSPOOL_COMMIT", "0123456789ab")


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The result of CELL."""
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        return undisturbed(tmp_path_factory.mktemp("undisturbed"), CELL)


def attempt(path, cell, post=lambda event: None):
    return not perform([Job("polygons", "a", cell, (0, 1), path)], Options(save_every=0), post)


def result(path):
    return (path / "result.json").read_bytes()


def undisturbed(path, cell):
    assert attempt(path, cell)
    return result(path)


class Attempt:
    """One attempt at a run in a process of its own, and what it says."""

    def __init__(self, path, cell, room=None):
        self.pipe, there = processes.Pipe(duplex=False)
        self.process = processes.Process(target=_attempt, args=(path, cell, there, room))
        self.process.start()
        there.close()

    def events(self):
        """The rest of what it says, once it has ended."""
        found = []
        try:
            while True:
                found.append(self.pipe.recv())
        except EOFError:
            self.process.join()
        return found


def _attempt(path, cell, pipe, room):
    trainer.CHUNK, experiment.ANGLES = CHUNK, ANGLES
    torch.set_num_threads(1)

    def post(event):
        pipe.send(event)
        if room and event.step >= 24:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

    raise SystemExit(0 if attempt(path, cell, post) else 1)


# --------------------------------------------------------------------------------------------------
# Killed


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_around_any_write_the_result_is_the_same_to_the_bit(tmp_path, monkeypatch, after):
    """Around each of the moments at which a file appears."""
    cell, replace_file, left = replace(CELL, steps=16), os.replace, [0]

    def count(*arguments):
        left[0] -= 1
        if left[0] == 0 and not after:
            raise Killed
        replace_file(*arguments)
        if left[0] == 0:
            raise Killed

    expected = undisturbed(tmp_path / "undisturbed", cell)
    monkeypatch.setattr(storage.os, "replace", count)
    for number in range(1, 99):
        path, left[0] = tmp_path / str(number), number
        try:
            attempt(path, cell)
        except Killed:
            assert attempt(path, cell)
        assert result(path) == expected
        if left[0] > 0:  # there are no more writes
            break
    assert number == 10  # config, metrics, two states, model, arrays, provenance, metrics, result


def test_workers_end_when_the_parent_is_killed_and_others_can_go_on(tmp_path, monkeypatch):
    monkeypatch.undo()
    out, names = tmp_path / "out", ("fspool-n2", "random-n2")
    settings = ["steps=320", "evaluation_sets=16", "batch=4"]
    options = [word for name in names for word in ("--only", name)]
    options += [word for setting in settings for word in ("--set", setting)]
    options += ["--seeds", "2", "--workers", "2", "--save-every", "0", "--out", str(out)]
    command = [sys.executable, "-m", "fspool", "run", "polygons", *options]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    folders = [out / name / "seeds-0-1" for name in names]
    try:
        # One worker trains, the other has nothing left to do.
        while not (list(folders[0].glob("state-*")) and (folders[1] / "result.json").exists()):
            assert parent.poll() is None
            time.sleep(0.01)
        parent.kill()
        parent.communicate(timeout=30)  # comes back when nobody holds the other end any more
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
    assert not (folders[0] / "result.json").exists()
    for folder in folders:
        with open(folder / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    cells = choose(find("polygons").preset("quick"), find("polygons"), list(names), settings)
    for where in (out, tmp_path / "undisturbed"):
        jobs = [
            job
            for name, cell in cells.items()
            for job in jobs_of("polygons", name, cell, 2, where, torch.device("cpu"))
        ]
        assert launch(jobs, Options(), 1, lambda event: None) == []
    for folder in folders:
        assert result(folder) == result(tmp_path / "undisturbed" / folder.relative_to(out))


# --------------------------------------------------------------------------------------------------
# No room


def test_a_full_disk_is_one_sentence_and_the_last_state_is_whole(tmp_path, expected):
    path = tmp_path
    run = Attempt(path, CELL, room=1024)
    last = run.events()[-1]
    assert run.process.exitcode == 1 and last.kind == "failed"
    assert last.text == (
        f"cannot write {path}: File too large; the last saved state is whole, so put that right "
        "and run the same command again."
    )
    states = sorted(path.glob("state-*"))
    assert [storage.read_tensors(state)[1]["step"] for state in states] == [8, 16]
    assert not list(path.glob(".*.part"))

    said = []
    assert attempt(path, CELL, said.append)
    assert {event.kind for event in said} == {"start", "step", "evaluate", "done"}
    assert next(event.step for event in said if event.kind == "step") == 24
    assert result(path) == expected


# --------------------------------------------------------------------------------------------------
# Damage


def train_until(path, step):
    def post(event):
        if event.kind == "step" and event.step > step:
            raise Killed

    with pytest.raises(Killed):
        attempt(path, CELL, post)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flip, truncate])
@pytest.mark.parametrize(
    "names, resumed",
    [
        (["state-000000040.safetensors"], 40),
        (["state-000000032.safetensors", "state-000000040.safetensors"], 8),
        (["metrics.jsonl"], 48),
        (["config.json"], 48),
    ],
    ids=["the last state", "both states", "the metrics", "the configuration"],
)
def test_what_is_damaged_is_named_and_set_aside_and_the_result_is_the_same(
    tmp_path, expected, damage, names, resumed
):
    path, said = tmp_path, []
    train_until(path, 40)
    for name in names:
        damage(path / name)
    assert attempt(path, CELL, said.append)
    sentences = [event.text for event in said if event.kind == "say"]
    for name in names:
        sentence = next(text for text in sentences if str(path / name) in text)
        assert sentence.endswith(f"; it is now {name}.damaged-0.")
        assert (path / f"{name}.damaged-0").exists()
    assert next(event.step for event in said if event.kind == "step") == resumed
    assert result(path) == expected


def test_a_damaged_result_is_found_again(tmp_path, expected):
    said = []
    assert attempt(tmp_path, CELL)
    flip(tmp_path / "result.json")
    assert attempt(tmp_path, CELL, said.append)
    assert said[0].kind == "say" and "result.json.damaged-0" in said[0].text
    assert result(tmp_path) == expected


# --------------------------------------------------------------------------------------------------
# All kinds, by the harness


def test_some_faults_of_the_harness():
    """The command itself, disturbed at random moments; `make faults` does it 200 times."""
    command = [sys.executable, "-m", "tests.faults", "--count", "10"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-2].split() == ["all", "10", "0", "0", "0"]
