"""Seconds of a forward and backward pass: interleaved rounds, medians."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from . import replays
from .case import Case, Inputs, Variant
from .replays import Times


def measure(case: Case, rounds: int, device: str = "cpu") -> tuple[Times, Times]:
    """The median of every variant, and on CUDA, where the first is a graph's, of eager calls.

    On the CPU every round has fresh inputs and runs all variants, so that they share its weather.
    """
    if device == "cuda":
        return replays.measure(case, rounds)
    seconds: dict[Variant, list[float]] = {variant: [] for variant in case.variants}
    layouts = {variant.layout for variant in case.variants}
    for seed in range(rounds + 1):
        inputs = {layout: case.draw(layout, seed) for layout in layouts}
        for variant, times in seconds.items():
            times.append(clock(variant, inputs[variant.layout]))
    medians = {variant: median(times[1:]) for variant, times in seconds.items()}  # the first warms
    return medians, {}


def clock(variant: Variant, inputs: Inputs) -> float:
    """One call, from asking for it to its end."""
    wait(inputs)
    start = perf_counter()
    variant.step(inputs)
    wait(inputs)
    stop = perf_counter()
    inputs.forget()
    return stop - start


def wait(inputs: Inputs) -> None:
    if inputs.upstream[0].is_cuda:
        torch.cuda.synchronize()
