"""The kinds of faults. A kind is a function that disturbs a trial, resumes it and judges it."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fspool import storage
from fspool.lab.runs import _line

from . import caches
from .damage import damage
from .disk import enlarge, in_own_mounts, mount
from .trial import Trial, whole

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir")  # as audit events call them


class Kind(NamedTuple):
    name: str
    share: int  # of 100 faults, about
    disturb: Callable[[Trial], None]


# --------------------------------------------------------------------------------------------------
# Stopped


def killed(trial: Trial) -> None:
    trial.stop(signal.SIGKILL)
    trial.resume()


def stopped(number: int, trial: Trial) -> None:
    trial.judge_stop(trial.stop(number), number)
    trial.resume()


def killed_at_a_file(trial: Trial) -> None:
    """Just before a file is opened, renamed or removed, or a folder made."""
    last = _count_operations(trial)
    call = trial.call(prepare=partial(_kill_at, trial.out, trial.random.randint(1, last)))
    if call.wait() != -signal.SIGKILL:
        raise RuntimeError(f"it was not killed: {call.said}")
    trial.resume()


def killed_in_a_file(trial: Trial) -> None:
    """In the middle of a write: the system ends a process whose file grows beyond a limit."""
    largest = max(path.stat().st_size for path in trial.expected.out.glob("*/*/*"))

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit = trial.random.randrange(1, largest)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    call = trial.call(prepare=prepare)
    if call.wait() != -signal.SIGXFSZ:
        raise RuntimeError(f"it was not killed: {call.said}")
    trial.resume()


def _count_operations(trial: Trial) -> int:
    reading, writing = os.pipe()
    call = trial.call(prepare=lambda: _audit(trial.out, lambda: os.write(writing, b".")))
    os.close(writing)
    with open(reading, "rb") as file:
        count = len(file.read())
    call.wait()
    shutil.rmtree(trial.out)
    return count


def _kill_at(out: Path, number: int) -> None:
    left = [number]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    _audit(out, count)


def _audit(out: Path, act: Callable[[], object]) -> None:
    def hook(event: str, arguments: tuple) -> None:
        if event in OPERATIONS and str(out) in str(arguments[0]):
            act()

    sys.addaudithook(hook)


# --------------------------------------------------------------------------------------------------
# A full disk


def full_disk(trial: Trial) -> None:
    """A tmpfs that is too small; where none can be mounted, a limit on the size of files."""
    found = in_own_mounts(lambda: _on_small_disk(trial))
    if found is None:
        return _with_small_files(trial)
    trial.lost, trial.wrong, trial.unclear = found["lost"], found["wrong"], found["unclear"]


def _on_small_disk(trial: Trial) -> dict:
    trial.out.mkdir()
    pages = trial.random.randint(1, trial.expected.pages)
    while True:
        mount(trial.out, pages)
        call = trial.call()
        if call.wait() != 0:
            break
        pages = trial.random.randint(1, pages)  # there was room enough
    _judge_full(trial, call, "No space left on device")
    enlarge(trial.out)
    trial.resume()
    return {"lost": trial.lost, "wrong": trial.wrong, "unclear": trial.unclear}


def _with_small_files(trial: Trial) -> None:
    limit = trial.random.randint(6000, 12000)  # what it says fits, states do not

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    call = trial.call(prepare=prepare)
    if call.wait() == 0:
        raise RuntimeError(f"no file was too large: {call.said}")
    _judge_full(trial, call, "File too large")
    trial.resume()


def _judge_full(trial: Trial, call, reason: str) -> None:
    trial.judge_sentences(call)
    if reason not in call.said:
        trial.unclear.append(f"nothing about the disk: {call.said[-300:]!r}")


# --------------------------------------------------------------------------------------------------
# Damage


def damaged_state(both: bool, trial: Trial) -> None:
    """The newest state of a group that is not finished, or all of them."""
    states: list[Path] = []
    while not states:
        trial.stop(signal.SIGKILL)
        states = [path for group in _unfinished(trial) for path in _states(group)[: 1 + both]]
    for path in states:
        damage(path, trial.random, lambda path: not whole(path, storage.read_tensors))
    trial.resume(names=tuple(states))


def damaged_metrics(trial: Trial) -> None:
    path = None
    while path is None:
        trial.stop(signal.SIGKILL)
        path = next(_metrics(trial), None)
        if path and not damage(path, trial.random, _cannot_go_on):
            path = None
    trial.resume(names=(path,))


def damaged_while_unfinished(name: str, trial: Trial) -> None:
    path = None
    while path is None or not path.exists():
        trial.stop(signal.SIGKILL)
        path = next((group / name for group in _unfinished(trial)), None)
    damage(path, trial.random, lambda path: not whole(path, storage.read_json))
    trial.resume(names=(path,))


def damaged_when_finished(names: tuple[str, ...], trial: Trial) -> None:
    """One of these files, of a group that is finished."""
    trial.finish()
    path = trial.random.choice(trial.groups) / trial.random.choice(names)
    damage(path, trial.random, lambda path: not whole(path, storage.read_json))
    trial.resume(names=(path,))


def damaged_tensors(trial: Trial) -> None:
    """What a figure needs, of a finished group: the page says what to do; the numbers stay."""
    trial.finish()
    group = trial.out / "fspool-n2" / "seeds-0-1"
    path = group / "arrays.safetensors"
    damage(path, trial.random, lambda path: not whole(path, storage.read_tensors))
    call = trial.call("--page")
    call.wait()
    trial.judge_sentences(call, (path,))
    if f"remove {group}" not in call.said:
        trial.unclear.append(f"not what to do about it: {call.said[-300:]!r}")
    if trial.expected.tables not in call.said:
        trial.wrong.append("the tables are not the same")
    shutil.rmtree(group)
    trial.resume()


def damaged_plan(trial: Trial) -> None:
    trial.stop(signal.SIGKILL)
    while not (trial.out / "plan.json").exists():
        trial.stop(signal.SIGKILL)
    path = trial.out / "plan.json"
    damage(path, trial.random, lambda path: not whole(path, storage.read_json))
    trial.resume(names=(path,))


def _unfinished(trial: Trial) -> list[Path]:
    return [group for group in trial.groups if not (group / "result.json").exists()]


def _states(group: Path) -> list[Path]:
    return sorted(group.glob("state-*.safetensors"), reverse=True)


def _metrics(trial: Trial) -> Iterator[Path]:
    for group in _unfinished(trial):
        if _states(group):
            yield group / "metrics.jsonl"


def _cannot_go_on(path: Path) -> bool:
    """Lines after the last state's are cut off in any case; those before are missed."""
    states = filter(None, (whole(state, storage.read_tensors) for state in _states(path.parent)))
    curve = next(states)[1]["curve"]
    return not path.read_bytes().startswith("".join(map(_line, curve)).encode())


# --------------------------------------------------------------------------------------------------
# Several processes


def two_at_once(trial: Trial) -> None:
    """The second one starts at any moment of the first."""
    first = trial.call()
    time.sleep(trial.random.random() * trial.expected.seconds)
    second = trial.call()
    for call in (first, second):
        if call.wait() != 0:
            trial.lost.append(f"one of two ends with {call.code}: {call.said[-300:]!r}")
        trial.judge_sentences(call)
        trial.judge_numbers(call)


def killed_worker(trial: Trial) -> None:
    """One of two processes that a command started, as by a system that runs out of memory."""
    call = trial.call("--workers", 2)
    while not list(trial.out.glob("*/*/config.json")):
        if call.ended():
            raise RuntimeError(f"it ended too early: {call.said}")
        time.sleep(0.01)
    os.kill(trial.random.choice(_started_by(call.pid, "spawn_main")), signal.SIGKILL)
    call.wait()
    trial.judge_sentences(call)
    trial.resume()


def killed_ray_worker(trial: Trial) -> None:
    """A worker of a local cluster; the command itself starts again what was lost with it."""
    call = trial.call("--launcher", "ray", "--workers", 2)
    busy: list[int] = []
    while not (busy and list(trial.out.glob("*/*/state-*"))):
        if call.ended():
            raise RuntimeError(f"it ended too early: {call.said}")
        time.sleep(0.01)
        busy = _started_by(call.pid, "(seeds 0-1)")  # a worker has the name of its task
    os.kill(trial.random.choice(busy), signal.SIGKILL)
    if call.wait() != 0:
        trial.lost.append(f"it did not go on by itself: {call.said[-300:]!r}")
    trial.judge_sentences(call)
    trial.judge_numbers(call)


def _started_by(parent: int, word: str) -> list[int]:
    """Processes below another one whose command lines have a word in them."""
    parents, lines = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            lines[pid] = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has just ended
            continue

    def below(pid: int) -> bool:
        return pid == parent or (pid in parents and below(parents[pid]))

    chosen = [pid for pid, line in lines.items() if word in line]
    return sorted(pid for pid in chosen if pid != parent and below(pid))


# --------------------------------------------------------------------------------------------------


def has_ray() -> bool:
    return importlib.util.find_spec("ray") is not None


def kinds() -> list[Kind]:
    found = [
        Kind("killed at a random moment", 20, killed),
        Kind("killed at a file operation", 12, killed_at_a_file),
        Kind("killed in the middle of a write", 6, killed_in_a_file),
        Kind("SIGTERM", 9, partial(stopped, signal.SIGTERM)),
        Kind("Ctrl-C", 9, partial(stopped, signal.SIGINT)),
        Kind("full disk", 9, full_disk),
        Kind("two processes on one folder", 5, two_at_once),
        Kind("damaged config, finished", 3, partial(damaged_when_finished, ("config.json",))),
        Kind("damaged last state", 6, partial(damaged_state, False)),
        Kind("damaged states", 3, partial(damaged_state, True)),
        Kind("damaged metrics", 4, damaged_metrics),
        Kind("damaged config, unfinished", 3, partial(damaged_while_unfinished, "config.json")),
        Kind(
            "damaged result", 3, partial(damaged_when_finished, ("result.json", "provenance.json"))
        ),
        Kind("damaged arrays of figures", 2, damaged_tensors),
        Kind("damaged plan", 1, damaged_plan),
        Kind("damaged cache", 4, caches.damaged_cache),
        Kind("killed worker process", 1, killed_worker),
    ]
    if has_ray():
        found.append(Kind("killed Ray worker", 2, killed_ray_worker))
    return found
