"""What the first call costs: a fresh process, and nothing in Triton's cache.

The processes run side by side, so that their times are upper bounds.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from . import chamfer, machine, pool, relaxed_sort
from .case import Case, Variant
from .timing import clock, wait

PROCESSES = 8


def calls() -> list[tuple[Case, Variant]]:
    """The package's variants of all hard shapes, and of the first one of the others."""
    cases = [*pool.cases("cuda"), relaxed_sort.cases("cuda")[0], chamfer.cases("cuda")[0]]
    return [(case, v) for case in cases for v in case.variants if v.name == "fspool"]


def run(path: Path | None) -> None:
    """Measure all, print every call when it is there, keep what there is."""
    print("\nfirst calls", flush=True)
    wanted, found = calls(), {}
    with ThreadPoolExecutor(PROCESSES) as threads:
        futures = {threads.submit(in_fresh_process, *call): i for i, call in enumerate(wanted)}
        for future in as_completed(futures):
            i = futures[future]
            if problem := future.exception():
                print(f"{wanted[i][0].title}: {problem}", flush=True)
                continue
            found[i] = future.result()
            print(line(found[i]), flush=True)
            if path is not None:
                write(path, [found[i] for i in sorted(found)])


def write(path: Path, results: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine.describe("cuda"), "calls": results}
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> dict:
    """Nothing where there is no file."""
    return json.loads(path.read_text()) if path.exists() else {}


def line(result: dict) -> str:
    kernels = ", ".join(f"{k['kernel']} {k['seconds']:.1f}" for k in result["kernels"])
    shape = ", ".join(str(result[axis]) for axis in "BDN")
    return (
        f"{result['benchmark']} ({shape}) {result['layout']}: "
        f"forward {result['forward_seconds']:.1f} s, backward {result['backward_seconds']:.1f} s, "
        f"again {result['again_seconds'] * 1e3:.1f} ms; kernels: {kernels or 'none'}"
    )


def in_fresh_process(case: Case, variant: Variant, device: str = "cuda") -> dict:
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_without_cache, case, variant, device).result()


def _without_cache(case: Case, variant: Variant, device: str) -> dict:
    with TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        return first_call(case, variant, device)


def first_call(case: Case, variant: Variant, device: str) -> dict:
    """Seconds of the first forward, of the first backward, and of both once more."""
    inputs = case.draw(variant.layout, 0, device)
    kernels = _listen() if device == "cuda" else []
    wait(inputs)
    begin = perf_counter()
    outputs = variant.forward(**inputs.leaves, **inputs.sets)
    wait(inputs)
    middle = perf_counter()
    torch.autograd.backward(outputs, inputs.upstream)
    wait(inputs)
    end = perf_counter()
    inputs.forget()
    return {
        "benchmark": case.benchmark,
        "layout": variant.layout,
        **dict(zip("BDN", case.shape, strict=True)),
        "forward_seconds": round(middle - begin, 3),
        "backward_seconds": round(end - middle, 3),
        "again_seconds": round(clock(variant, inputs), 6),
        "kernels": kernels,
    }


def _listen() -> list[dict]:
    """A list that gets every kernel that Triton compiles from now on.

    Triton itself, which builds a small C library once, is made ready before.
    """
    import triton

    kernels = []

    def compiled(*, src, times, cache_hit, **_) -> None:
        seconds = round(times.total / 1e6, 3)  # it counts microseconds
        kernels.append({"kernel": src.name, "seconds": seconds, "cached": cache_hit})

    triton.runtime.driver.active.get_current_target()
    triton.knobs.compilation.listener = compiled
    return kernels
