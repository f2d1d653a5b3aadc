"""Examples for a reader, one after another, each with a limit on time and memory."""

from __future__ import annotations

import io
import resource
import signal
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings

from .readers import Reader, readers

SECONDS = 30  # for one example
SLICE = 40  # examples of a reader, then it is another one's turn
ROOM = 1 << 30  # bytes that a reader may ask for, beyond what the process has


class Hang(BaseException):
    """It takes too long."""


@contextmanager
def limits():
    """A reader that wants more memory gets a MemoryError, one that takes too long a Hang."""

    def late(*_) -> None:
        raise Hang(f"no end after {SECONDS} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def try_one(reader: Reader, files: dict[str, bytes]) -> bool:
    """Was it accepted? Anything but a valid value and the documented error is raised."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "folder"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        try:
            with limits(), redirect_stdout(io.StringIO()):
                reader.read(folder)
            return True
        except reader.errors as error:
            text = str(error)
            assert text and "\n" not in text and "Traceback" not in text, f"no sentence: {text!r}"
            return False


def fuzz(reader: Reader, examples: int, seed: int) -> tuple[int, int]:
    """How many were tried, and how many accepted; a finding is raised as it is."""
    counts = [0, 0]

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(reader.files)
    def check(files: dict[str, bytes]) -> None:
        counts[0] += 1
        counts[1] += try_one(reader, files)

    check()
    return counts[0], counts[1]


def work(only: str, seconds: float, turn: int) -> dict[str, list]:
    """Of every reader: examples, those accepted, findings, and its part of the seconds."""
    torch.set_num_threads(1)
    chosen = [reader for reader in readers() if only in reader.name]
    rows = {reader.name: [0, 0, 0, 0.0] for reader in chosen}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        # Whoever had the least time so far: slow readers get as much as fast ones.
        reader = min(chosen, key=lambda reader: rows[reader.name][3])
        take_turn(reader, rows[reader.name], turn)
        turn += 1
    return rows


def take_turn(reader: Reader, row: list, seed: int) -> None:
    began = time.monotonic()
    try:
        tried, accepted = fuzz(reader, SLICE, seed)
        row[0] += tried
        row[1] += accepted
    except KeyboardInterrupt:
        raise
    except BaseException:
        row[0] += SLICE
        row[2] += 1
        print(
            f"{reader.name}: a finding, again with --only {reader.name!r} --seed {seed}",
            file=sys.stderr,
        )
        traceback.print_exc()
        sys.stderr.flush()
    row[3] += time.monotonic() - began
