"""A disk that is really full: a small tmpfs in a mount namespace of its own; it needs no root."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

NEW_USER, NEW_MOUNTS, REMOUNT = 0x10000000, 0x00020000, 32  # of linux/sched.h and linux/mount.h
PAGE = 4096  # what a tmpfs counts in

_libc = ctypes.CDLL(None, use_errno=True)


def mount(path: Path, pages: int, flags: int = 0) -> None:
    options = f"size={pages * PAGE}".encode()
    _checked(_libc.mount(b"none", str(path).encode(), b"tmpfs", flags, options))


def enlarge(path: Path) -> None:
    mount(path, 1 << 14, REMOUNT)


def in_own_mounts(function: Callable[[], dict]) -> dict | None:
    """What a function returns that may mount; None where the system does not allow it.

    It runs in a forked process, whose mounts nobody else sees, and which end with it.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        os.close(reading)
        os._exit(_isolated(function, writing))
    os.close(writing)
    with open(reading, "rb") as answer:
        content = answer.read()
    os.waitpid(pid, 0)
    if not content:
        raise RuntimeError("a trial with a disk of its own broke off; see above")
    return json.loads(content)


def _isolated(function: Callable[[], dict], writing: int) -> int:
    try:
        try:
            _unshare()
        except OSError:
            found = None
        else:
            found = function()
        os.write(writing, json.dumps(found).encode())
        return 0
    except BaseException:
        traceback.print_exc()
        return 1


def _unshare() -> None:
    user, group = os.getuid(), os.getgid()
    _checked(_libc.unshare(NEW_USER | NEW_MOUNTS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _checked(answer: int) -> None:
    if answer != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
