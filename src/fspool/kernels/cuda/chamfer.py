"""The nearest element of another set: all pairs are looked at, and none of their costs is stored.

A program has a few rows of a, and its threads share out the columns, the rows of b, a block at a
time. Every thread remembers the best of its own columns, so they meet only once, at the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import cdiv, power_of_2

RESIDENT = 16  # channels up to which the rows of a stay in registers
NARROW = 4  # channels up to which b is read as it lies: beyond, neighbours are too far apart
SHORT = 256  # columns up to which one warp is enough


def nearest(a: Tensor, b: Tensor, mask: Tensor | None, cost: str) -> Tensor:
    """For every row of a (..., N, C) the number of the nearest row of b (..., M, C), (..., N).

    mask (..., M) says which rows of b are elements. Ties and NaN as in ``torch.argmin``.
    """
    n, m, channels = a.shape[-2], b.shape[-2], a.shape[-1]
    if m == 0:
        return a.new_zeros(a.shape[:-1], dtype=torch.long)
    index = a.new_empty(a.shape[:-1], dtype=torch.long)
    if index.numel() == 0:
        return index
    flip = channels > NARROW
    step = channels if channels <= RESIDENT else 8  # channels in one go
    rows, columns, warps = _tile(n, m, step)
    with torch.cuda.device_of(a):
        _nearest[(index.numel() // n * cdiv(n, rows),)](
            a.contiguous(),
            (b.mT if flip else b).contiguous(),
            None if mask is None else mask.contiguous(),
            index,
            n,
            m,
            CHANNELS=channels,
            STEP=step,
            FLIP=flip,
            HUBER=cost == "huber",
            DOUBLE=torch.float64 in (a.dtype, b.dtype),
            ROWS=rows,
            COLUMNS=columns,
            num_warps=warps,
        )
    return index


def _tile(n: int, m: int, step: int) -> tuple[int, int, int]:
    """Rows of a, columns, and warps of a program.

    A column a thread: what it reads of b is where it is needed, and meets every row. Of the rows a
    thread holds 64 numbers, and never runs out of registers.
    """
    warps = 1 if m <= SHORT else 4
    rows = min(16, 64 // power_of_2(step), power_of_2(n))
    return rows, min(32 * warps, power_of_2(m)), warps


@triton.jit
def _channel_cost(difference, HUBER: tl.constexpr):
    if HUBER:
        size = tl.abs(difference)
        inner = tl.minimum(size, 1.0)
        cost = inner * (size - 0.5 * inner)  # half the square below 1, size - 0.5 above
    else:
        cost = difference * difference
    return cost


@triton.jit
def _add_channels(total, a, b, stride, COUNT: tl.constexpr, HUBER: tl.constexpr):
    for c in tl.static_range(COUNT):
        x = tl.load(a + c).to(total.dtype)
        y = tl.load(b + c * stride).to(total.dtype)
        total += _channel_cost(x[:, None] - y[None, :], HUBER)
    return total


@triton.jit(do_not_specialize=["n", "m"])
def _nearest(
    a,
    b,
    mask,
    index,
    n,
    m,
    CHANNELS: tl.constexpr,
    STEP: tl.constexpr,
    FLIP: tl.constexpr,
    HUBER: tl.constexpr,
    DOUBLE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    dtype: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    blocks = tl.cdiv(n, ROWS)
    which = (tl.program_id(0) // blocks).to(tl.int64)  # of the pairs of sets
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, COLUMNS)
    # Past the end the last row is read again: what comes of it is thrown away.
    a += (which * n + tl.minimum(row, n - 1)) * CHANNELS
    b += which * m * CHANNELS
    stride = m.to(tl.int64) if FLIP else 1
    best = tl.full((ROWS, COLUMNS), float("inf"), dtype)
    found = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(0, m, COLUMNS):
        column = tl.minimum(start + lane, m - 1)
        valid = start + lane < m
        if mask is not None:
            valid &= tl.load(mask + which * m + column) != 0
        y = b + (column if FLIP else column.to(tl.int64) * CHANNELS)
        total = tl.zeros((ROWS, COLUMNS), dtype)
        for c in range(0, CHANNELS // STEP * STEP, STEP):
            total = _add_channels(total, a + c, y + c * stride, stride, STEP, HUBER)
        REST: tl.constexpr = CHANNELS % STEP
        c = CHANNELS - REST
        total = _add_channels(total, a + c, y + c * stride, stride, REST, HUBER)
        # A maximum that forgets NaN: it becomes -1, below every cost, and what is no element
        # becomes infinity, NaN or not.
        floor = tl.where(valid, -1.0, float("inf")).to(dtype)
        total = tl.maximum(total, floor[None, :])
        better = total < best  # the first of equal ones stays
        best = tl.where(better, total, best)
        found = tl.where(better, start, found)
    least = tl.min(best, 1)
    number = tl.where(best == least[:, None], found + lane[None, :], m)
    tl.store(index + which * n + row, tl.min(number, 1).to(tl.int64), mask=row < n)
