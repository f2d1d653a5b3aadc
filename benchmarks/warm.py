"""Compile what a run needs in processes side by side, into the caches that they leave on disk.

Most of the time of a run would go into compilers that use one core; the device is scarce.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from time import perf_counter

from .case import Case

PROCESSES = 8
COMPILE = ("fspool", "compiled")


def up(cases: list[Case]) -> None:
    """A step of everything that compiles. What fails here will fail, and be reported, later."""
    alone()
    if len(cases) < 4:  # the processes start no faster than that compiles
        return
    start = perf_counter()
    workers = min(PROCESSES, len(cases))
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=alone) as pool:
        problems = sum(
            1 for future in [pool.submit(_steps, c) for c in cases] if future.exception()
        )
    took = perf_counter() - start
    print(f"compiled {len(cases)} cases, {problems} failed: {took:.0f} s", flush=True)


def alone() -> None:
    """No compile workers beside this process: they would disturb its clock."""
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1


def _steps(case: Case) -> None:
    for variant in case.variants:
        if variant.name in COMPILE:
            variant.step(case.draw(variant.layout, 0, "cuda"))
