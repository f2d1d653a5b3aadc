"""The columns that say where and with what a measurement was made."""

from __future__ import annotations

import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version

import numpy
import torch

import fspool
from fspool.lab.provenance import device_name


def describe(device: str = "cpu") -> dict[str, str]:
    return {
        "device": device,
        "machine": device_name(torch.device(device)),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "triton": _triton(),
        "fspool": fspool.__version__,
        "date": date.today().isoformat(),
    }


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""
