"""The pools that FSPool is compared with, for the same layouts and with the same corner cases."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..functional.dispatch import on_device
from ..functional.inputs import compute_dtype
from ..layouts import Sets, leave_pooled
from ..sets import read


class _Pool(nn.Module):
    """Reads the layout, pools in at least float32 by ``self.pool``, gives back the dtype of x."""

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        sizes: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        sets, inner = read(x, mask=mask, sizes=sizes, offsets=offsets)
        y = self.pool(inner.to(compute_dtype(inner)), sets)
        return leave_pooled(sets, y.to(inner.dtype))


def _total(x: Tensor, sets: Sets) -> Tensor:
    """The sum over every set. On CUDA packed ones have a kernel: with knots of 1 it weighs nothing,
    and adds in a fixed order, which atomics would not."""
    operator = None if sets.layout == "padded" else on_device("pool_ranked", x)
    if operator is None:
        return sets.sum(sets.clear(x))
    ones = x.new_ones(1).expand(len(x), x.shape[-1], 2)
    return operator(x, ones, None, None, None, sets.offsets)


class SumPool(_Pool):
    """The sum of every feature over the set (Deep Sets, 2017); zeros for the empty set."""

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        return _total(x, sets)


class MeanPool(_Pool):
    """The mean of every feature over the set; zeros for the empty set."""

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        return _total(x, sets) / sets.sizes.clamp(min=1).unsqueeze(-1)


class MaxPool(_Pool):
    """The largest value of every feature in the set (PointNet, 2017); zeros for the empty set.

    Equal largest values share the gradient.
    """

    def pool(self, x: Tensor, sets: Sets) -> Tensor:
        if sets.layout == "padded":
            lowest = sets.clear(x, float("-inf"))
            if sets.shape[2] == 0:
                return sets.sum(x)
            y = lowest.amax(-2)
        else:
            groups, batch, _ = sets.shape
            ids = sets.set_ids.unsqueeze(-1).expand_as(x)
            y = x.new_full((groups, sets.bins, x.shape[-1]), float("-inf"))
            y = y.scatter_reduce(1, ids, sets.clear(x), "amax")[:, :batch]
        return torch.where((sets.sizes > 0).unsqueeze(-1), y, 0.0)
