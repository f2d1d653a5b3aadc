"""The Chamfer loss: every element to its nearest one in the other set, both ways.

.. math::
    L(A, B) = \\frac{1}{|A|} \\sum_{a \\in A} \\min_{b \\in B} c(a, b)
            + \\frac{1}{|B|} \\sum_{b \\in B} \\min_{a \\in A} c(a, b)
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import dispatch
from ..functional.inputs import exact
from .pairs import Pairs, read_pairs

LIMIT = 1 << 22  # pairs looked at in one go


def chamfer(
    a: Tensor,
    b: Tensor,
    *,
    mask_a: Tensor | None = None,
    mask_b: Tensor | None = None,
    cost: str = "squared",
    normalise: str | int = "mean",
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
    """Chamfer loss of every pair of sets.

    Args:
        a: ``(B, N, C)``, more leading axes allowed.
        b: ``(B, M, C)``.
        mask_a: ``(B, N)`` bool, True for elements.
        mask_b: ``(B, M)`` bool.
        cost: ``"squared"`` or ``"huber"``; the cost of a pair is its mean over channels.
        normalise: ``"mean"`` divides each direction by its own count, an integer divides both by
            itself, ``"sum"`` is the paper's formula: plain sums, over channels too.
        return_indices: Also return the nearest b of every a, ``(B, N)``, and the other way round.

    Returns:
        ``(B,)``, in the dtype of a. Two empty sets cost 0.

    Example:
        >>> a, b = torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[1.0], [3.0]]])
        >>> fspool.losses.chamfer(a, b)
        tensor([2.5000])

    Memory is linear in N + M: the pairs are looked at piece by piece, and the gradient, of any
    order, goes to the nearest ones alone.
    """
    pairs = read_pairs(a, b, mask_a, mask_b, cost, normalise)
    with exact(a):
        there, back = nearest(pairs), nearest(pairs.swap())
        n, m = pairs.sizes()
        loss = pairs.divide(_direction(pairs, there), n)
        loss = (loss + pairs.divide(_direction(pairs.swap(), back), m)).to(a.dtype)
    return (loss, (there, back)) if return_indices else loss


def _direction(pairs: Pairs, index: Tensor) -> Tensor:
    """The summed costs of the elements of a with the chosen ones of b."""
    a, b = pairs.a, pairs.b
    if b.shape[-2] == 0:
        return a[..., :0, :].sum((-1, -2))  # 0, of which autograd knows
    if pairs.mask_a is not None:  # whatever the padding holds, it must not reach the loss
        a = a.masked_fill(~pairs.mask_a.unsqueeze(-1), 0)
    if pairs.mask_b is not None:
        b = b.masked_fill(~pairs.mask_b.unsqueeze(-1), 0)
    chosen = b.gather(-2, index.unsqueeze(-1).expand(*index.shape, b.shape[-1]))
    costs = pairs.aligned(a, chosen)
    if pairs.mask_a is not None:
        costs = costs.masked_fill(~pairs.mask_a, 0)
    return costs.sum(-1)


@torch.no_grad()
def nearest(pairs: Pairs) -> Tensor:
    """For every row of a the number of the nearest element of b, (..., N)."""
    operator = dispatch.fastest("nearest", pairs.a) or nearest_definition
    return operator(pairs.a, pairs.b, pairs.mask_b, pairs.cost)


def nearest_definition(a: Tensor, b: Tensor, mask: Tensor | None, cost: str) -> Tensor:
    """a (..., N, C), b (..., M, C), mask (..., M) of b: a piece of the pairs after the other."""
    m = b.shape[-2]
    if a.shape[-2] == 0 or m == 0:
        return torch.zeros(a.shape[:-1], dtype=torch.long, device=a.device)
    sets = max(1, a[..., 0, 0].numel())
    pairs, pieces = Pairs(a, b, None, mask, cost, "sum"), []
    for rows in a.split(max(1, LIMIT // (sets * m)), -2):
        costs = pairs.matrix(rows, b)
        if mask is not None:
            costs = costs.masked_fill(~mask.unsqueeze(-2), float("inf"))
        pieces.append(costs.argmin(-1))
    return torch.cat(pieces, -1)
