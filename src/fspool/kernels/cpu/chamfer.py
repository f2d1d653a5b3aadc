"""The search of the Chamfer loss on the CPU: every pair, a piece at a time that stays in the cache.

numpy's argmin compares many numbers at once, torch's one after the other.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...functional.inputs import compute_dtype

PIECE = 1 << 16  # pairs


def nearest(a: Tensor, b: Tensor, mask: Tensor | None, cost: str) -> Tensor:
    dtype = compute_dtype(a, b)
    x, y = (t.detach().to(dtype).flatten(0, -3) for t in (a, b))
    channels = y.permute(2, 0, 1).contiguous().unsqueeze(2)  # (C, sets, 1, M)
    outside = None if mask is None else ~mask.flatten(0, -2).unsqueeze(1)
    index = np.zeros(x.shape[:2], np.int64)
    for sets, rows in _pieces(*x.shape[:2], y.shape[1]):
        costs = _costs(x[sets, rows], channels[:, sets], cost)
        if outside is not None:
            costs.masked_fill_(outside[sets], float("inf"))
        costs.numpy().argmin(-1, out=index[sets, rows])
    return torch.from_numpy(index).view(a.shape[:-1])


def _pieces(sets: int, n: int, m: int) -> list[tuple[slice, slice]]:
    """Some rows of some sets, one after the other."""
    if n * m == 0:
        return []
    rows = min(n, max(1, PIECE // m))
    many = max(1, PIECE // (rows * m))
    return [
        (slice(first, first + many), slice(row, row + rows))
        for first in range(0, sets, many)
        for row in range(0, n, rows)
    ]


def _costs(x: Tensor, channels: Tensor, cost: str) -> Tensor:
    """The summed costs of the pairs of x (sets, rows, C) with all of channels (C, sets, 1, M)."""
    total = None
    for own, others in zip(x.unbind(-1), channels, strict=True):
        difference = own.unsqueeze(-1) - others
        if cost == "squared":
            part = difference.square_()
        else:  # with s = |d| and t = min(s, 1): t (s - t / 2)
            size = difference.abs_()
            near = size.clamp(max=1)
            part = size.sub_(near, alpha=0.5).mul_(near)
        total = part if total is None else total.add_(part)
    return total
