"""Runs over a Ray cluster of two workers: the same folders and numbers, whatever is lost."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fspool.checks import UserError
from fspool.experiments.polygons import Polygons
from fspool.lab import on_ray
from fspool.lab.launch import Event, Job, Options, launch, perform
from fspool.lab.on_ray import Ask

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {"points": 2, "batch": 2, "hidden": 4, "evaluation_sets": 8}
CELL = Polygons(decoder="list", objective="chamfer", steps=96, **SMALL)  # two saved states
OFTEN = Options(save_every=0)


@pytest.fixture(scope="module")
def address():
    """A cluster with room for two tasks."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        made = Cluster(True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        yield made.address
        made.shutdown()


def jobs_in(out, count, cell=CELL):
    """Cells that differ in their learning rate."""
    cells = {f"cell-{i}": replace(cell, learning_rate=1e-3 * (i + 1)) for i in range(count)}
    return [Job("polygons", n, c, (0, 1), out / n / "seeds-0-1") for n, c in cells.items()]


def with_ray(address, jobs, handle, **ask):
    with on_ray.cluster(Ask(address, **ask), "auto") as (device, start):
        assert device == torch.device("cpu")
        return start(jobs, OFTEN, handle)


def serially(jobs):
    assert launch(jobs, OFTEN, 1, lambda event: None) == []
    return contents(jobs)


def contents(jobs):
    """All that a run makes but times."""
    names = ("config.json", "metrics.jsonl", "result.json", "model.safetensors")
    return [(job.path / name).read_bytes() for job in jobs for name in names]


def kill_worker_of(job):
    """The process that works on it; False where none does any more."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it is gone
            if path.read_bytes().startswith(f"ray::{job.label}".encode()):
                os.kill(int(path.parent.name), signal.SIGKILL)
                return True
    return False


def test_forty_cells_and_a_worker_killed_half_way(address, tmp_path):
    jobs, events, killed = jobs_in(tmp_path / "ray", 40), [], False

    def handle(event):
        nonlocal killed
        events.append(event)
        if event.kind == "step" and event.step == 64 and not killed:
            done = sum(event.kind == "done" for event in events)
            killed = done >= 20 and kill_worker_of(event.job)

    assert with_ray(address, jobs, handle) == []
    (lost,) = [event for event in events if event.kind == "say"]
    assert lost.text.startswith(f"The worker of {lost.job.label} was lost (The worker died")
    assert [event.kind for event in events if event.job == lost.job].count("start") == 2
    assert sorted(e.job.name for e in events if e.kind == "done") == sorted(j.name for j in jobs)
    assert len(contents(jobs)) == 160 and contents(jobs) == serially(jobs_in(tmp_path / "a", 40))
    assert not list((tmp_path / "ray").glob(".*"))


class Stop(BaseException):
    pass


def test_a_run_goes_on_with_ray_and_without(address, tmp_path):
    expected = serially(jobs_in(tmp_path / "a", 4))
    jobs = jobs_in(tmp_path / "b", 4)
    assert launch(jobs[:1], OFTEN, 1, lambda event: None) == []

    def stop_at(kind, count):
        events = []

        def handle(event):
            events.append(event)
            if [event.kind for event in events].count(kind) == count:
                raise Stop

        return handle

    with pytest.raises(Stop):
        perform(jobs[1:2], OFTEN, stop_at("step", 2))
    assert list(jobs[1].path.glob("state-*"))
    with pytest.raises(Stop):
        with_ray(address, jobs, stop_at("evaluate", 2), workers=1)
    assert 2 <= sum(job.finished for job in jobs) < 4
    assert with_ray(address, jobs[:3], lambda event: None) == []
    assert launch(jobs, OFTEN, 1, lambda event: None) == []
    assert contents(jobs) == expected


def test_what_fails_does_not_take_the_others_with_it(address, tmp_path, monkeypatch):
    class Defect(Polygons):
        def model(self):
            raise OSError("no file to write")  # not the user's disk

    class Deadly(Polygons):
        def model(self):
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(on_ray, "ATTEMPTS", 2)
    jobs = [
        job
        for kind in (Polygons, Defect, Deadly)
        for job in jobs_in(tmp_path, 1, kind(steps=8, **SMALL))
    ]
    jobs = [replace(job, path=tmp_path / f"{i}/seeds-0-1") for i, job in enumerate(jobs)]
    taken = replace(jobs[0], cell=replace(jobs[0].cell, knots=5), path=tmp_path / "3/seeds-0-1")
    serially([taken])
    jobs.append(replace(jobs[0], path=taken.path))
    events = []
    assert set(with_ray(address, jobs, events.append)) == set(jobs[1:])
    assert jobs[0].finished
    why = {event.job: event.text for event in events if event.kind == "failed"}
    assert why[jobs[1]].startswith("Traceback") and "no file to write" in why[jobs[1]]
    assert why[jobs[2]].startswith("its worker was lost 2 times, at last so: The worker died")
    assert "holds another configuration (cell.knots is 5 there and" in why[jobs[3]]


def test_ctrl_c_ends_a_cluster_of_this_machine_and_the_run_goes_on(tmp_path, fspool):
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from fspool.cli import main; main()"
    )
    few = ["run", "polygons", "--only", "mlp-chamfer-n2", "--seeds", 1, "--device", "cpu"]
    few += ["--set", "steps=1280", "--set", "batch=2", "--no-page"]
    ray = ["--launcher", "ray", "--workers", 2, "--save-every", 0, "--out", tmp_path / "ray"]
    process = subprocess.Popen(
        [str(word) for word in (sys.executable, "-c", script, *few, *ray)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not list(tmp_path.glob("ray/*/*/state-*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130 and out.endswith("goes on from the last saved states.\n")
    assert "Traceback" not in error
    for name in ("ray", "plain"):
        assert fspool(*few, "--workers", 1, "--out", tmp_path / name)[0] == 0
    made = [
        {path.name: path.read_bytes() for path in tmp_path.glob(f"{name}/*/*/result.json")}
        for name in ("ray", "plain")
    ]
    assert made[0] == made[1] and made[0]


# --------------------------------------------------------------------------------------------------
# What a worker does


def test_a_worker_tells_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (job,) = jobs_in(Path("out"), 1)
    with on_ray._marker([job]) as marker:
        assert marker.is_absolute() and marker.parent == tmp_path / "out"
        monkeypatch.chdir("/")
        events = list(on_ray.work(job, Options(), tmp_path, marker))
    kinds = [event.kind for event in events]
    assert kinds[0] == "start" and kinds[-2:] == ["evaluate", "done"]
    assert (
        1 <= kinds.count("step") <= 2 and (tmp_path / "out/cell-0/seeds-0-1/result.json").exists()
    )
    assert not marker.exists()


def test_steps_are_told_now_and_then(tmp_path, monkeypatch):
    (job,), told, now = jobs_in(tmp_path, 1), [], [0.0]
    monkeypatch.setattr(on_ray.time, "monotonic", lambda: now[0])
    post = on_ray._paced(told.append)
    for step in range(10):
        now[0] = step * on_ray.PAUSE * 0.6
        post(Event(job, "step", step))
    post(Event(job, "done"))
    assert [event.step for event in told if event.kind == "step"] == [0, 2, 4, 6, 8]
    assert told[-1].kind == "done"


def test_a_folder_that_is_not_shared(tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "ANSWER", 0.05)
    jobs = jobs_in(tmp_path / "out", 1)
    with pytest.raises(UserError, match="out on .* is not the folder that the command writes to"):
        next(on_ray.work(jobs[0], Options(), tmp_path, tmp_path / "out/.shared"))


def test_a_worker_that_does_not_see_the_folder_stops_the_command(address, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    monkeypatch.setattr(on_ray.Path, "cwd", lambda: elsewhere)
    with pytest.raises(UserError, match=r"is not the folder .* that all machines of the Ray clu"):
        with_ray(address, jobs_in(tmp_path / "out", 1), lambda event: None)


# --------------------------------------------------------------------------------------------------
# Bad input


def cluster_of(**resources):
    return SimpleNamespace(
        cluster_resources=lambda: resources,
        nodes=lambda: [{"Alive": True, "Resources": resources}, {"Alive": False}],
    )


def test_devices_and_shares():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    with_gpu, without = cluster_of(CPU=8.0, GPU=2.0), cluster_of(CPU=2.0)
    for ray, name, device in (
        (with_gpu, "auto", cuda),
        (with_gpu, "cpu", cpu),
        (with_gpu, "cuda", cuda),
        (without, "auto", cpu),
    ):
        assert on_ray._device(ray, name) == device
    assert on_ray._share(with_gpu, Ask(), cuda) == {"num_cpus": 1.0, "num_gpus": 1.0}
    assert on_ray._share(with_gpu, Ask(gpus=0.25), cuda) == {"num_cpus": 1.0, "num_gpus": 0.25}
    assert on_ray._share(with_gpu, Ask(cpus=4), cpu) == {"num_cpus": 4, "num_gpus": 0}
    with pytest.raises(UserError, match="device is 'cuda', but the Ray cluster has no GPU"):
        on_ray._device(without, "cuda")
    with pytest.raises(UserError, match="device is 'cuda:1'; expected one of auto, cpu, cuda"):
        on_ray._device(with_gpu, "cuda:1")
    with pytest.raises(UserError, match="gpus is 0.5, but the runs are on the CPU"):
        on_ray._share(without, Ask(gpus=0.5), cpu)
    with pytest.raises(UserError, match="no machine of the Ray cluster has 9 CPUs and 1 GPU,"):
        on_ray._share(with_gpu, Ask(cpus=9), cuda)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--launcher", "rai"], "launcher is 'rai'; expected one of local, ray, perhaps 'ray'."),
        (["--address", "auto"], "address is 'auto', which only Ray needs; pass --launcher ray"),
        (["--cpus", 2], "cpus is 2.0, which only Ray needs"),
        (["--launcher", "ray", "--address", "127.0.0.1:1"], "'127.0.0.1:1', where nothing answers"),
        (["--launcher", "ray", "--address", "head"], "address is 'head'; expected HOST:PORT"),
        (["--launcher", "ray", "--address", "ray://head:1"], "'ray://head:1'; expected HOST:PORT"),
    ],
)
def test_bad_options(fspool, tmp_path, options, message):
    code, out, error = fspool("run", "polygons", "--out", tmp_path / "out", *options)
    assert code == 1 and message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("answer", [b"HTTP/1.0 400 Bad request\r\n", b""])
def test_an_address_where_something_else_answers(answer):
    """Ray would try for minutes, and write its log."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)

        thread.submit(serve)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=f"{address}', where something else than Ray answers"):
            on_ray._check_address(address)


def test_ray_that_is_not_there(fspool, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, error = fspool("run", "polygons", "--out", tmp_path / "out", "--launcher", "ray")
    assert (code, error) == (
        1,
        "ray is not installed; pip install '.[ray]' in a clone, or leave --launcher ray out.\n",
    )


def test_torchrun_and_ray(fspool, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, error = fspool("run", "polygons", "--out", tmp_path / "out", "--launcher", "ray")
    assert code == 1 and error.startswith("torchrun started this process; leave --launcher ray out")


def test_nothing_to_do_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert on_ray.launch([], Options(), print, ray=None, share={"num_cpus": 1}) == []
    assert not list(tmp_path.iterdir())


def test_only_who_asks_for_ray_waits_for_its_import():
    check = "import sys, fspool.cli; raise SystemExit('ray' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", check], env=environment).returncode == 0
