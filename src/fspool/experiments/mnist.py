"""What the two experiments on MNIST share: the sets, the noise, the encoders.

An image is the set of its bright pixels, 32 to 342 points in the unit square. Sum, mean and max
encoders, and decoders that put out a list, work on sets padded to 342 points, FSPool on the points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from ..checks import check_count, nearest
from ..data import mnist
from ..data.files import find_root
from ..data.point_sets import LARGEST, Batch, every_set, train_batches
from ..lab.cell import Cell, Chunk, place
from ..models import SetEncoder
from ..models.autoencoder import POOLS

TRAIN, TEST = 60_000, 10_000
NOISE = ("0.00", "0.01", "0.02", "0.03", "0.04", "0.05")
STARTS = ("frozen", "unfrozen", "random")  # of a classifier's encoder
EPOCHS = (1, 10, 100)  # after which its accuracy is read
POOL_NAMES = {"fspool": "FSPool", "sum": "Sum", "mean": "Mean", "max": "Max"}


def steps_of(epochs: int, batch: int) -> int:
    return epochs * (TRAIN // batch)


@dataclass(frozen=True, kw_only=True)
class MnistCell(Cell):
    """One model on MNIST as sets. The defaults are the paper's."""

    own: ClassVar[tuple[str, ...]] = ("sigma", "source", "assigned_sets")

    sigma: float = 0.05  # standard deviation of the noise on the input
    pool: str = "fspool"
    hidden: int = 32
    latent: int = 16
    knots: int = 20
    batch: int = 16
    test_sets: int = TEST
    pool_padding: bool = True  # by sum, mean and max, as in the released code
    noise_padding: bool = False  # as in the released code
    data: str = place()

    def __post_init__(self) -> None:
        for name in ("hidden", "latent", "batch", "test_sets"):
            check_count(name, getattr(self, name), 1, "a number of them")
        check_count("steps", self.steps, 0, "a number of them")
        check_count("knots", self.knots, 2, "knots of the weight functions")
        nearest("pool", self.pool, POOLS)
        nearest("dtype", self.dtype, ("float32", "float64"))
        if self.batch > TRAIN or self.test_sets > TEST:
            raise ValueError(
                f"batch is {self.batch} and test_sets is {self.test_sets}; expected at most "
                f"{TRAIN} and {TEST}, the images that there are."
            )
        if not 0 <= self.sigma < float("inf"):
            raise ValueError(f"sigma is {self.sigma}; expected a number of at least 0.")
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate is {self.learning_rate}; expected a positive number.")

    @property
    def channels(self) -> int:
        return 2

    @property
    def footprint(self) -> int:
        return self.batch * LARGEST * self.hidden

    def check(self, seeds: Sequence[int]) -> None:
        mnist.check(find_root(self.data or None))
        for split in mnist.SOURCES:  # an altered file too is told before anything is trained
            _on_device(self.data, split, torch.device("cpu"))

    def encoder(self, temperature: float | None) -> SetEncoder:
        return SetEncoder(
            self.channels,
            self.hidden,
            self.latent,
            pool=self.pool,
            knots=self.knots,
            temperature=temperature,
            pool_padding=self.pool_padding and self.pool != "fspool",
        )

    def batches(self, seeds: Sequence[int], steps: range, device: torch.device) -> Chunk:
        sets = _on_device(self.data, "train", device)
        return Chunk(train_batches(sets, seeds, steps, self.batch, **self._drawing(device)))

    def tests(self, seeds: Sequence[int], device: torch.device) -> Iterator[Batch]:
        """The test images in pieces, (G, images, ...), of whole batches."""
        sets = _on_device(self.data, "test", device)
        room = 1 << (27 if device.type == "cuda" else 23)
        piece = max(1, room // (self.footprint * len(seeds))) * self.batch
        for first in range(0, self.test_sets, piece):
            images = range(first, min(first + piece, self.test_sets))
            yield every_set(sets, seeds, images, **self._drawing(device))

    def _drawing(self, device: torch.device) -> dict:
        # On CUDA every batch has the same shape, for graphs; its kernels skip the padding.
        short = self.pool == "fspool" and device.type == "cpu"
        return {
            "sigma": self.sigma,
            "length": None if short else LARGEST,
            "everywhere": self.noise_padding,
            "mask": self.channels == 3,
            "dtype": self.torch_dtype,
        }


@lru_cache(maxsize=4)
def _on_device(root: str, split: str, device: torch.device) -> mnist.MnistSets:
    return mnist.load(find_root(root or None), split).to(device)


def inside(batch: Batch) -> Tensor:
    """Which positions of a batch are points, (..., N, 1)."""
    places = torch.arange(batch.target.shape[-2], device=batch.sizes.device)
    return (places < batch.sizes.unsqueeze(-1)).unsqueeze(-1)
