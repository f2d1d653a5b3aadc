"""FSUnpool as a module."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import Order, fsunpool
from .knots import Knots


class FSUnpool(Knots):
    """The decoder that belongs to FSPool, from `FSPool: Learning Set Representations with
    Featurewise Sort Pooling <https://arxiv.org/abs/1906.02795>`_ (ICLR 2020).

    .. math:: S'_{ij} = f\\!\\left(\\frac{j - 1}{n - 1}, \\bar w'_i\\right) z_i, \\qquad
              X'_i = P_i^\\top S'_i

    It spreads a vector over ranks and undoes the sort that the encoder remembered in P, so that the
    output has the elements in the order of the input and a plain squared error compares them.

    Args:
        dim: Number of features D; with ``order.select(features)``, how many of them.
        knots: Points k of the weight function, at least 2.
        init: ``"normal"`` (standard normal) or ``"ones"``.

    Shapes:
        z ``(B, D)`` and an :class:`~fspool.Order` -> the layout that was pooled.

    Example:
        >>> pool, unpool = fspool.FSPool(dim=64), fspool.FSUnpool(dim=64)
        >>> y, order = pool(torch.randn(8, 10, 64), return_order=True)
        >>> unpool(y, order).shape
        torch.Size([8, 10, 64])
    """

    def __init__(
        self,
        dim: int,
        knots: int = 20,
        *,
        init: str = "normal",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, knots, init, device, dtype)

    def forward(self, z: Tensor, order: Order) -> Tensor:
        """Unpool every vector into the layout of the set that made ``order``."""
        return fsunpool(z, self.weight, order)
