"""A classifier of sets: an encoder, and a small MLP on the vector that it makes."""

from __future__ import annotations

from torch import Tensor, nn

from .linear import mlp


class SetClassifier(nn.Module):
    """Class scores of every set.

    Args:
        encoder: Such as a :class:`SetEncoder`, which gives a vector and perhaps an order.
        latent: Length of that vector.
        hidden: Of the MLP.
    """

    def __init__(self, encoder: nn.Module, latent: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = mlp(latent, hidden, classes)

    def forward(self, x: Tensor, **layout: Tensor) -> Tensor:
        return self.head(self.encoder(x, **layout)[0])
