"""Where a result comes from: machine, versions, commit."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import numpy
import torch

from .. import __version__


def describe(device: torch.device) -> dict:
    return {
        "device": device_name(device),
        "unit": unit(device),
        "threads": torch.get_num_threads(),
        "versions": {
            "fspool": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def unit(device: torch.device) -> str:
    """Tells devices of one name apart, and tells nothing else: times are shared out on each one."""
    own = ""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        own = getattr(properties, "uuid", device.index or 0)
    return hashlib.sha256(f"{platform.node()} {own}".encode()).hexdigest()[:12]


def commit() -> str | None:
    """The commit of the source tree that runs, with a + where it was changed; None elsewhere."""
    if known := os.environ.get("FSPOOL_COMMIT"):
        return known
    here = Path(__file__).parents[1]  # the package: a change in any room counts
    try:
        _git(here, "ls-files", "--error-unmatch", "lab/provenance.py")  # not some repository around
        name = _git(here, "rev-parse", "--short=12", "HEAD")
        return name + ("+" if _git(here, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
