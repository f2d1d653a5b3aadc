"""Images to vectors: a residual network (He et al., 2016), for one run or many.

The trunk is ResNet-34 without its average pool and its last layer. Two layers follow, which make
one vector of a picture of 128 x 128 (section 6.5 of the paper). Every weight starts as Glorot has
it. Parameters may have a leading replica axis; replicas go through one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_count, nearest
from .shared_norm import AddUp, shared_norm

TRUNKS = {  # blocks of each stage, and their channels
    "resnet34": ((3, 4, 6, 3), (64, 128, 256, 512)),
    "resnet18": ((2, 2, 2, 2), (64, 128, 256, 512)),
    "tiny": ((1, 1, 1), (16, 32, 64)),
}
PRECISIONS = ("float32", "bfloat16")


class Conv(nn.Module):
    """A convolution without a bias, of replica g; weight ``(out, in, k, k)`` or ``(G, ...)``."""

    def __init__(self, into: int, out: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(out, into, kernel, kernel))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, g: int) -> Tensor:
        weight = _of(self.weight, g, 4).to(x.dtype, memory_format=torch.channels_last)
        return F.conv2d(x, weight, None, self.stride, self.padding)


class Norm(nn.Module):
    """Batch normalisation of replica g."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))
        self.add_up: AddUp | None = None  # where several processes share a batch

    def forward(self, x: Tensor, g: int) -> Tensor:
        own = (self.running_mean, self.running_var, self.weight, self.bias)
        own = (_of(tensor, g, 1) for tensor in own)
        if self.training and self.add_up is not None:
            return shared_norm(x, *own, self.add_up)
        return F.batch_norm(x, *own, self.training)


class Block(nn.Module):
    """Two convolutions, and what went in on top."""

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = Conv(into, out, 3, stride, 1), Norm(out)
        self.second, self.second_norm = Conv(out, out, 3, 1, 1), Norm(out)
        self.shortcut = self.shortcut_norm = None
        if stride > 1 or into != out:
            self.shortcut, self.shortcut_norm = Conv(into, out, 1, stride), Norm(out)

    def forward(self, x: Tensor, g: int) -> Tensor:
        y = self.first_norm(self.first(x, g), g).relu_()
        y = self.second_norm(self.second(y, g), g)
        if self.shortcut is not None:
            x = self.shortcut_norm(self.shortcut(x, g), g)
        return (y + x).relu_()


def smallest(trunk: str) -> int:
    """Pixels of a side, so that something is left after the last layer."""
    counts, _ = TRUNKS[nearest("trunk", trunk, TRUNKS)]
    return 1 << len(counts) + 2


class ImageEncoder(nn.Module):
    """Pictures ``(B, 3, size, size)``, or ``(G, B, ...)`` for replicas, to vectors of ``dim``.

    Args:
        size: Of the pictures, in pixels: 128 for the trunk of the paper, whose last map is 4 x 4.
        trunk: ``"resnet34"``, ``"resnet18"``, or ``"tiny"`` for tiny pictures and a CPU.
        precision: Of the maps: ``"float32"``, or ``"bfloat16"``, about twice as fast on a GPU.

    Pictures are bytes, or floating numbers from 0 to 1; nothing is subtracted from them.
    """

    def __init__(
        self, size: int = 128, dim: int = 512, trunk: str = "resnet34", precision: str = "float32"
    ) -> None:
        super().__init__()
        counts, widths = TRUNKS[nearest("trunk", trunk, TRUNKS)]
        self.size = check_count("size", size, smallest(trunk), "pixels of a side")
        self.dtype = getattr(torch, nearest("precision", precision, PRECISIONS))
        self.stem, self.stem_norm = Conv(3, widths[0], 7, 2, 3), Norm(widths[0])
        blocks, into = [], widths[0]
        for stage, (count, out) in enumerate(zip(counts, widths, strict=True)):
            for number in range(count):
                blocks.append(Block(into, out, 2 if stage and not number else 1))
                into = out
        self.blocks = nn.ModuleList(blocks)
        last = -(-size // (1 << len(counts) + 1))  # the side of the map that the trunk ends with
        self.down, self.down_norm = Conv(into, dim, 3, 2, 1), Norm(dim)
        self.out = Conv(dim, dim, -(-last // 2))
        self.down_bias, self.out_bias = (nn.Parameter(torch.zeros(dim)) for _ in range(2))

    def share_batches(self, add_up: AddUp) -> None:
        """Normalise as if the shares of a batch that several processes have were in one.

        ``add_up`` replaces tensors by their sums over all processes.
        """
        for module in self.modules():
            if isinstance(module, Norm):
                module.add_up = add_up

    def forward(self, images: Tensor) -> Tensor:
        self._check(images)
        if images.ndim == 4:
            return self._one(images, 0)
        return torch.stack([self._one(image, g) for g, image in enumerate(images)])

    def _one(self, images: Tensor, g: int) -> Tensor:
        x = images.to(self._dtype(images.device), memory_format=torch.channels_last)
        if not images.is_floating_point():
            x = x / 255
        x = self.stem_norm(self.stem(x, g), g).relu_()
        x = F.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = block(x, g)
        x = self.down(x, g) + _of(self.down_bias, g, 1).to(x.dtype)[:, None, None]
        x = self.down_norm(x, g)
        y = self.out(x, g).flatten(1).to(self.out_bias.dtype)
        return y + _of(self.out_bias, g, 1)

    def _dtype(self, device: torch.device) -> torch.dtype:
        """Parameters that are not float32 ask for their own dtype throughout."""
        own = self.out_bias.dtype
        return self.dtype if own == torch.float32 else own

    def _check(self, images: Tensor) -> None:
        if images.ndim not in (4, 5) or images.shape[-3:] != (3, self.size, self.size):
            raise ValueError(
                f"images have shape {tuple(images.shape)}; expected (B, 3, {self.size}, "
                f"{self.size}), or one more axis of replicas in front."
            )


def _of(parameter: Tensor, g: int, axes: int) -> Tensor:
    """What replica g has of a parameter of so many axes."""
    return parameter if parameter.ndim == axes else parameter[g]
