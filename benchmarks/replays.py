"""Seconds of a forward and backward pass on CUDA: replays of a recorded graph, and eager calls.

A replay shows what the device has to do, an eager call also what the host needs to ask for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from statistics import median

import torch

from .case import Case, Inputs, Variant

STEPS = 4  # in one graph, and in a row of eager calls
SPAN = 2e-3  # seconds that a measurement lasts at least, so that its ends do not count
REPEATS = 100  # at most

Times = dict[Variant, float]


def measure(case: Case, rounds: int) -> tuple[Times, Times]:
    """The medians of replays, and of eager calls; a variant that cannot be recorded has no first.

    Each round runs all of them, so that they share its weather.
    """
    sets = {layout: rotation(case, layout) for layout in {v.layout for v in case.variants}}
    stream = torch.cuda.Stream()
    graphs = {v: record(v, sets[v.layout], stream) for v in case.variants}
    ways = {("graph", v): graph.replay for v, graph in graphs.items() if graph is not None}
    if not case.brief:
        ways |= {("eager", v): partial(steps, v, sets[v.layout]) for v in case.variants}
    found = interleave(ways, rounds)
    return tuple({v: t for (kind, v), t in found.items() if kind == k} for k in ("graph", "eager"))


def rotation(case: Case, layout: str) -> list[Inputs]:
    """Inputs to take turns with, since small ones would be found in the cache the next time."""
    first = case.draw(layout, 0, "cuda")
    cache = torch.cuda.get_device_properties("cuda").L2_cache_size
    count = min(STEPS, ceil(cache / first.nbytes))
    return [first, *(case.draw(layout, seed, "cuda") for seed in range(1, count))]


def steps(variant: Variant, sets: list[Inputs]) -> None:
    """A gradient is always written, never added to the last one's."""
    for i in range(STEPS):
        inputs = sets[i % len(sets)]
        inputs.forget()
        variant.step(inputs)


def record(
    variant: Variant, sets: list[Inputs], stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph | None:
    """A graph of all steps, or None where there can be none: something waits for the device."""
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):  # what is chosen and compiled at first calls
            steps(variant, sets)
            steps(variant, sets)
        with torch.cuda.graph(graph, stream=stream):
            steps(variant, sets)
    except RuntimeError as problem:
        print(f"{variant.name}, {variant.layout}: no graph: {_first_line(problem)}", flush=True)
        return None
    finally:
        for inputs in sets:
            inputs.forget()
        torch.cuda.synchronize()
    return graph


def interleave(ways: dict[tuple, Callable], rounds: int) -> dict[tuple, float]:
    """Median seconds of a step, for every way to make STEPS of them."""
    for go in ways.values():  # the first call allocates
        go()
    repeats = {way: min(REPEATS, ceil(SPAN / clock(go, 1))) for way, go in ways.items()}
    times = {way: [] for way in ways}
    for _ in range(rounds):
        for way, go in ways.items():
            times[way].append(clock(go, repeats[way]) / STEPS)
    return {way: median(found) for way, found in times.items()}


def clock(go: Callable, repeats: int) -> float:
    """Seconds of one call among several in a row."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        go()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / 1e3 / repeats


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]
