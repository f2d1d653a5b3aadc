"""Seconds of a forward and backward pass: interleaved rounds on fresh inputs, medians."""

from __future__ import annotations

from statistics import median
from time import perf_counter

import torch

from .case import Case, Inputs, Variant


def measure(case: Case, rounds: int, device: str = "cpu") -> dict[Variant, float]:
    """The median of every variant. Each round runs all of them, so that they share its weather."""
    seconds: dict[Variant, list[float]] = {variant: [] for variant in case.variants}
    layouts = {variant.layout for variant in case.variants}
    for seed in range(rounds + 1):
        inputs = {layout: case.draw(layout, seed, device) for layout in layouts}
        for variant, times in seconds.items():
            times.append(clock(variant, inputs[variant.layout]))
    return {variant: median(times[1:]) for variant, times in seconds.items()}  # the first warms up


def clock(variant: Variant, inputs: Inputs) -> float:
    cuda = inputs.upstream[0].is_cuda
    if cuda:
        torch.cuda.synchronize()
    start = perf_counter()
    variant.step(inputs)
    if cuda:
        torch.cuda.synchronize()
    stop = perf_counter()
    inputs.forget()
    return stop - start
