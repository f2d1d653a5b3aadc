"""One trial: a folder of runs that is disturbed, and the questions asked of it afterwards."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fspool import storage

from .command import Call
from .disk import PAGE

CELLS = ("fspool-n2", "mlp-chamfer-n2", "random-n2")
RUN = ["run", "polygons", "--seeds", 2, "--device", "cpu", "--save-every", 0]
RUN += [word for name in CELLS for word in ("--only", name)]
for setting in ("steps=192", "evaluation_sets=8", "batch=2"):
    RUN += ["--set", setting]
FILES = ("result.json", "model.safetensors", "arrays.safetensors", "metrics.jsonl")
TITLE = "Rotating polygons"
STOPPED = "The same command goes on"


@dataclass
class Undisturbed:
    """What comes out where nothing goes wrong."""

    out: Path
    tables: str
    seconds: float
    pages: int  # of a disk, for all that is left in the end


@dataclass
class Trial:
    """Collects what is found; each entry is a sentence."""

    folder: Path
    random: random.Random
    expected: Undisturbed
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    calls: int = 0

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def groups(self) -> list[Path]:
        return sorted(self.out.glob("*/seeds-*"))

    # ----------------------------------------------------------------------------------------------
    # Calls

    def call(self, *more: object, prepare: Callable[[], object] = lambda: None) -> Call:
        self.calls += 1
        options = {"--workers": 1} if "--workers" not in more else {}
        words = [*RUN, *more, *(word for pair in options.items() for word in pair)]
        words += [] if "--page" in more else ["--no-page"]
        return Call([*words, "--out", self.out], self.log(), prepare)

    def log(self) -> Path:
        return self.folder / f"said-{self.calls}.txt"

    def stop(self, number: int) -> Call:
        """Stop a run at a random moment; one that was over by then does not count."""
        for _ in range(50):
            shutil.rmtree(self.out, ignore_errors=True)
            call = self.call()
            time.sleep(self.random.random() * self.expected.seconds)
            call.signal(number)
            if call.wait() != 0:
                return call
        raise RuntimeError("the run is always over before it is stopped")

    def finish(self, *more: object) -> None:
        """Undisturbed, as something that is to be damaged."""
        call = self.call(*more)
        if call.wait():
            raise RuntimeError(call.said)

    def resume(self, *more: object, names: tuple[Path, ...] = ()) -> None:
        """The same command again, and then all questions; files that it has to speak of."""
        before = work_in(self.groups)
        call = self.call(*more)
        if call.wait() != 0:
            self.lost.append(f"the same command again ends with {call.code}: {last_line(call)}")
        self.judge_sentences(call, names)
        self.judge_work(before)
        self.judge_numbers(call)

    # ----------------------------------------------------------------------------------------------
    # Questions

    def judge_sentences(self, call: Call, names: tuple[Path, ...] = ()) -> None:
        """No trace; where something went wrong, a sentence in the end."""
        if "Traceback (most recent call last)" in call.said:
            self.unclear.append(f"a trace: {last_line(call)}")
        if (call.code or 0) > 0 and not last_line(call).endswith("."):
            self.unclear.append(f"no sentence: {last_line(call)!r}")
        for path in names:
            if str(path) not in call.said:
                self.unclear.append(f"nothing about {path.name}: {call.said[:200]!r}")

    def judge_stop(self, call: Call, number: int) -> None:
        """Whoever stops a run is told how it goes on."""
        if self.expected.tables in call.said or not self.out.exists():
            return  # all was done, or nothing begun
        self.judge_sentences(call)
        if call.code != 128 + number or STOPPED not in call.said:
            self.unclear.append(f"stopped with {call.code}: {last_line(call)!r}")

    def judge_work(self, before: Work) -> None:
        for group, result in before.finished.items():
            if identity(group / "result.json") != result:
                self.lost.append(f"{group.name} was finished, and was made again")
        for group, step in before.reached.items():
            first = storage.read_json(group / "provenance.json")["steps"][0]
            if first < step:
                self.lost.append(f"{group.name} had a state of step {step}, and began at {first}")

    def judge_numbers(self, call: Call | None = None) -> None:
        """Equal to the undisturbed run: files byte by byte, and the tables that are printed."""
        for path in sorted(self.expected.out.glob("*/seeds-*/*")):
            own = self.out / path.relative_to(self.expected.out)
            if path.name in FILES and (not own.exists() or own.read_bytes() != path.read_bytes()):
                self.wrong.append(f"{own.parent.parent.name}/{own.name} is not the same")
        for path in self.out.glob("*/seeds-*/.*.part"):
            self.wrong.append(f"{path} is left")
        if call is not None and self.expected.tables not in call.said:
            self.wrong.append("the tables are not the same")


@dataclass
class Work:
    """What must not be done again."""

    finished: dict[Path, tuple]  # groups, and which file their result is
    reached: dict[Path, int]  # other groups, and the step of their last whole state


def work_in(groups: list[Path]) -> Work:
    found = Work({}, {})
    for group in groups:
        if whole(group / "result.json", storage.read_json):
            found.finished[group] = identity(group / "result.json")
        elif states := [whole(path, storage.read_tensors) for path in group.glob("state-*.*s")]:
            found.reached[group] = max(state[1]["step"] if state else 0 for state in states)
    return found


def whole(path: Path, reader: Callable):
    try:
        return reader(path)
    except (OSError, storage.Damaged):
        return None


def identity(path: Path) -> tuple | None:
    return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None


def last_line(call: Call) -> str:
    return (call.said.strip().splitlines() or [""])[-1]


def undisturbed(folder: Path) -> Undisturbed:
    """Twice, since the first one also warms the disk; the second says how long it takes."""
    for name in ("first", "second"):
        trial = Trial(folder / name, random.Random(0), None)
        trial.folder.mkdir(parents=True)
        began = time.monotonic()
        trial.finish()
        seconds = time.monotonic() - began
    said = (trial.folder / "said-1.txt").read_text()
    sizes = [path.stat().st_size for path in trial.out.rglob("*") if path.is_file()]
    pages = sum(-(-size // PAGE) for size in sizes)
    found = Undisturbed(trial.out, said[said.index(TITLE) :], seconds, pages)
    trial = Trial(folder / "first", random.Random(0), found)
    trial.judge_numbers()
    if trial.wrong:
        raise RuntimeError(f"two undisturbed runs differ: {trial.wrong}")
    return found
