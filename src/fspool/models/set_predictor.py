"""Sets from pictures: an image encoder, and what finds the set of a vector."""

from __future__ import annotations

from torch import Tensor, nn

from .resnet import ImageEncoder


class SetPredictor(nn.Module):
    """A picture to a vector, the vector to a set."""

    def __init__(self, images: ImageEncoder, sets: nn.Module) -> None:
        super().__init__()
        self.images, self.sets = images, sets

    def forward(self, images: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The predicted sets, and the vectors that they were found for."""
        z = self.images(images)
        return self.sets(z, noise), z
