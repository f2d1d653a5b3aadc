"""Auto-encoders for sets: the paper's (section 6.1), and the ones that it is compared with.

The encoder makes one vector z of a set. :class:`SetDecoder` turns it back by FSUnpool, with the
permutations that the encoder's FSPool remembered; :class:`ListDecoder` is the usual way, an MLP
that puts out a list of n elements, whose order a loss on sets has to find.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..checks import nearest
from ..functional import Order
from ..layouts import leave_pooled
from ..nn import FSPool, FSUnpool, MaxPool, MeanPool, SumPool
from ..sets import read
from .linear import Perceptron, mlp

PLAIN_POOLS = {"sum": SumPool, "mean": MeanPool, "max": MaxPool}
POOLS = ("fspool", *PLAIN_POOLS)


class SetEncoder(nn.Module):
    """Element MLP, pool, MLP: sets of ``channels`` features to vectors of ``latent`` numbers.

    Args:
        pool: ``"fspool"``, ``"sum"``, ``"mean"`` or ``"max"``.
        temperature, hard_eval: Of the :class:`~fspool.FSPool`.
        pool_padding: Let sum, mean and max pool the padding of a set too, as the released code of
            the paper does; its mean divides by the size all the same.
    """

    def __init__(
        self,
        channels: int,
        hidden: int,
        latent: int,
        *,
        pool: str = "fspool",
        knots: int = 20,
        temperature: float | None = 1.0,
        hard_eval: bool = False,
        pool_padding: bool = False,
    ) -> None:
        super().__init__()
        self.pool_padding = pool_padding
        self.elements = mlp(channels, hidden, hidden)
        if nearest("pool", pool, POOLS) == "fspool":
            self.pool = FSPool(hidden, knots, temperature=temperature, hard_eval=hard_eval)
        else:
            self.pool = PLAIN_POOLS[pool]()
        self.vector = mlp(hidden, hidden, latent)

    def forward(self, x: Tensor, **layout: Tensor) -> tuple[Tensor, Order | None]:
        """z, and the order of the sort where there was one. ``layout``: mask, sizes or offsets."""
        x, order = self._elements(x, layout), None
        if isinstance(self.pool, FSPool):
            y, order = self.pool(x, return_order=True, **layout)
        elif self.pool_padding:
            y = self._pool_padding(x, layout)
        else:
            y = self.pool(x, **layout)
        return self.vector(y), order

    def _elements(self, x: Tensor, layout: dict[str, Tensor]) -> Tensor:
        """The element MLP. Many runs of it may leave out padding that comes last."""
        leaves_out = isinstance(self.elements, Perceptron) and not self.pool_padding
        if not leaves_out or x.ndim != 4 or layout.get("sizes") is None:
            return self.elements(x)
        return self.elements(x, read(x, **layout)[0].lengths)

    def _pool_padding(self, x: Tensor, layout: dict[str, Tensor]) -> Tensor:
        """Padding among the elements, though the mean still divides by the elements alone."""
        sets, inner = read(x, **layout)
        if sets.layout != "padded":
            return self.pool(x, **layout)
        if isinstance(self.pool, MeanPool):
            sizes = sets.sizes.clamp(min=1).unsqueeze(-1)
            return leave_pooled(sets, inner.sum(-2) / sizes)
        return self.pool(x)


class SetDecoder(nn.Module):
    """MLP, FSUnpool, element MLP: each output stands where its input stood.

    Args:
        features: How many of the ``hidden`` permutations are used to unsort; None for all. The
            fewer, the less can reach the decoder past z.
    """

    def __init__(
        self,
        latent: int,
        hidden: int,
        channels: int,
        *,
        knots: int = 20,
        features: int | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        width = hidden if features is None else features
        self.vector = mlp(latent, hidden, width)
        self.unpool = FSUnpool(width, knots)
        self.elements = mlp(width, hidden, channels)

    def forward(self, z: Tensor, order: Order) -> Tensor:
        if self.features is not None:
            order = order.select(slice(self.features))
        return self.elements(self.unpool(self.vector(z), order))


class ListDecoder(nn.Module):
    """An MLP from z to a list of n elements, in an order of its own."""

    def __init__(self, latent: int, hidden: int, channels: int, n: int) -> None:
        super().__init__()
        self.shape = (n, channels)
        self.vector = mlp(latent, hidden, hidden, n * channels)

    def forward(self, z: Tensor, order: Order | None = None) -> Tensor:
        return self.vector(z).unflatten(-1, self.shape)


class AutoEncoder(nn.Module):
    """An encoder and a decoder; ``use_latent=False`` puts zeros for z, to see what bypasses it."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module, *, use_latent: bool = True) -> None:
        super().__init__()
        self.encoder, self.decoder, self.use_latent = encoder, decoder, use_latent

    def forward(self, x: Tensor, **layout: Tensor) -> Tensor:
        z, order = self.encoder(x, **layout)
        return self.decoder(z if self.use_latent else z * 0, order)


def set_autoencoder(
    channels: int, hidden: int = 16, latent: int = 1, *, knots: int = 20, temperature: float = 1.0
) -> AutoEncoder:
    """The auto-encoder of the paper, trained with plain squared error.

    Example:
        >>> model = fspool.models.set_autoencoder(channels=2)
        >>> model(torch.randn(8, 10, 2)).shape
        torch.Size([8, 10, 2])
    """
    encoder = SetEncoder(channels, hidden, latent, knots=knots, temperature=temperature)
    return AutoEncoder(encoder, SetDecoder(latent, hidden, channels, knots=knots))
