"""The relaxed sort on the CPU: P is a band around the diagonal, walked outwards and never stored.

Of values s in descending order with gaps :math:`g_j = s_j - s_{j+1}`, row r of P has the logit 0 on
its diagonal and, m columns to the right of it,
:math:`-\\frac{1}{\\tau} \\sum_{t=0}^{m-1} (2t + 1)\\, g_{r+t}`; to the left it is the mirror image.
Both fall about quadratically, so a walk of some :math:`2 \\sqrt n` steps meets every entry that
floating point can tell from zero. Memory is linear in n even when the walk has to go all the way,
as for features whose values are all equal. No large terms cancel, unlike in the textbook formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .chunks import covers, empty, plan, to_numpy

LIMIT = 1 << 18  # elements of a chunk: a walk goes over some eight arrays of this size many times
PATIENCE = 4  # steps between two looks at which rows may stop


class Step(NamedTuple):
    """Unnormalised entries of P that lie ``step`` columns from the diagonal, for some rows."""

    rows: slice
    columns: slice
    step: int
    entries: Tensor  # (sets, rows, features); overwrite it at will


def walk(s: Tensor, temperature: Tensor) -> Iterator[Step]:
    """All entries of P that matter for sorted s (sets, n, features), but for the diagonal: 1."""
    size = s.shape[1]
    gaps = (s[:, 1:] - s[:, :-1]) / temperature.to(s.dtype)  # negative: they add up to logits
    right, left, buffer = torch.zeros_like(s), torch.zeros_like(s), torch.empty_like(s)
    lowest = math.log(torch.finfo(s.dtype).eps) - math.log(max(size, 1))
    first, last = 0, size  # rows whose entries still matter
    for m in range(1, size):
        sides = ((right, first, min(last, size - m), m), (left, max(first, m), last, -m))
        for logits, start, stop, step in sides:
            if start >= stop:
                continue
            rows, columns = slice(start, stop), slice(start + step, stop + step)
            gap = slice(start + m - 1, stop + m - 1) if step > 0 else columns
            logits[:, rows].add_(gaps[:, gap], alpha=2 * m - 1)
            yield Step(rows, columns, step, torch.exp(logits[:, rows], out=buffer[:, rows]))
        if m % PATIENCE == 0:
            first, last = _window(right, left, m, first, last, lowest)


def _window(
    right: Tensor, left: Tensor, m: int, first: int, last: int, lowest: float
) -> tuple[int, int]:
    """The rows that the walk has to go on with: the others have fallen below what counts."""
    size = right.shape[1]
    best = right.new_full((size,), -math.inf)
    stop, start = min(last, size - m), max(first, m)
    if first < stop:
        best[first:stop] = right[:, first:stop].amax((0, 2))
    if start < last:
        best[start:last] = best[start:last].maximum(left[:, start:last].amax((0, 2)))
    alive = (~(best < lowest)).nonzero().flatten().tolist()  # NaN stays alive
    return (alive[0], alive[-1] + 1) if alive else (0, 0)


def sort_block(s: Tensor, x: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """P x and the sums of the unnormalised rows of P."""
    total, normaliser = x.clone(), torch.ones_like(x)
    for rows, columns, _, entries in walk(s, temperature):
        normaliser[:, rows] += entries
        total[:, rows].addcmul_(entries, x[:, columns])
    return total.div_(normaliser), normaliser


def unsort_block(s: Tensor, v: Tensor, temperature: Tensor, normaliser: Tensor) -> Tensor:
    """P^T v."""
    v = v / normaliser
    total = v.clone()
    for rows, columns, _, entries in walk(s, temperature):
        total[:, columns].addcmul_(entries, v[:, rows])
    return total


def slope_block(
    s: Tensor, a: Tensor, x: Tensor, projected: Tensor, temperature: Tensor, normaliser: Tensor
) -> Tensor:
    """The gradient of a^T P(s) x to s.

    With G = dL/dlogits, the walk collects the column sums C_j of G_rj and K_j of (j - r) G_rj. The
    absolute differences of the definition then add running sums of C, which skip ties.
    """
    a = a / normaliser
    d = a * projected
    column = a * x - d
    moment = torch.zeros_like(s)
    buffer = torch.empty_like(s)
    for rows, columns, step, entries in walk(s, temperature):
        part = torch.mul(a[:, rows], x[:, columns], out=buffer[:, rows])
        part.sub_(d[:, rows]).mul_(entries)
        column[:, columns].add_(part)
        moment[:, columns].add_(part, alpha=step)
    before = torch.nn.functional.pad(column.double().cumsum(1), (0, 0, 1, 0))
    first, last = tie_bounds(s)
    larger = before.gather(1, first)
    smaller = before[:, -1:] - before.gather(1, last + 1)
    skew = first + last - 2 * torch.arange(s.shape[1])[:, None]
    return ((2 * moment + skew * column + (larger - smaller)) / temperature).to(s.dtype)


def tie_bounds(s: Tensor) -> tuple[Tensor, Tensor]:
    """For every element of sorted s (sets, n, features) the first and last rank equal to it."""
    size = s.shape[1]
    rank = torch.arange(size)[:, None].expand(s.shape)
    differs = s[:, 1:] != s[:, :-1]
    edge = differs.new_ones(s.shape[0], 1, s.shape[2])
    first = torch.where(torch.cat((edge, differs), 1), rank, 0).cummax(1).values
    last = torch.where(torch.cat((differs, edge), 1), rank, size).flip(1).cummin(1).values.flip(1)
    return first, last


# --------------------------------------------------------------------------------------------------
# The operators of ../relaxed_sort.py


def _each_block(function, inputs: list[Tensor], outputs: int, lengths, offsets) -> list[Tensor]:
    """Run ``function`` over the blocks of the inputs; zeros where there is no element."""
    shape = inputs[0].shape
    arrays = [to_numpy(t) for t in inputs]
    chunks = plan(shape, None, lengths, offsets, LIMIT)
    fill = None if covers(chunks, inputs[0]) else 0
    results = [empty(shape, inputs[0].dtype, fill) for _ in range(outputs)]
    targets = [to_numpy(t) for t in results]
    for chunk in chunks:  # one by one: the torch operators inside use all threads
        blocks = [np.ascontiguousarray(chunk.take(array)) for array in arrays]
        done = function(*map(torch.from_numpy, blocks))
        for target, block in zip(targets, done, strict=True):
            chunk.put(target, block.numpy())
    return results


def sort(values: Tensor, x: Tensor, temperature: Tensor, normaliser, lengths, offsets):
    def function(s, x):
        return sort_block(s, x, temperature)

    return tuple(_each_block(function, [values, x], 2, lengths, offsets))


def unsort(values, v, temperature, normaliser, lengths, offsets) -> Tensor:
    def function(s, v, z):
        return [unsort_block(s, v, temperature, z)]

    return _each_block(function, [values, v, normaliser], 1, lengths, offsets)[0]


def slope(values, a, x, projected, temperature, normaliser, lengths, offsets) -> Tensor:
    def function(s, a, x, p, z):
        return [slope_block(s, a, x, p, temperature, z)]

    return _each_block(function, [values, a, x, projected, normaliser], 1, lengths, offsets)[0]


def pull(values, a, x, projected, temperature, normaliser, lengths, offsets):
    tail = temperature, normaliser, lengths, offsets
    return slope(values, a, x, projected, *tail), unsort(values, a, *tail)
