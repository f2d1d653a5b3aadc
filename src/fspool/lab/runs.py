"""Run folders. One folder holds one group of seeds of one cell, trained together.

``config.json``       what was asked for; a folder of another configuration is never touched
``state-*.safetensors``  the last two states to go on from: weights, optimiser, loss curve
``metrics.jsonl``     the loss curve, one line a record, for whoever wants to follow it
``model.safetensors``, ``arrays.safetensors``  the trained weights; what the figures need
``result.json``       the measurements, written last: a folder that has it is finished
``provenance.json``   machine, versions, commit and times, which do not belong to the result
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torch import Tensor

from .. import storage
from ..checks import UserError
from .cell import Evaluation

FORMAT = 1
PATIENCE = 10.0  # seconds that another process gets to let go of a folder


@dataclass
class State:
    """Where a run was."""

    step: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)
    curve: list[dict] = field(default_factory=list)  # {"step": ..., "loss": [one for every seed]}
    clock: list[list[float]] = field(default_factory=list)  # when it was worked on: [from, to]


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


class RunFolder:
    """Reads and writes one run folder; says what it had to repair."""

    def __init__(self, path: Path, say: Callable[[str], None] = print) -> None:
        self.path, self.say = path, say
        self.mark: str | None = None  # of the configuration; the work itself bears it

    @property
    def finished(self) -> bool:
        return self.result() is not None

    def result(self) -> dict | None:
        return self._read("result.json", partial(read_result, mark=self.mark))

    def config(self) -> dict | None:
        return self._read("config.json", storage.read_json)

    @contextmanager
    def claim(self, config: dict, *, overwrite: bool = False, patience: float | None = None):
        """Hold the folder for this configuration: no other process, no other configuration."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.mark = mark_of(config)
        with open(self.path / "lock", "w") as lock:
            self._wait_for(lock, PATIENCE if patience is None else patience)
            for part in self.path.glob(".*.part"):  # of a process that was killed while it wrote
                part.unlink()
            found = self.config()
            if found is None and self._has_work():
                if self._bears_mark():
                    self.say(f"{self.path} has lost its config.json; it is written again.")
                else:
                    self.say(
                        f"{self.path} has lost its config.json; whatever else it holds is set "
                        "aside as damaged, and it starts again."
                    )
                    self._clear(storage.set_aside)  # nobody knows what it belongs to
            elif found is not None and (difference := differing(found, config)):
                if not overwrite:
                    raise UserError(other_configuration(self.path, difference))
                self._clear()
            if found is None or difference:
                storage.write_json(self.path / "config.json", config)
            yield self

    def save(self, state: State) -> None:
        """Keep this state and the one before."""
        notes = {"step": state.step, "curve": state.curve, "clock": state.clock}
        notes |= self._marked()
        storage.write_tensors(self._state(state.step), state.tensors, notes)
        for path in self._states()[2:]:
            path.unlink()

    def restore(self, last: int | None = None) -> State | None:
        """The last good state, or the last up to a step; the metrics file is brought back to it."""
        state = None
        for path in self._states():
            if last is not None and path > self._state(last):
                continue
            if (state := self._read(path.name, partial(read_state, mark=self.mark))) is not None:
                break
        self._rewrite_metrics(state.curve if state else [])
        return state

    def saved_steps(self) -> set[int]:
        """Steps whose states are there; whether they are whole shows when they are restored."""
        return {int(path.stem.removeprefix("state-")) for path in self._states()}

    def log(self, record: dict) -> None:
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(_line(record))

    def finish(
        self, model: dict[str, Tensor], evaluation: Evaluation, curve: list, provenance: dict
    ) -> None:
        """Everything first, the result last; then the states are not needed any more."""
        storage.write_tensors(self.path / "model.safetensors", model)
        storage.write_tensors(self.path / "arrays.safetensors", evaluation.arrays)
        storage.write_json(self.path / "provenance.json", provenance)
        self._rewrite_metrics(curve)
        result = {"metrics": evaluation.metrics, "curve": curve} | self._marked()
        storage.write_json(self.path / "result.json", result)
        for path in self._states():
            path.unlink()

    def _read(self, name: str, reader: Callable):
        return storage.read_or_set_aside(self.path / name, reader, self.say)

    def _state(self, step: int) -> Path:
        return self.path / f"state-{step:09d}.safetensors"

    def _states(self) -> list[Path]:
        """Newest first."""
        return sorted(self.path.glob("state-*.safetensors"), reverse=True)

    def _has_work(self) -> bool:
        return bool(self._states()) or (self.path / "result.json").exists()

    def _bears_mark(self) -> bool:
        """Is all work that is whole of this configuration?"""
        if (result := self._read("result.json", storage.read_json)) is not None:
            return result.get("config") == self.mark
        states = [self._read(path.name, storage.read_tensors) for path in self._states()]
        marks = {notes.get("config") for _, notes in filter(None, states)}
        return marks == {self.mark}

    def _marked(self) -> dict:
        return {"config": self.mark} if self.mark else {}

    def _rewrite_metrics(self, curve: list[dict]) -> None:
        """From the state, which has a checksum: a torn last line, or worse, cannot last."""
        path = self.path / "metrics.jsonl"
        content = "".join(map(_line, curve)).encode()
        if path.exists() and not path.read_bytes().startswith(content):
            self.say(f"{path} is damaged; it is now {storage.set_aside(path).name}.")
        storage.write(path, content)

    def _clear(self, away: Callable[[Path], object] = _remove) -> None:
        for path in list(self.path.iterdir()):
            if path.name != "lock" and ".damaged-" not in path.name:
                away(path)

    def _wait_for(self, lock, patience: float) -> None:
        deadline = time.monotonic() + patience
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"{self.path} is in use by another process; wait for it, "
                        "or choose another --out."
                    ) from None
                time.sleep(0.1)


def mark_of(config: dict) -> str:
    """What the work of a configuration bears, so that work copied from elsewhere is known."""
    return storage.digest(storage.plain(config))


def read_result(path: Path, mark: str | None = None) -> dict:
    """A result, of the configuration with this mark."""
    result = storage.read_json(path)
    _check_mark(path, result, mark)
    return result


def bears(notes: dict, mark: str) -> bool:
    """Is a result, or a state, of the configuration with this mark? Very old ones bear none."""
    return notes.get("config", mark) == mark


def _check_mark(path: Path, notes: dict, mark: str | None) -> None:
    if mark and not bears(notes, mark):
        raise storage.Damaged(f"{path} is of another configuration")


def read_state(path: Path, mark: str | None = None) -> State:
    """A saved state, of the configuration with this mark; what is of another form is damaged."""
    tensors, notes = storage.read_tensors(path)
    _check_mark(path, notes, mark)
    step, curve, clock = (notes.get(name, []) for name in ("step", "curve", "clock"))
    if type(step) is not int or f"state-{step:09d}" != path.stem or not _is_curve(curve):
        raise storage.Damaged(f"{path} holds no state")
    if not isinstance(clock, list) or not all(map(_is_interval, clock)):
        raise storage.Damaged(f"{path} holds no times")
    return State(step, tensors, curve, clock)


def _is_curve(curve: object) -> bool:
    return isinstance(curve, list) and all(
        isinstance(record, dict)
        and type(record.get("step")) is int
        and isinstance(record.get("loss"), list)
        for record in curve
    )


def _is_interval(times: object) -> bool:
    return isinstance(times, list) and [type(time) in (int, float) for time in times] == [True] * 2


class NoFolder(RunFolder):
    """For a process whose runs another one writes down."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"))

    @property
    def finished(self) -> bool:
        return False

    def save(self, state: State) -> None:
        pass

    def log(self, record: dict) -> None:
        pass

    def finish(self, *_) -> None:
        pass


def _line(record: dict) -> str:
    return json.dumps(storage.plain(record)) + "\n"


def other_configuration(path: Path, difference: str) -> str:
    return (
        f"{path} holds another configuration ({difference}); choose another "
        "--out, or pass --overwrite to replace it."
    )


def differing(found: dict, wanted: dict, where: str = "") -> str:
    """The first setting in which two configurations differ, in words; empty where none does."""
    wanted = json.loads(json.dumps(wanted))  # tuples are lists there
    for key in sorted(found.keys() | wanted.keys()):
        a, b = found.get(key), wanted.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            if inner := differing(a, b, f"{where}{key}."):
                return inner
        elif a != b:
            return f"{where}{key} is {a!r} there and {b!r} here"
    return ""


def folder_name(seeds: list[int]) -> str:
    return f"seeds-{seeds[0]}-{seeds[-1]}"


def seeds_of(path: Path) -> list[int] | None:
    """The seeds of a run folder, by its name."""
    match = re.fullmatch(r"seeds-(\d+)-(\d+)", path.name)
    return list(range(int(match[1]), int(match[2]) + 1)) if match else None
