"""The one parameter that pool and unpool both have."""

from __future__ import annotations

import torch
from torch import nn

INITS = ("normal", "ones")


class Knots(nn.Module):
    """``weight (dim, knots)``: a piecewise-linear function of relative rank for each feature."""

    def __init__(self, dim: int, knots: int, init: str, device=None, dtype=None) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"dim is {dim}; expected the number of features, at least 1.")
        if knots < 2:
            raise ValueError(
                f"knots is {knots}; expected at least 2, for the largest and the smallest element."
            )
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
