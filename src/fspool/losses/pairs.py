"""What the losses share: the cost of a pair of elements, the arguments, the normalisation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_bool, check_device, check_floating
from ..functional.inputs import compute_dtype
from ..sets import readable

COSTS = ("squared", "huber")


class Pairs(NamedTuple):
    """Two batches of sets, checked: a (..., N, C) and b (..., M, C) with masks or None."""

    a: Tensor
    b: Tensor
    mask_a: Tensor | None
    mask_b: Tensor | None
    cost: str
    normalise: str | int

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(self.a.shape[:-2])

    def swap(self) -> Pairs:
        return self._replace(a=self.b, b=self.a, mask_a=self.mask_b, mask_b=self.mask_a)

    def sizes(self) -> tuple[Tensor, Tensor]:
        """Elements of each set of a and of b."""
        return tuple(
            torch.full((), x.shape[-2], device=x.device).expand(self.batch)
            if mask is None
            else mask.sum(-1)
            for x, mask in ((self.a, self.mask_a), (self.b, self.mask_b))
        )

    def aligned(self, a: Tensor, b: Tensor) -> Tensor:
        """The cost of row i of a with row i of b: the mean over channels, or their sum."""
        cost = channel_cost(a - b, self.cost)
        return cost.sum(-1) if self.normalise == "sum" else cost.mean(-1)

    def matrix(self, a: Tensor, b: Tensor) -> Tensor:
        """The summed cost of every pair, (..., N, M), one channel after the other: no (N, M, C)."""
        total = 0
        for x, y in zip(a.unbind(-1), b.unbind(-1), strict=True):
            total = total + channel_cost(x.unsqueeze(-1) - y.unsqueeze(-2), self.cost)
        return total

    def divide(self, total: Tensor, count: Tensor) -> Tensor:
        if self.normalise == "sum":
            return total
        if self.normalise == "mean":
            return total / count.clamp(min=1)
        return total / self.normalise


def channel_cost(difference: Tensor, cost: str) -> Tensor:
    if cost == "squared":
        return difference.square()
    size = difference.abs()
    return torch.where(size < 1, 0.5 * difference.square(), size - 0.5)


def read_pairs(
    a: Tensor,
    b: Tensor,
    mask_a: Tensor | None,
    mask_b: Tensor | None,
    cost: str,
    normalise: str | int,
) -> Pairs:
    """Check the arguments of a loss; compute in at least float32."""
    for name, value in (("a", a), ("b", b)):
        check_floating(name, value)
        if value.ndim < 3:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}; expected (B, N, C), "
                f"so pass {name}[None] for one set."
            )
    check_device("b", b, "a", a.device)
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-1]:
        raise ValueError(
            f"b has shape {tuple(b.shape)}, but a has {tuple(a.shape)}; "
            "expected as many sets and channels in both."
        )
    if a.shape[-1] == 0:
        raise ValueError(f"a has shape {tuple(a.shape)}; expected at least one channel.")
    for name, mask, x in (("mask_a", mask_a, a), ("mask_b", mask_b, b)):
        if mask is not None:
            check_bool(name, mask)
            check_device(name, mask, "a", a.device)
            if mask.shape != x.shape[:-1]:
                raise ValueError(
                    f"{name} has shape {tuple(mask.shape)}; expected {tuple(x.shape[:-1])}."
                )
    if cost not in COSTS:
        raise ValueError(f"cost is {cost!r}; expected one of {', '.join(map(repr, COSTS))}.")
    if normalise not in ("mean", "sum") and (type(normalise) is not int or normalise < 1):
        raise ValueError(
            f"normalise is {normalise!r}; expected 'mean', 'sum' or an integer of at least 1."
        )
    dtype = compute_dtype(a, b)
    pairs = Pairs(a.to(dtype), b.to(dtype), mask_a, mask_b, cost, normalise)
    _check_empty(pairs)
    return pairs


def _check_empty(pairs: Pairs) -> None:
    """An element needs a partner: one of two sets alone must not be empty."""
    n, m = pairs.a.shape[-2], pairs.b.shape[-2]
    masks = [mask for mask in (pairs.mask_a, pairs.mask_b) if mask is not None]
    if not masks:
        lonely = (n == 0) != (m == 0) and pairs.a[..., 0].numel() + pairs.b[..., 0].numel() > 0
        found = (0, n, m) if lonely else None
    elif all(readable(mask) for mask in masks):
        sizes = torch.stack(pairs.sizes()).flatten(1)
        lonely = ((sizes[0] == 0) != (sizes[1] == 0)).nonzero()
        found = (int(lonely[0]), *sizes[:, lonely[0, 0]].tolist()) if len(lonely) else None
    else:
        found = None
    if found:
        i, n, m = found
        raise ValueError(
            f"a and b have {n} and {m} elements in set {i}; expected none or some in both."
        )
