"""Peak memory that one forward and backward pass adds to that of its inputs.

On the CPU it is what the operating system counts (Linux), in a fresh process for every variant:
nothing that another variant freed can be used again unseen. On CUDA torch counts what tensors
take, so that one process serves all.
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
    if device == "cuda":
        return _cuda_peak(case, variant)
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        return fresh.submit(_cpu_peak, case, variant).result()


def _cuda_peak(case: Case, variant: Variant) -> int:
    inputs = case.draw(variant.layout, 0, "cuda")
    variant.step(inputs)  # the first one may compile, and try things out
    inputs.forget()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    variant.step(inputs)
    return torch.cuda.max_memory_allocated() - before


def _cpu_peak(case: Case, variant: Variant) -> int:
    """Imports, threads and first calls are paid for at a tiny shape."""
    variant.step(replace(case, shape=TINY).draw(variant.layout, 0))
    inputs = case.draw(variant.layout, 0)
    Path("/proc/self/clear_refs").write_text("5")  # forget earlier peaks
    before = _status("VmRSS")
    variant.step(inputs)
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field + ":"))
