"""Rows to the places of their ranks and back, as torch operators: each is the other's gradient."""

from __future__ import annotations

from torch import Tensor

from .operator import SETS, differentiate, operator
from .shapes import layout_of


def _to_ranks(x: Tensor, ranks: Tensor, mask, lengths, offsets) -> Tensor:
    return layout_of(x.shape, x.device, mask, lengths, offsets).to_ranks(x, ranks)


def _from_ranks(v: Tensor, ranks: Tensor, mask, lengths, offsets) -> Tensor:
    return layout_of(v.shape, v.device, mask, lengths, offsets).from_ranks(v, ranks)


def _fake(x, ranks, mask, lengths, offsets):
    return x.new_empty(x.shape)


to_ranks = operator(
    "to_ranks",
    f"(Tensor x, Tensor ranks, {SETS}) -> Tensor",
    _to_ranks,
    _fake,
    cuda="moves.to_ranks",
)
from_ranks = operator(
    "from_ranks",
    f"(Tensor v, Tensor ranks, {SETS}) -> Tensor",
    _from_ranks,
    _fake,
    cuda="moves.from_ranks",
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[1:])


def _to_ranks_backward(ctx, dv: Tensor):
    return from_ranks(dv, *ctx.saved_tensors), *[None] * 4


def _from_ranks_backward(ctx, dx: Tensor):
    return to_ranks(dx, *ctx.saved_tensors), *[None] * 4


differentiate(to_ranks, _to_ranks_backward, _remember)
differentiate(from_ranks, _from_ranks_backward, _remember)
