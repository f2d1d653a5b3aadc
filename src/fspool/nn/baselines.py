"""The pools that FSPool is compared with, for the same layouts and with the same corner cases."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..checks import check_bool, check_integer
from ..functional.dispatch import on_device
from ..functional.inputs import compute_dtype
from ..functional.lstm import lstm
from ..layouts import Sets, leave_pooled
from ..sets import check_size_values, read


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


class RelationNetwork(nn.Module):
    """The sum of what a module makes of every ordered pair (Santoro et al., 2017).

    .. math:: y = \\sum_{i, j} g([x_i, x_j])

    Pairs of an element with itself are among them.

    Args:
        module: g, which takes ``(..., N, N, 2 D)``.

    Shapes:
        x ``(..., N, D)``, alone or with ``mask (..., N)`` or ``sizes (...)`` -> ``(..., out)``.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, sizes: Tensor | None = None
    ) -> Tensor:
        mask = inside(x, mask, sizes)
        x = x.masked_fill(~mask.unsqueeze(-1), 0)  # 0 times what padding holds may be NaN
        length = x.shape[-2]
        first = x.unsqueeze(-2).expand(*x.shape[:-1], length, -1)
        both = torch.cat((first, first.transpose(-2, -3)), -1)
        return weighted_sum(self.module(both).flatten(-3, -2), pair_weights(mask.to(x.dtype)))


class JanossyPool(nn.Module):
    """The last cell state of an LSTM that reads the elements in the order in which they come
    (Murphy et al., 2019, trained by pi-SGD: whoever calls it puts them in a random order).

    Args:
        dim: Number of features D, in and out.

    Shapes:
        x ``(B, N, D)``, all of it read, padding too -> ``(B, D)``. With a replica axis in x and in
        all parameters ``(G, B, N, D)`` -> ``(G, B, D)``.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight_input = nn.Parameter(torch.empty(4 * dim, dim))
        self.weight_hidden = nn.Parameter(torch.empty(4 * dim, dim))
        self.bias_input = nn.Parameter(torch.empty(4 * dim))
        self.bias_hidden = nn.Parameter(torch.empty(4 * dim))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(dim**-0.5), dim**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        single = self.weight_hidden.ndim == 2
        x, *weights = (t.unsqueeze(0) if single else t for t in (x, *self.parameters()))
        enter, hidden, bias, more = weights
        rows = x.flatten(1, 2)
        given = torch.bmm(rows, enter.mT)
        given = given.to(compute_dtype(given)) + (bias + more).unsqueeze(1)
        y = lstm(given.unflatten(1, x.shape[1:3]), as_autocast(hidden))[1].to(x.dtype)
        return y.squeeze(0) if single else y


def inside(x: Tensor, mask: Tensor | None, sizes: Tensor | None) -> Tensor:
    """Which elements of x ``(..., N, D)`` there are, ``(..., N)``."""
    if mask is not None and sizes is not None:
        raise ValueError("mask and sizes are both given; expected at most one of them.")
    if mask is not None:
        check_bool("mask", mask)
        _check_form("mask", mask, x.shape[:-1])
        return mask
    places = torch.arange(x.shape[-2], device=x.device)
    if sizes is None:
        return (places >= 0).expand(x.shape[:-1])
    check_integer("sizes", sizes)
    _check_form("sizes", sizes, x.shape[:-2])
    check_size_values(sizes, x.shape[-2])
    return places < sizes.unsqueeze(-1)


def _check_form(name: str, value: Tensor, shape: torch.Size) -> None:
    """Leading axes may be left out: then it is shared."""
    if value.shape != shape[len(shape) - value.ndim :]:
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}; expected {tuple(shape)} to fit x."
        )


def pair_weights(weights: Tensor) -> Tensor:
    """How often each ordered pair counts, ``(..., N^2)``, from how often its elements do."""
    return (weights.unsqueeze(-1) * weights.unsqueeze(-2)).flatten(-2)


def weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    """x ``(..., N, D)`` with weights ``(..., N)`` that are 0 where there is no element."""
    return (weights.to(x.dtype).unsqueeze(-2) @ x).squeeze(-2)


def as_autocast(weight: Tensor) -> Tensor:
    """The dtype of products of matrices, where autocast is on; else as it is."""
    kind = weight.device.type
    if not torch.is_autocast_enabled(kind):
        return weight
    return weight.to(torch.get_autocast_dtype(kind))
