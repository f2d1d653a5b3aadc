"""The relaxed sort on CUDA: the operators of ``../relaxed_sort.py``, by the kernels of
``relaxed_walks.py``."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .counts import cdiv, power_of_2
from .relaxed_walks import columns_kernel, running_kernel, slope_kernel, sort_kernel

STEPS = {torch.float32: 8, torch.float64: 2}  # of a walk before it looks whether it may stop
TILE = 64  # rows x features of a program, one warp: no warp waits for another's longer walk
SCAN = 128  # rows that a program adds up at once


class Layout(NamedTuple):
    """What the kernels are told of the sets, in the order of their arguments."""

    rows: int
    length: int  # rows of a slot, or of all packed sets of a replica
    batch: int  # packed sets of a replica
    searches: int  # bisections that find one of them
    apart: int  # how far, the offsets of two replicas; 0 where they are the same
    lengths: Tensor | None
    offsets: Tensor | None
    dim: int

    @property
    def count(self) -> int:
        """Sets of all replicas."""
        slots = self.rows // self.length
        return slots if self.offsets is None else slots * self.batch

    @property
    def empty(self) -> bool:
        return self.rows * self.dim == 0 or self.count == 0


def describe(values: Tensor, lengths: Tensor | None, offsets: Tensor | None) -> Layout:
    length, dim = values.shape[-2:]
    rows = values.shape[:-1].numel()
    batch = 0 if offsets is None else offsets.shape[-1] - 1
    apart = batch + 1 if offsets is not None and offsets.ndim == 2 else 0
    if lengths is not None:
        lengths = lengths.expand(values.shape[:2]).contiguous()
    if offsets is not None:
        offsets = offsets.contiguous()
    return Layout(rows, length, batch, batch.bit_length(), apart, lengths, offsets, dim)


def launch(kernel, sets: Layout, tensors: list[Tensor | None]) -> None:
    """Run a kernel on tiles of all rows and features."""
    width = min(power_of_2(sets.dim), 32)
    height = TILE // width
    steps = STEPS[tensors[0].dtype]
    grid = (cdiv(sets.rows, height) * cdiv(sets.dim, width),)
    kernel[grid](*tensors, *sets, height, width, steps, num_warps=1)


def launch_running(sets: Layout, sums: Tensor, running: Tensor) -> None:
    """Its programs are sets, not rows; 8 features are as much as memory hands out at once."""
    width = min(power_of_2(sets.dim), 8)
    grid = (sets.count * cdiv(sets.dim, width),)
    layout = (sets.length, sets.batch, sets.apart, sets.lengths, sets.offsets, sets.dim)
    running_kernel[grid](sums, running, *layout, SCAN, width, num_warps=4)


def sort(values: Tensor, x: Tensor, temperature: Tensor, normaliser, lengths, offsets):
    sets = describe(values, lengths, offsets)
    if sets.empty:
        return torch.zeros_like(values), torch.zeros_like(values)
    values, x = values.contiguous(), x.contiguous()
    result, normaliser = torch.empty_like(values), torch.empty_like(values)
    with torch.cuda.device_of(values):
        launch(sort_kernel, sets, [values, x, temperature, result, normaliser])
    return result, normaliser


def unsort(values, v, temperature, normaliser, lengths, offsets) -> Tensor:
    sets = describe(values, lengths, offsets)
    if sets.empty:
        return torch.zeros_like(values)
    values, v = values.contiguous(), (v / normaliser).contiguous()
    result = torch.empty_like(values)
    with torch.cuda.device_of(values):
        launch(columns_kernel, sets, [values, v, None, None, temperature, result, None, None])
    return result


def slope(*arguments) -> Tensor:
    return _slope(*arguments, unsorted=False)[0]


def pull(*arguments) -> tuple[Tensor, Tensor]:
    """The slope and P^T a, from one walk."""
    return _slope(*arguments, unsorted=True)


def _slope(values, a, x, projected, temperature, normaliser, lengths, offsets, unsorted: bool):
    sets = describe(values, lengths, offsets)
    if sets.empty:
        return torch.zeros_like(values), torch.zeros_like(values)
    a = a / normaliser
    values, a, x, projected = (t.contiguous() for t in (values, a, x, projected))
    sums, moments, running = (torch.empty_like(values, dtype=torch.float64) for _ in range(3))
    result, back = torch.empty_like(values), torch.empty_like(values) if unsorted else None
    with torch.cuda.device_of(values):
        launch(columns_kernel, sets, [values, a, x, projected, temperature, back, sums, moments])
        launch_running(sets, sums, running)
        launch(slope_kernel, sets, [values, sums, moments, running, temperature, result])
    return result, back
