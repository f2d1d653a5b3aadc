"""Hard FSPool as torch operators.

They are the partial derivatives of one trilinear form,
``sum_ij g_i f(rank_ij / (n - 1)) x_ij``: to g (pool), to x (unpool), to the knots. So each one's
backward calls the other two, and all are differentiable any number of times.

These three also take None for the ranks: then row j of a set has rank j, as in tensors that are
indexed by rank. Those have their elements first, so there is no mask then.

x is (G, B, N, D), or (G, T, D) with offsets; weight (G, D, k); z and y (G, B, D).
"""

from __future__ import annotations

import torch
from torch import Tensor

from .cpu import pool as cpu
from .operator import SETS, differentiate, operator
from .shapes import no_ranks, no_rows, pooled_shape, rank_dtype, rows_shape, sorted_dtype


def _ranks_fake(x, mask, lengths, offsets):
    return torch.empty(x.shape, dtype=rank_dtype(x.shape, offsets), device=x.device)


ranks = operator(
    "ranks",
    f"(Tensor x, {SETS}) -> Tensor",
    cpu.ranks,
    _ranks_fake,
    cuda="pool.ranks",
    narrow=True,
)


def _pool_fake(x, weight, mask, lengths, offsets, ranked, kept, longest=None):
    ranks = _ranks_fake(x, mask, lengths, offsets) if ranked else no_ranks(x, offsets)
    rows = no_rows(x)
    if kept and x.device.type == "cuda":
        rows = torch.empty(x.shape, dtype=sorted_dtype(x), device=x.device)
    return x.new_empty(pooled_shape(x, offsets)), ranks, rows


pool = operator(
    "pool",
    f"(Tensor x, Tensor weight, {SETS}, bool ranked, bool kept, SymInt? longest=None)"
    " -> (Tensor, Tensor, Tensor)",
    cpu.pool,
    _pool_fake,
    cuda="pool.pool",
    narrow=True,
)


def _pool_ranked_fake(x, weight, ranks, mask, lengths, offsets):
    return x.new_empty(pooled_shape(x, offsets))


pool_ranked = operator(
    "pool_ranked",
    f"(Tensor x, Tensor weight, Tensor? ranks, {SETS}) -> Tensor",
    cpu.pool_ranked,
    _pool_ranked_fake,
    cuda="pool.pool_ranked",
    narrow=True,
)


def _unpool_fake(z, weight, ranks, mask, lengths, offsets, rows):
    return z.new_empty(rows_shape(z, rows, offsets))


unpool = operator(
    "unpool",
    f"(Tensor z, Tensor weight, Tensor? ranks, {SETS}, SymInt rows) -> Tensor",
    cpu.unpool,
    _unpool_fake,
    cuda="pool.unpool",
    narrow=True,
)


def _knots_fake(z, x, ranks, mask, lengths, offsets, knots, dtype):
    return torch.empty(z.shape[0], z.shape[2], knots, dtype=dtype, device=z.device)


knots = operator(
    "knots",
    f"(Tensor z, Tensor x, Tensor? ranks, {SETS}, int knots, ScalarType dtype) -> Tensor",
    cpu.knots,
    _knots_fake,
    cuda="pool.knots",
    narrow=True,
)


def _pull_fake(z, x, weight, ranks, kept, mask, lengths, offsets):
    return z.new_empty(ranks.shape), weight.new_empty(weight.shape)


pull = operator(
    "pull",
    f"(Tensor z, Tensor x, Tensor weight, Tensor ranks, Tensor kept, {SETS}) -> (Tensor, Tensor)",
    cpu.pull,
    _pull_fake,
    cuda="pool.pull",
    narrow=True,
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember_pool(ctx, inputs, output) -> None:
    x, weight, *sets = inputs[:5]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, *output[1:], *sets)


def _pool_backward(ctx, dy: Tensor | None, *_):
    """Only y has a gradient; the ranks and the sorted x that was kept are for this function."""
    if dy is None:
        return (None,) * 8
    x, weight, ranks, kept, *sets = ctx.saved_tensors
    if ranks.shape != x.shape:  # the kernels would read outside of their memory
        raise RuntimeError("fspool::pool ran without its ranks; gradients need ranked=True.")
    if all(ctx.needs_input_grad[:2]) and not torch.is_grad_enabled():  # the common case
        return *pull(dy, x, weight, ranks, kept, *sets), *[None] * 6
    return *_pool_gradients(ctx, dy, x, weight, ranks, sets), *[None] * 6


def _pool_ranked_backward(ctx, dy: Tensor):
    x, weight, ranks, *sets = ctx.saved_tensors
    return *_pool_gradients(ctx, dy, x, weight, ranks, sets), *[None] * 4


def _pool_gradients(ctx, dy, x, weight, ranks, sets) -> tuple[Tensor | None, Tensor | None]:
    dx = unpool(dy, weight, ranks, *sets, x.shape[-2]) if ctx.needs_input_grad[0] else None
    return dx, _knot_gradient(ctx, dy, x, weight, ranks, sets)


def _remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:6])


def _unpool_backward(ctx, dx: Tensor):
    z, weight, ranks, *sets = ctx.saved_tensors
    dz = pool_ranked(dx, weight, ranks, *sets) if ctx.needs_input_grad[0] else None
    return dz, _knot_gradient(ctx, z, dx, weight, ranks, sets), *[None] * 5


def _knots_backward(ctx, dw: Tensor):
    z, x, ranks, *sets = ctx.saved_tensors
    dz = pool_ranked(x, dw, ranks, *sets) if ctx.needs_input_grad[0] else None
    dx = unpool(z, dw, ranks, *sets, x.shape[-2]) if ctx.needs_input_grad[1] else None
    return dz, dx, *[None] * 6


def _knot_gradient(ctx, z, x, weight, ranks, sets) -> Tensor | None:
    if not ctx.needs_input_grad[1]:
        return None
    return knots(z, x, ranks, *sets, weight.shape[-1], weight.dtype)


differentiate(pool, _pool_backward, _remember_pool)
differentiate(pool_ranked, _pool_ranked_backward, _remember)
differentiate(unpool, _unpool_backward, _remember)
differentiate(knots, _knots_backward, _remember)
