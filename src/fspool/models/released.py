"""The relaxed pool and unpool as in the released code of the paper, to see what its padding costs.

Padding is pushed below everything else by adding -99999 to it, and then sorted with the rest, by
dense matrices in the precision of x. The logits of NeuralSort are sums of differences, which are
then so large that float32 has no digits left for the elements. How large depends on how much there
is of it: sets are as long as the largest of their batch, and what x has behind takes no part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..functional.by_rank import rank_weights
from ..layouts import Padded
from ..nn import FSPool, FSUnpool

FILL = -99999.0


class DenseOrder(NamedTuple):
    """The matrices of a sort (..., D, N, N), row r for rank r, and the sizes of the sets."""

    matrix: Tensor
    sizes: Tensor


def _weights(weight: Tensor, sizes: Tensor, length: int) -> Tensor:
    """f for every rank of every set, (..., N, D); zeros after the last element."""
    weight = weight if weight.ndim == 3 else weight.unsqueeze(0)
    flat = sizes if sizes.ndim == 2 else sizes.unsqueeze(0)
    sets = Padded((*flat.shape, length), sizes.device, lengths=flat, replicas=True)
    found = sets.clear_ranks(rank_weights(weight, sets))
    return found if sizes.ndim == 2 else found.squeeze(0)


def _permutation(s: Tensor, there: Tensor, temperature: Tensor) -> Tensor:
    """P of those values (..., n) that are there, all in their own dtype: what is large in the
    padding takes digits from what is small in the elements."""
    last = there.sum(-1, keepdim=True) - 1
    scale = last - 2 * torch.arange(s.shape[-1], dtype=s.dtype, device=s.device)
    apart = (s.unsqueeze(-1) - s.unsqueeze(-2)).abs()
    distance = (apart * there.unsqueeze(-2)).sum(-1)
    logits = scale.unsqueeze(-1) * s.unsqueeze(-2) - distance.unsqueeze(-2)
    logits = logits.masked_fill(~there.unsqueeze(-2), float("-inf"))
    return (logits / temperature.to(s.dtype)).softmax(-1)


class FilledPool(FSPool):
    """FSPool of padded sets, with ``sizes``, whose padding takes part in the sort."""

    def forward(self, x: Tensor, *, sizes: Tensor, return_order: bool = False):
        places = torch.arange(x.shape[-2], device=x.device)
        outside = (places >= sizes.unsqueeze(-1)).unsqueeze(-1)
        longest = sizes.amax(-1).clamp(min=1)[..., None, None, None]
        s = (x + outside * FILL).transpose(-1, -2)
        matrix = _permutation(s, places < longest, self.temperature)
        ranked = (matrix @ s.unsqueeze(-1)).squeeze(-1).transpose(-1, -2)
        y = (ranked * _weights(self.weight, sizes, x.shape[-2])).sum(-2)
        return (y, DenseOrder(matrix, sizes)) if return_order else y


class FilledUnpool(FSUnpool):
    """FSUnpool with the matrices of a :class:`FilledPool`."""

    def forward(self, z: Tensor, order: DenseOrder) -> Tensor:
        spread = z.unsqueeze(-2) * _weights(self.weight, order.sizes, order.matrix.shape[-1])
        spread = spread.transpose(-1, -2).unsqueeze(-1)
        return (order.matrix.mT @ spread).squeeze(-1).transpose(-1, -2)
