"""The weight function of FSPool: piecewise linear in the relative rank r, from 0 to 1.

.. math:: f(r, w) = \\sum_{i=1}^{k} \\max(0,\\, 1 - |r (k - 1) - (i - 1)|)\\; w_i
"""

from __future__ import annotations

from torch import Tensor


def piecewise_linear(weight: Tensor, ranks: Tensor, sizes: Tensor) -> Tensor:
    """f at ``ranks / (sizes - 1)`` for every feature.

    Shapes:
        weight ``(G, D, k)``, ranks ``(G or 1, ..., D or 1)``, sizes broadcastable to ranks
        -> ``(G, ..., D)``. One element alone has relative rank 0: it takes the first knot.
    """
    pieces = weight.shape[-1] - 1
    span = (sizes - 1).clamp(min=1)
    position = ranks.long() * pieces
    left = (position // span).clamp(0, pieces)  # in integers: exact where a rank falls on a knot
    blend = (position - left * span).to(weight.dtype) / span.to(weight.dtype)
    return (1 - blend) * _pick(weight, left) + blend * _pick(weight, (left + 1).clamp(max=pieces))


def _pick(weight: Tensor, knot: Tensor) -> Tensor:
    groups, dim, _ = weight.shape
    rows = knot.flatten(1, -2).expand(groups, -1, dim)
    return weight.transpose(1, 2).gather(1, rows).unflatten(1, knot.shape[1:-1])
