"""The one parameter that pool and unpool both have."""

from __future__ import annotations

import torch
from torch import nn

from ..checks import check_count

INITS = ("normal", "ones")


class Knots(nn.Module):
    """``weight (dim, knots)``: a piecewise-linear function of relative rank for each feature."""

    def __init__(self, dim: int, knots: int, init: str, device=None, dtype=None) -> None:
        super().__init__()
        dim = check_count("dim", dim, 1, "the number of features")
        knots = check_count("knots", knots, 2, "one knot for the largest and one for the smallest")
        if dtype is not None and (not dtype.is_floating_point or dtype.itemsize < 2):
            raise TypeError(f"dtype is {dtype}; expected a floating dtype of at least 16 bits.")
        if init not in INITS:
            raise ValueError(f"init is {init!r}; expected one of {', '.join(map(repr, INITS))}.")
        self.dim, self.knots, self.init = dim, knots, init
        self.weight = nn.Parameter(torch.empty(dim, knots, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """``"normal"``: standard normal. ``"ones"``: starts as sum pooling."""
        if self.init == "ones":
            nn.init.ones_(self.weight)
        else:
            nn.init.normal_(self.weight)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, knots={self.knots}"
