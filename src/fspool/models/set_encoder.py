"""Sets to vectors by their pairs, with a gradient that is written out.

A relation network (Santoro et al., 2017): a small MLP sees every ordered pair of elements, and a
pool makes one vector of all. A network that predicts sets takes gradients of it on the way forward,
so the gradient is a plain function here (:meth:`PairEncoder.vjp`), itself differentiable: nothing
but torch operators, which ``torch.compile`` and CUDA graphs take as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..checks import check_count, nearest
from ..functional import Order, fspool, fspool_vjp
from ..nn import FSPool
from .linear import Linear

POOLS = ("fspool", "sum", "max")

Seen = tuple[Tensor, Order | Tensor | None]  # what the gradient needs of a pass


class PairEncoder(nn.Module):
    """Sets ``(B, N, C)`` to vectors ``(B, dim)``; parameters may have a replica axis, x then too.

    Args:
        channels: C, the mask included where it is one of them.
        pool: ``"fspool"``, ``"sum"`` or ``"max"``, over the N^2 pairs.
        divided: Divide pairs by N^2, as DSPN does. Else, as in iDSPN, the weights of FSPool start
            small, by the number of features: a vector that changes more with its set.

    The first layer of a pair (i, j) is a layer of i plus a layer of j, so each is computed N times
    and not N^2 times. The second layer is linear: a sum of pairs goes through it once.
    """

    def __init__(
        self,
        channels: int,
        dim: int = 512,
        *,
        pool: str = "fspool",
        knots: int = 20,
        divided: bool = True,
    ) -> None:
        super().__init__()
        self.divided = divided
        self.channels = check_count("channels", channels, 1, "numbers of an element")
        self.kind = nearest("pool", pool, POOLS)
        self.first, self.second = Linear(2 * channels, dim), Linear(dim, dim)
        self.pool = FSPool(dim, knots) if pool == "fspool" else None
        if self.pool is not None and not divided:
            nn.init.normal_(self.pool.weight, std=(2 / dim) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x)[0]

    def encode(self, x: Tensor) -> tuple[Tensor, Seen]:
        """The vectors, and what :meth:`vjp` has to know of them."""
        own, other = self.first.weight.split(self.channels, -1)
        one = _layer(x, own, self.first.bias)
        hidden = one.unsqueeze(-2) + _layer(x, other).unsqueeze(-3)  # (..., N, N, dim)
        active = hidden.relu().flatten(-3, -2)
        positive = active.detach() > 0
        if self.kind == "sum":
            total, count = active.sum(-2), active.shape[-2]
            y = _layer(total / count, self.second.weight, self.second.bias)
            return (y if self.divided else y * count), (positive, None)
        out = _layer(active, self.second.weight, self.second.bias)
        if self.divided:
            out = out / active.shape[-2]
        if self.kind == "max":
            y, place = out.max(-2, keepdim=True)
            return y.squeeze(-2), (positive, place)
        y, order = fspool(out, self.pool.weight, return_order=True)
        return y, (positive, order)

    def vjp(self, g: Tensor, seen: Seen) -> Tensor:
        """The gradient to x, for a gradient ``g (B, dim)`` to the vectors."""
        positive, found = seen
        pairs = positive.shape[-2]
        g = g / pairs if self.divided else g
        if self.kind == "sum":
            d_active = _back(g, self.second.weight).unsqueeze(-2)
        else:
            d_out = self._spread(g, found, positive)
            d_active = _back(d_out, self.second.weight)
        size = round(pairs**0.5)
        d_hidden = (d_active * positive).unflatten(-2, (size, size))
        own, other = self.first.weight.split(self.channels, -1)
        return _back(d_hidden.sum(-2), own) + _back(d_hidden.sum(-3), other)

    def _spread(self, g: Tensor, found: Order | Tensor, like: Tensor) -> Tensor:
        if self.kind == "fspool":
            return fspool_vjp(g, self.pool.weight, found)
        return torch.zeros(like.shape, dtype=g.dtype, device=g.device).scatter(
            -2, found, g.unsqueeze(-2)
        )


def _layer(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (..., in) through weight (out, in); with replicas both have one more axis, G, in front."""
    if weight.ndim == 2:
        return linear(x, weight, bias)
    rows = x.flatten(1, -2)
    y = rows @ weight.mT if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)
    return y.unflatten(1, x.shape[1:-1])


def _back(g: Tensor, weight: Tensor) -> Tensor:
    """The gradient of :func:`_layer` to x."""
    return _layer(g, weight.mT)
