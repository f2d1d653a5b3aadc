"""Jobs: groups of runs, what a job says, devices, and what is written beside the result."""

import math
import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool import storage
from fspool.checks import UserError
from fspool.experiments.polygons import Polygons
from fspool.lab import launch, provenance, tensorboard
from fspool.lab.launch import Options, find_device, group_size, jobs_of, perform

from . import tiny
from .tiny import CPU, TINY, job

pytestmark = pytest.mark.usefixtures("one_thread")
quick = tiny.quick

# --------------------------------------------------------------------------------------------------
# Groups of runs


def test_as_many_runs_at_once_as_there_is_room_for(monkeypatch):
    monkeypatch.setitem(launch.ROOM, "cpu", 4 * TINY.footprint + 1)
    assert group_size(TINY, CPU) == 4
    assert group_size(replace(TINY, batch=TINY.batch * 9), CPU) == 1
    relaxed, hard = (replace(TINY, temperature=tau).footprint for tau in (1.0, None))
    assert relaxed == TINY.points * hard


def seeds_of_jobs(cell, count, out, device=CPU):
    return [job.seeds for job in jobs_of("polygons", "a", cell, count, out, device)]


@given(count=st.integers(1, 30), room=st.integers(1, 12))
def test_seeds_are_divided_into_groups_of_like_size(tmp_path_factory, count, room):
    cell = SimpleNamespace(footprint=launch.ROOM["cpu"] // room, most_runs=None)
    groups = seeds_of_jobs(cell, count, tmp_path_factory.getbasetemp() / "nothing")
    sizes = [len(group) for group in groups]
    assert [seed for group in groups for seed in group] == list(range(count))
    assert max(sizes) <= room and max(sizes) - min(sizes) <= 1
    assert len(groups) == math.ceil(count / room)


def test_what_is_very_slow_has_fewer_runs(tmp_path):
    cell = SimpleNamespace(footprint=1, most_runs=2)
    assert seeds_of_jobs(cell, 6, tmp_path) == [(0, 1)]
    assert seeds_of_jobs(cell, 1, tmp_path) == [(0,)]


def test_more_seeds_only_add_the_missing_ones(tmp_path):
    assert seeds_of_jobs(TINY, 2, tmp_path) == [(0, 1)]
    for name in ("seeds-0-1", "seeds-4-5", "seeds-20-21"):
        (tmp_path / "a" / name).mkdir(parents=True)
    (tmp_path / "a" / "notes.txt").write_text("not a run")
    assert sorted(seeds_of_jobs(TINY, 8, tmp_path)) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert seeds_of_jobs(TINY, 1, tmp_path) == [(0, 1)]  # what was begun stays together
    paths = {job.path for job in jobs_of("polygons", "a", TINY, 8, tmp_path, CPU)}
    assert tmp_path / "a" / "seeds-2-3" in paths


# --------------------------------------------------------------------------------------------------
# Jobs


def events_of(job, **options):
    events = []
    good = not perform([job], Options(**options), events.append)
    return good, events


def test_a_job_says_what_it_does(tmp_path, quick):
    path = tmp_path / "a"
    good, events = events_of(job(path), save_every=0)
    assert good and [event.kind for event in events] == ["start", *4 * ["step"], "evaluate", "done"]
    assert [event.step for event in events[1:-1]] == [8, 16, 24, 26, 26]
    curve = storage.read_json(path / "result.json")["curve"]
    assert [event.loss for event in events[1:5]] == [sum(r["loss"]) / 2 for r in curve]
    good, events = events_of(job(path))
    assert good and [(event.kind, event.text) for event in events] == [("done", "was finished")]


def test_what_is_not_trained_is_measured_all_the_same(tmp_path, quick):
    cell = replace(TINY, decoder="random", steps=0)
    good, events = events_of(job(tmp_path / "a", cell))
    assert good and [event.kind for event in events] == ["start", "evaluate", "done"]
    assert storage.read_json(tmp_path / "a" / "result.json")["curve"] == []


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "a").write_text("")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        good, events = events_of(job(path))
        assert not good and [event.kind for event in events] == ["failed"]
        assert events[0].text.startswith(f"cannot write {path}: ") and "\n" not in events[0].text


def test_a_defect_in_one_cell_does_not_stop_the_others(tmp_path, quick):
    class Defect(Polygons):
        def model(self):
            raise OSError("no file to write")  # not the user's disk

    bad = Defect(points=3)
    jobs = [job(tmp_path / "a", bad), job(tmp_path / "b")]
    events = []
    failed = launch.launch(jobs, Options(), 1, events.append)
    assert failed == jobs[:1] and (tmp_path / "b" / "result.json").exists()
    (text,) = [event.text for event in events if event.kind == "failed"]
    assert text.startswith("Traceback") and "no file to write" in text


def work_or_die(jobs, options):
    """The process of one cell dies each time, that of another one once."""
    (job,) = jobs
    mark = job.path.with_name("died")
    launch._post(launch.Event(job, "start"))
    if job.name == "bad" or job.name == "unlucky" and not mark.exists():
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        time.sleep(0.5)  # what it has told is on its way
        os.kill(os.getpid(), signal.SIGKILL)
    launch._post(launch.Event(job, "done"))
    return []


def test_a_process_that_dies_takes_its_own_group_alone(tmp_path, monkeypatch):
    names = ("bad", "unlucky", *(f"good{i}" for i in range(6)))
    jobs = [replace(job(tmp_path / name / "seeds-0-0"), name=name) for name in names]
    monkeypatch.setattr(launch, "_work", work_or_die)
    events = []
    failed = launch.launch(jobs, Options(), 2, events.append)
    assert [job.name for job in failed] == ["bad"]
    done = {event.job.name for event in events if event.kind == "done"}
    assert done == set(names) - {"bad"}
    (why,) = [event.text for event in events if event.kind == "failed"]
    assert why.startswith("its process ended") and "fewer --workers" in why
    assert any("it is tried again" in event.text for event in events if event.kind == "say")


def test_the_largest_job_comes_first(tmp_path, quick):
    jobs = [job(tmp_path / str(steps), replace(TINY, steps=steps)) for steps in (8, 16, 0)]
    events = []
    assert launch.launch(jobs, Options(), 1, events.append) == []
    assert [e.job.cell.steps for e in events if e.kind == "start"] == [16, 8, 0]


def test_no_more_threads_than_were_asked_for(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda _: range(64))
    before = torch.get_num_threads()
    launch.launch([job(tmp_path, replace(TINY, steps=0))], Options(), 1, lambda event: None)
    assert torch.get_num_threads() == before


def test_all_cores_where_the_system_does_not_say_which(monkeypatch):
    assert launch.cores() == len(launch.os.sched_getaffinity(0))
    monkeypatch.delattr(launch.os, "sched_getaffinity")
    monkeypatch.setattr(launch.os, "cpu_count", lambda: 3)
    assert launch.cores() == 3


def test_only_the_first_ctrl_c_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), launch.interrupted_once():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)  # while the first one is dealt with
    assert signal.getsignal(signal.SIGINT) is before

    def elsewhere():
        with launch.interrupted_once():
            seen.append(signal.getsignal(signal.SIGINT))

    seen = []
    thread = Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


def test_ctrl_c_is_held_back_from_processes_that_start(tmp_path):
    """A process inherits what is held back: it must not fall to pieces beside its parent."""

    class Pool:
        def submit(self, function, job, options):
            return frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    (held,) = launch._submit(Pool(), [job(tmp_path)], Options())
    assert signal.SIGINT in held
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize(
    "found, name, sentence",
    [
        (0, "cuda", "device is 'cuda', but torch sees no CUDA device; pass --device cpu."),
        (1, "cuda:1", "device is 'cuda:1', but torch sees 1 CUDA device; pass --device cpu."),
        (2, "cuda:2", "device is 'cuda:2', but torch sees 2 CUDA devices; pass --device cpu."),
        (0, "gpu", "device is 'gpu'; expected one of auto, cpu, cuda, perhaps 'cpu'."),
        (0, "cpu:0", "device is 'cpu:0'; expected auto, cpu, cuda or, say, cuda:0."),
        (0, "cuda:x", "device is 'cuda:x'; expected auto, cpu, cuda or, say, cuda:0."),
        (2, "cuda:", "device is 'cuda:'; expected auto, cpu, cuda or, say, cuda:0."),
    ],
)
def test_devices_that_are_not_there(monkeypatch, found, name, sentence):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(UserError) as caught:
        find_device(name)
    assert str(caught.value) == sentence


def test_devices_that_are_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for available, expected in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert find_device("auto") == torch.device(expected)
    assert find_device("cpu") == CPU and find_device("cuda:1") == torch.device("cuda:1")


def test_streams_are_those_of_the_device_that_was_asked_for(tmp_path, monkeypatch):
    """What goes to another device than torch's current one would be in no recorded graph."""
    asked, seen = [], []

    @contextmanager
    def current(device):
        asked.append(device)
        yield
        asked.pop()

    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(launch.trainer, "run_together", lambda *a, **k: seen.append(list(asked)))
    launch.perform([job(tmp_path)], Options(device="cuda:1"), lambda event: None)
    assert seen == [[torch.device("cuda:1")]]


# --------------------------------------------------------------------------------------------------
# Beside the result


def test_where_a_result_comes_from(monkeypatch):
    monkeypatch.setenv("FSPOOL_COMMIT", "abc")
    found = provenance.describe(CPU)
    assert found["commit"] == "abc" and found["device"] and found["threads"] >= 1
    assert found["versions"]["torch"] == torch.__version__


def test_without_git_the_commit_is_not_known(monkeypatch, tmp_path):
    monkeypatch.delenv("FSPOOL_COMMIT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit() is None


def test_tensorboard_can_read_the_curves(tmp_path, quick):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = tmp_path / "a"
    good, _ = events_of(job(path), tensorboard=True)
    assert good
    board = EventAccumulator(str(path / "tensorboard")).Reload()
    curve = storage.read_json(path / "result.json")["curve"]
    assert board.Tags()["scalars"] == ["loss/seed-0", "loss/seed-1"]
    for seed in range(2):
        got = [(scalar.step, scalar.value) for scalar in board.Scalars(f"loss/seed-{seed}")]
        assert got == [(r["step"], pytest.approx(r["loss"][seed], rel=1e-6)) for r in curve]


def test_tensorboard_forgets_what_came_after_the_saved_state(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps, loss in (((8, 16, 24), 1.0), ((16,), 2.0)):  # stopped, and back from step 8
        with tensorboard.writer(tmp_path, [0]) as write:
            for step in steps:
                write(step, [loss])
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(s.step, s.value) for s in board.Scalars("loss/seed-0")] == [(8, 1.0), (16, 2.0)]


@pytest.mark.parametrize("fails", [False, True])
def test_the_writer_for_tensorboard_is_closed(tmp_path, quick, monkeypatch, fails):
    from torch.utils.tensorboard import SummaryWriter

    closed, close = [], SummaryWriter.close
    monkeypatch.setattr(SummaryWriter, "close", lambda self: (closed.append(1), close(self)))
    cell = replace(TINY, steps=8)
    if fails:
        monkeypatch.setattr(type(cell), "evaluate", lambda *_: 1 / 0)
    good, _ = events_of(job(tmp_path / "a", cell), tensorboard=True)
    assert good is not fails and closed == [1]


def test_without_tensorboard_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    sentence = "TensorBoard is not installed; pip install tensorboard, or leave --tensorboard out."
    with pytest.raises(UserError) as caught, tensorboard.writer(tmp_path, [0]):
        pass
    assert str(caught.value) == sentence
    good, events = events_of(job(tmp_path / "a"), tensorboard=True)
    assert not good and events[-1].text == sentence
