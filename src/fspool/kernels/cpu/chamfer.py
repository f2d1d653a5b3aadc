"""The search of the Chamfer loss on the CPU: every pair, a piece at a time that stays in the cache.

numpy's argmin compares many numbers at once, torch's one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...functional.inputs import compute_dtype
from .chunks import run, scratch

PIECE = 1 << 16  # pairs


class Piece(NamedTuple):
    """Some rows of some sets."""

    sets: slice
    rows: slice


def nearest(a: Tensor, b: Tensor, mask: Tensor | None, cost: str) -> Tensor:
    dtype = compute_dtype(a, b)
    x, y = (t.detach().to(dtype).flatten(0, -3).numpy() for t in (a, b))
    outside = None if mask is None else ~mask.flatten(0, -2).numpy()[:, None]
    index = np.zeros(x.shape[:2], np.int64)
    channels = np.ascontiguousarray(y.transpose(2, 0, 1)[:, :, None])  # (C, sets, 1, M)

    def work(pieces: list[Piece]) -> None:
        for sets, rows in pieces:
            costs = _costs(x[sets, rows], channels[:, sets], cost)
            if outside is not None:
                np.copyto(costs, np.inf, where=outside[sets])
            costs.argmin(-1, out=index[sets, rows])

    pieces = _pieces(*x.shape[:2], y.shape[1])
    threads = min(len(pieces), torch.get_num_threads())
    run(work, [pieces[first::threads] for first in range(threads)])
    return torch.from_numpy(index).view(a.shape[:-1])


def _pieces(sets: int, n: int, m: int) -> list[Piece]:
    if n * m == 0:
        return []
    rows = min(n, max(1, PIECE // m))
    many = max(1, PIECE // (rows * m))
    return [
        Piece(slice(first, first + many), slice(row, row + rows))
        for first in range(0, sets, many)
        for row in range(0, n, rows)
    ]


def _costs(x: np.ndarray, channels: np.ndarray, cost: str) -> np.ndarray:
    """The summed costs of the pairs of x (sets, rows, C) with all of channels (C, sets, 1, M)."""
    shape = (*x.shape[:2], channels.shape[-1])
    total, part, other = (scratch(name, shape, x.dtype) for name in ("keys", "low", "weights"))
    for c, y in enumerate(channels):
        out = part if c else total
        np.subtract(x[..., c, None], y, out=out)
        if cost == "squared":
            np.multiply(out, out, out=out)
        else:  # with s = |d| and t = min(s, 1): t (s - t / 2)
            np.abs(out, out=out)
            np.minimum(out, 1, out=other)
            out -= other / 2
            out *= other
        if c:
            total += part
    return total
