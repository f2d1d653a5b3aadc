"""The command in a process of its own, forked from one that has imported everything."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import scipy.optimize  # noqa: F401 - what a run imports late, so that each fork has it already
import torch
import torch._dynamo  # noqa: F401

from fspool import cli

PATIENCE = 120.0  # seconds in which a call has to end

torch.set_num_threads(1)


class Call:
    """``fspool`` with these arguments; what it says goes to a file."""

    def __init__(
        self,
        arguments: Sequence[object],
        log: Path,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self.log, self.code = log, None
        sys.stdout.flush()
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_become([str(word) for word in arguments], log, prepare, writing))
        os.close(writing)
        os.read(reading, 1)  # from now on it can be stopped
        os.close(reading)

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """To it and the processes that it started, as a terminal does."""
        if not self.ended():
            os.killpg(self.pid, number)

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, patience: float = PATIENCE) -> int:
        """Its exit code, that of a signal negative."""
        deadline = time.monotonic() + patience
        while not self.ended():
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
                raise TimeoutError(f"no end after {patience:.0f} s: {self.said[-500:]}")
            time.sleep(0.002)
        return self.code


def _become(arguments: list[str], log: Path, prepare: Callable[[], object], ready: int) -> int:
    """Be that command, up to its exit code."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # of a shell's job it is ignored
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["fspool", *arguments]
    try:
        prepare()
        os.close(ready)
        cli.main()
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
