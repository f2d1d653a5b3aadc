"""The relaxed sort as torch operators: P applied along its band, and never stored.

All tensors are indexed by rank: (G, B, N, D) with elements first, or (G, T, D) with offsets.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.relaxed_sort import slope_definition
from .cpu import relaxed_sort as cpu
from .operator import differentiate, operator
from .shapes import layout_of

_TAIL = "Tensor temperature, Tensor{} normaliser, Tensor? lengths, Tensor? offsets"
_SLOPE = f"Tensor values, Tensor a, Tensor x, Tensor projected, {_TAIL.format('')}"

sort = operator(
    "relaxed_sort",
    f"(Tensor values, Tensor x, {_TAIL.format('?')}) -> (Tensor, Tensor)",
    cpu.sort,
    lambda values, *_: (values.new_empty(values.shape), values.new_empty(values.shape)),
    cuda="relaxed_sort.sort",
)
unsort = operator(
    "relaxed_unsort",
    f"(Tensor values, Tensor v, {_TAIL.format('')}) -> Tensor",
    cpu.unsort,
    lambda values, *_: values.new_empty(values.shape),
    cuda="relaxed_sort.unsort",
)
slope = operator(
    "relaxed_slope",
    f"({_SLOPE}) -> Tensor",
    cpu.slope,
    lambda values, *_: values.new_empty(values.shape),
    cuda="relaxed_sort.slope",
)
pull = operator(
    "relaxed_pull",  # slope and unsort at once: both gradients of the sort
    f"({_SLOPE}) -> (Tensor, Tensor)",
    cpu.pull,
    lambda values, *_: (values.new_empty(values.shape), values.new_empty(values.shape)),
    cuda="relaxed_sort.pull",
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember_sort(ctx, inputs, output) -> None:
    values, x, temperature, _, *sets = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(values, x, output[0], temperature, output[1], *sets)


def _sort_backward(ctx, dy: Tensor | None, _):
    if dy is None:
        return (None,) * 6
    values, x, y, *rest = ctx.saved_tensors
    if all(ctx.needs_input_grad[:2]) and not torch.is_grad_enabled():  # the common case
        return *pull(values, dy, x, y, *rest), None, None, None, None
    ds = slope(values, dy, x, y, *rest) if ctx.needs_input_grad[0] else None
    dx = unsort(values, dy, *rest) if ctx.needs_input_grad[1] else None
    return ds, dx, None, None, None, None


def _remember_unsort(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _unsort_backward(ctx, du: Tensor):
    values, v, *rest = ctx.saved_tensors
    dv = sort(values, du, *rest)[0]
    ds = slope(values, v, du, dv, *rest) if ctx.needs_input_grad[0] else None
    return ds, dv, None, None, None, None


def _slope_backward(ctx, dds: Tensor):
    """Second derivatives go through the definition: O(n^2) memory."""
    values, a, x, _, temperature, _, lengths, offsets = ctx.saved_tensors
    sets = layout_of(values.shape, values.device, None, lengths, offsets)
    count = sets.sizes[..., None, None]

    def definition(values: Tensor, a: Tensor, x: Tensor) -> Tensor:
        padded = (sets.pad(t) for t in (values, a, x))
        return sets.unpad(slope_definition(*padded, temperature, count))

    _, pull = torch.func.vjp(definition, values, a, x)
    return *pull(dds), None, None, None, None, None


differentiate(sort, _sort_backward, _remember_sort)
differentiate(unsort, _unsort_backward, _remember_unsort)
differentiate(slope, _slope_backward, _remember_unsort)
