"""Batches of point sets, made on the device that trains on them: noise and order always fresh.

A set is the bright pixels of an image. What a batch holds is a pure function of seed and step (see
:mod:`.draws`), and so does not depend on how far it is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..functional.dispatch import OFF
from ..kernels.operator import HAS_TRITON
from . import draws
from .mnist import MnistSets

LARGEST = 342  # points of the largest set of MNIST's training images
SIDE = 27  # the last row and column of an image, which become 1


class Batch(NamedTuple):
    """Sets that are padded with zeros, each with the points that it is to become."""

    input: Tensor  # (..., N, C), with noise; C = 2, or 3 with the mask feature
    target: Tensor  # (..., N, C), the same points without
    sizes: Tensor  # (...,)
    labels: Tensor  # (...,)


def train_batches(
    sets: MnistSets, seeds: Sequence[int], steps: range, batch: int, **options
) -> Batch:
    """All steps, (steps, G, B, ...); each epoch goes through all sets, in an order of its own.

    ``options`` as for :func:`draw_sets`.
    """
    images = torch.stack([_images(sets, tuple(seeds), step, batch) for step in steps])
    return draw_sets(sets, images, seeds, steps, "train", **options)


def every_set(sets: MnistSets, seeds: Sequence[int], images: range, **options) -> Batch:
    """Those images, (G, images, ...), with noise and order that each has of its own."""
    numbers = torch.arange(images.start, images.stop, device=sets.offsets.device)
    numbers = numbers[:, None, None].expand(-1, len(seeds), 1)
    whole = draw_sets(sets, numbers, seeds, images, "test", **options)
    return Batch(*(tensor.squeeze(2).transpose(0, 1) for tensor in whole))


def draw_sets(
    sets: MnistSets,
    images: Tensor,
    seeds: Sequence[int],
    steps: range,
    purpose: str,
    *,
    sigma: float,
    length: int | None = LARGEST,
    everywhere: bool = False,
    mask: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Batch:
    """The sets of some images (steps, G, B).

    Args:
        sigma: Standard deviation of the noise on the coordinates of the input.
        length: Pad to so many points; None for the largest set among them, which on CUDA waits for
            the device.
        everywhere: Noise on the padding too, and on the mask.
        mask: A third channel: 1 for points, 0 for padding.
    """
    if images.is_cuda and HAS_TRITON and not OFF and length == LARGEST:
        how = (sigma, mask, everywhere, dtype)
        return _by_kernel(sets, images, seeds, steps, purpose, *how)
    device, shape = images.device, (images.shape[-1], LARGEST)
    first, sizes = sets.offsets[images], sets.offsets.diff()[images]
    length = int(sizes.max()) if length is None else length
    place = torch.arange(LARGEST, device=device)
    inside = place < sizes.unsqueeze(-1)
    keys = draws.bits(seeds, steps, f"{purpose}/order", shape, device)
    order = keys.masked_fill(~inside, torch.iinfo(torch.int64).max).argsort(-1)[..., :length]
    inside = inside[..., :length].unsqueeze(-1)
    rows = (first.unsqueeze(-1) + order).masked_fill(~inside.squeeze(-1), 0)
    target = (sets.points[rows].to(dtype) / SIDE).masked_fill(~inside, 0)
    if mask:
        target = torch.cat((target, inside.to(dtype)), -1)
    noisy = target
    if sigma:
        channels = target.shape[-1] if everywhere else 2
        noise = draws.normal(seeds, steps, f"{purpose}/noise", (*shape, channels), device)
        noise = (sigma * noise[..., :length, :]).to(dtype)
        noise = noise if everywhere else noise.masked_fill(~inside, 0)
        noisy = target + pad(noise, (0, target.shape[-1] - channels))
    return Batch(noisy, target, sizes, sets.labels[images].long())


def _by_kernel(
    sets: MnistSets,
    images: Tensor,
    seeds: Sequence[int],
    steps: range,
    purpose: str,
    sigma: float,
    mask: bool,
    everywhere: bool,
    dtype: torch.dtype,
) -> Batch:
    from ..kernels.cuda import draws as kernels

    purposes = ("order", "noise") if sigma else ("order",)
    streams = [draws.streams(seeds, steps, f"{purpose}/{name}") for name in purposes]
    streams = torch.stack(streams, -1).to(images.device)  # few numbers: one copy, no small kernels
    rest = (sigma, LARGEST, SIDE, mask, everywhere, dtype)
    return Batch(*kernels.draw_sets(sets, images, streams, *rest))


def _images(sets: MnistSets, seeds: tuple[int, ...], step: int, batch: int) -> Tensor:
    """The images of one step, (G, B)."""
    count = len(sets.labels)
    epoch, place = divmod(step, count // batch)
    order = draws.epoch_order(seeds, epoch, "images", count, sets.offsets.device)
    return order[:, place * batch : (place + 1) * batch]
