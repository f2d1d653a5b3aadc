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

GRAIN = 1 << 15  # elements that torch gives to one thread, at least: chunks are for all threads,
# but small, since a walk goes over some eight arrays of a chunk many times
PATIENCE = 4  # steps between two looks at which rows may stop


class Step(NamedTuple):
    """Unnormalised entries of P that lie ``step`` columns from the diagonal, for some rows."""

    rows: slice
    columns: slice
    step: int
    entries: Tensor  # (sets, rows, features); overwrite it at will


def walk(s: Tensor, temperature: Tensor, inside: Tensor | None = None) -> Iterator[Step]:
    """All entries of P that matter for sorted s (sets, n, features), but for the diagonal: 1.

    Where a block is padded, ``inside (sets, n)`` are its elements: the rest is infinitely far away.
    """
    size = s.shape[1]
    gaps = (s[:, 1:] - s[:, :-1]) / temperature.to(s.dtype)  # negative: they add up to logits
    if inside is not None:
        gaps.masked_fill_(~inside[:, 1:, None], -math.inf)
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


def sort_block(s: Tensor, x: Tensor, temperature: Tensor, inside) -> tuple[Tensor, Tensor]:
    """P x and the sums of the unnormalised rows of P.

    Differences from a row's own x are added up: they are small, and nothing at ties.
    """
    total, normaliser = torch.zeros_like(x), torch.ones_like(x)
    buffer = torch.empty_like(x)
    for rows, columns, _, entries in walk(s, temperature, inside):
        normaliser[:, rows] += entries
        apart = torch.sub(x[:, columns], x[:, rows], out=buffer[:, rows])
        total[:, rows].addcmul_(entries, apart)
    return total.div_(normaliser).add_(x), normaliser


def unsort_block(
    s: Tensor, v: Tensor, normaliser: Tensor, temperature: Tensor, inside
) -> tuple[Tensor]:
    """P^T v."""
    v = v / normaliser
    total = v.clone()
    for rows, columns, _, entries in walk(s, temperature, inside):
        total[:, columns].addcmul_(entries, v[:, rows])
    return (total,)


def slope_block(
    s: Tensor,
    a: Tensor,
    x: Tensor,
    projected: Tensor,
    normaliser: Tensor,
    temperature: Tensor,
    inside: Tensor | None,
) -> tuple[Tensor]:
    """The gradient of a^T P(s) x to s.

    With G = dL/dlogits, the walk collects the column sums C_j of G_rj and K_j of (j - r) G_rj. The
    absolute differences of the definition then add running sums of C, which skip ties. Each row of
    G adds up to 0, so its diagonal is minus all the rest: as it would be computed by itself its
    rounding would grow in the running sums.
    """
    a = a / normaliser
    column, moment, buffer = torch.zeros_like(s), torch.zeros_like(s), torch.empty_like(s)
    for rows, columns, step, entries in walk(s, temperature, inside):
        part = torch.sub(x[:, columns], projected[:, rows], out=buffer[:, rows])
        part.mul_(a[:, rows]).mul_(entries)
        column[:, columns].add_(part)
        column[:, rows].sub_(part)
        moment[:, columns].add_(part, alpha=step)
    ds = (2 * moment + differences(s, column)) / temperature
    return (ds.to(s.dtype),)


def differences(s: Tensor, column: Tensor) -> Tensor:
    """What the slope has from the differences of sorted s (..., n, D), less 2 (j - r) G: the sums
    of columns of larger values less those of smaller ones, and a column times the skew of its ties.
    """
    before = torch.nn.functional.pad(column.double().cumsum(-2), (0, 0, 1, 0))
    first, last = tie_bounds(s)
    larger = before.gather(-2, first)
    smaller = before[..., -1:, :] - before.gather(-2, last + 1)
    skew = first + last - 2 * torch.arange(s.shape[-2])[:, None]
    return skew * column + (larger - smaller)


def tie_bounds(s: Tensor) -> tuple[Tensor, Tensor]:
    """For every element of sorted s (..., n, D) the first and last rank equal to it."""
    size = s.shape[-2]
    rank = torch.arange(size)[:, None].expand(s.shape)
    differs = s[..., 1:, :] != s[..., :-1, :]
    edge = differs.new_ones(*s.shape[:-2], 1, s.shape[-1])
    first = torch.where(torch.cat((edge, differs), -2), rank, 0).cummax(-2).values
    last = torch.where(torch.cat((differs, edge), -2), rank, size).flip(-2)
    return first, last.cummin(-2).values.flip(-2)


# --------------------------------------------------------------------------------------------------
# The operators of ../relaxed_sort.py


Padded = tuple[Tensor, float]  # by rank; what it holds where a block is padded


def _each_block(
    function, inputs: list[Padded], outputs: int, temperature, lengths, offsets
) -> list[Tensor]:
    """Run ``function`` over the blocks of the inputs; zeros where there is no element."""
    first, shape = inputs[0][0], inputs[0][0].shape
    arrays = [to_numpy(t) for t, _ in inputs]
    limit = GRAIN * max(2, torch.get_num_threads())
    chunks = plan(shape, None, lengths, offsets, limit, join=True)
    fill = None if covers(chunks, first) else 0
    results = [empty(shape, first.dtype, fill) for _ in range(outputs)]
    targets = [to_numpy(t) for t in results]
    for chunk in chunks:  # one by one: the torch operators inside use all threads
        blocks = [torch.from_numpy(np.ascontiguousarray(chunk.take(array))) for array in arrays]
        inside = None
        if chunk.sizes is not None:
            inside = torch.from_numpy(chunk.inside)
            for block, (_, value) in zip(blocks, inputs, strict=True):
                block.masked_fill_(~inside.unsqueeze(-1), value)
        done = function(*blocks, temperature, inside)
        for target, block in zip(targets, done, strict=True):
            chunk.put(target, block.numpy())
    return results


def _padded(values: Tensor, *others: Tensor, normaliser: Tensor | None = None) -> list[Padded]:
    """Values that are equal to none, zeros that add nothing, a divisor that does no harm."""
    inputs = [(values, math.nan), *((other, 0) for other in others)]
    return inputs if normaliser is None else [*inputs, (normaliser, 1)]


def sort(values: Tensor, x: Tensor, temperature: Tensor, normaliser, lengths, offsets):
    tail = temperature, lengths, offsets
    return tuple(_each_block(sort_block, _padded(values, x), 2, *tail))


def unsort(values, v, temperature, normaliser, lengths, offsets) -> Tensor:
    inputs = _padded(values, v, normaliser=normaliser)
    return _each_block(unsort_block, inputs, 1, temperature, lengths, offsets)[0]


def slope(values, a, x, projected, temperature, normaliser, lengths, offsets) -> Tensor:
    inputs = _padded(values, a, x, projected, normaliser=normaliser)
    return _each_block(slope_block, inputs, 1, temperature, lengths, offsets)[0]


def pull(values, a, x, projected, temperature, normaliser, lengths, offsets):
    tail = temperature, normaliser, lengths, offsets
    return slope(values, a, x, projected, *tail), unsort(values, a, *tail)
