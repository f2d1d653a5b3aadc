"""Peak memory that one forward and backward pass adds to that of its inputs.

On the CPU it is what the operating system counts (Linux), in a fresh process for every variant:
nothing that another variant freed can be used again unseen.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch

from .case import Case, Variant

TINY = (2, 3, 5)


def peak(case: Case, variant: Variant, device: str = "cpu") -> int:
    """Bytes."""
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(_peak, case, variant, device).result()


def _peak(case: Case, variant: Variant, device: str) -> int:
    """Imports, threads and first calls are paid for at a tiny shape."""
    variant.step(replace(case, shape=TINY).draw(variant.layout, 0, device))
    inputs = case.draw(variant.layout, 0, device)
    before = _restart_peak(device)
    variant.step(inputs)
    return _highest(device) - before


def _restart_peak(device: str) -> int:
    """Forget earlier peaks; return what is in use now."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _highest(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))
