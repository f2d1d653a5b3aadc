"""What the package is compared with: the same functions as one would write them in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

LOWEST = -1e30  # below any feature, and finite also when multiplied: it meets a weight of zero


def plain_pool(x: Tensor, weight: Tensor, sizes: Tensor, stable: bool = False) -> Tensor:
    """Plain eager FSPool of padded x (B, N, D), elements first: mask-fill, sort, weights gathered
    per set, multiply, sum."""
    inside = (torch.arange(x.shape[1], device=x.device) < sizes[:, None]).unsqueeze(-1)
    ranked = x.masked_fill(~inside, LOWEST).sort(dim=1, descending=True, stable=stable).values
    return (ranked * rank_weights(weight, sizes, x.shape[1]) * inside).sum(1)


def fixed_pool(x: Tensor, weight: Tensor) -> Tensor:
    """Fixed-size eager FSPool: full sets, so one vector of weights per rank serves all."""
    length = x.shape[1]
    size = torch.full((1,), length, device=x.device)
    return (x.sort(dim=1, descending=True).values * rank_weights(weight, size, length)).sum(1)


def rank_weights(weight: Tensor, sizes: Tensor, length: int) -> Tensor:
    """The piecewise-linear function through weight (D, k), for every rank of every set: (B, N, D).
    Ranks after the last element take the last knot."""
    dim, knots = weight.shape
    ranks = torch.arange(length, device=weight.device, dtype=weight.dtype)
    position = ranks * (knots - 1) / (sizes - 1).clamp(min=1)[:, None]
    position = position.clamp(max=knots - 1).unsqueeze(-1)
    left = position.long()
    blend = position - left
    table = weight.t().expand(len(sizes), knots, dim)
    shape = (len(sizes), length, dim)
    right = (left + 1).clamp(max=knots - 1)
    return (1 - blend) * table.gather(1, left.expand(shape)) + blend * table.gather(
        1, right.expand(shape)
    )


def neural_sort(x: Tensor, sizes: Tensor, masked: bool, temperature: float = 1.0) -> Tensor:
    """The dense relaxed permutations of x (B, N, D), as (B, D, N, N): row r is rank r. Where sets
    are ``masked``, the rows and columns after their elements are zeros."""
    s = x.transpose(1, 2)
    index = torch.arange(s.shape[-1], device=x.device)
    outside = (index >= sizes[:, None])[:, None]  # (B, 1, N)
    distance = (s.unsqueeze(-1) - s.unsqueeze(-2)).abs()
    if masked:
        distance = distance.masked_fill(outside.unsqueeze(-2), 0)
    scale = (sizes[:, None] - 1 - 2 * index).to(x.dtype)[:, None]  # n + 1 - 2r
    logits = scale.unsqueeze(-1) * s.unsqueeze(-2) - distance.sum(-1).unsqueeze(-2)
    if not masked:
        return (logits / temperature).softmax(-1)
    logits = (logits / temperature).masked_fill(outside.unsqueeze(-2), LOWEST)
    return logits.softmax(-1).masked_fill(outside.unsqueeze(-1), 0)


def dense_pool_unpool(
    x: Tensor, weight: Tensor, z: Tensor, weight_unpool: Tensor, sizes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Relaxed FSPool of x (B, N, D) and FSUnpool of z (B, D), through stored matrices."""
    masked, length = sizes is not None, x.shape[1]
    if masked:
        inside = torch.arange(length, device=x.device) < sizes[:, None]
        x = x.masked_fill(~inside.unsqueeze(-1), 0)
    else:
        sizes = torch.full((1,), length, device=x.device)
    matrix = neural_sort(x, sizes, masked)
    ranked = (matrix @ x.transpose(1, 2).unsqueeze(-1)).squeeze(-1).transpose(1, 2)  # P s
    y = (ranked * rank_weights(weight, sizes, length)).sum(1)
    spread = (z.unsqueeze(1) * rank_weights(weight_unpool, sizes, length)).transpose(1, 2)
    unsorted = (matrix.mT @ spread.unsqueeze(-1)).squeeze(-1)  # P^T v
    return y, unsorted.transpose(1, 2)


def dense_chamfer(a: Tensor, b: Tensor) -> Tensor:
    """Chamfer loss of a (B, N, C) and b (B, M, C) through all differences: (B, N, M, C)."""
    costs = (a.unsqueeze(2) - b.unsqueeze(1)).square().mean(-1)
    return costs.min(2).values.mean(1) + costs.min(1).values.mean(1)


def sum_pool(x: Tensor, sizes: Tensor | None = None, offsets: Tensor | None = None) -> Tensor:
    """Sum pooling of full, padded or packed sets."""
    if offsets is not None:
        return torch.segment_reduce(x, "sum", offsets=offsets, axis=0, unsafe=True)  # no waiting
    if sizes is not None:
        outside = torch.arange(x.shape[1], device=x.device) >= sizes[:, None]
        x = x.masked_fill(outside.unsqueeze(-1), 0)
    return x.sum(1)
