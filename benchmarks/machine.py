"""The columns that say where and with what a measurement was made."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path

import numpy
import torch

import fspool


def describe(device: str = "cpu") -> dict[str, str]:
    return {
        "device": device,
        "machine": torch.cuda.get_device_name() if device == "cuda" else _cpu(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "fspool": fspool.__version__,
        "date": date.today().isoformat(),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
