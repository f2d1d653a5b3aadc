"""Batch normalisation of a batch that several processes have shares of.

Each normalises its share by mean and variance of the whole batch, and its gradient knows that these
depend on everybody's share. Gradients to weight and bias are those of the share alone: whoever adds
up the gradients of all processes gets those of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import batch_norm

EPS, MOMENTUM = 1e-5, 0.1
AXES = (0, 2, 3)

AddUp = Callable[[Sequence[Tensor]], None]  # replaces tensors by their sums over all processes


def shared_norm(
    x: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    add_up: AddUp,
) -> Tensor:
    """``batch_norm`` in training, of maps ``(B, C, H, W)``; writes the running numbers too."""
    with torch.no_grad():
        mean = x.sum(AXES, dtype=weight.dtype)
        count = mean.new_full((1,), x.numel() / len(mean))
        add_up((mean, count))
        mean /= count
        var = (x.to(weight.dtype) - _wide(mean)).square().sum(AXES)
        add_up((var,))
        running_mean.lerp_(mean, MOMENTUM)
        running_var.lerp_(var / (count - 1).clamp(min=1), MOMENTUM)
        var /= count
    return _Normalised.apply(x, weight, bias, mean, var, count, add_up)


class _Normalised(torch.autograd.Function):
    """By numbers that are functions of x, here and in the other processes."""

    @staticmethod
    def forward(ctx, x, weight, bias, mean, var, count, add_up: AddUp) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var, count)
        ctx.add_up = add_up
        return batch_norm(x, mean, var, weight, bias, False, eps=EPS)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var, count = ctx.saved_tensors
        given = (x, weight, mean, var, None, None, False, EPS, [True, True, True])
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(g, *given)
        # That was with mean and variance as constants. They take these two means from it:
        along, level = dweight.clone(), dbias.clone()
        ctx.add_up((along, level))
        scale = (var + EPS).rsqrt()
        slope = weight * scale.square() * along / count
        offset = weight * scale * level / count - slope * mean
        dx = dx - torch.addcmul(_wide(offset), x.to(slope.dtype), _wide(slope)).to(dx.dtype)
        return dx, dweight, dbias, None, None, None, None


def _wide(values: Tensor) -> Tensor:
    return values.view(1, -1, 1, 1)
