"""FSPool: sort every feature over the set on its own, then take a weighted sum over the ranks.

.. math:: y_i = \\sum_{j=1}^{n} f\\!\\left(\\frac{j - 1}{n - 1}, \\bar w_i\\right) S_{ij}

S is x sorted in descending order, feature by feature; f is piecewise linear
(:mod:`fspool.functional.piecewise`). Since a sum does not care for its order, the same thing reads
:math:`y_i = \\sum_j f(\\mathrm{rank}_{ij} / (n - 1)) x_{ij}`: linear in x, in the weight and, seen
from its gradient, in g. Pool, unpool and the gradient to the knots are the three partial
derivatives of that one trilinear form, so each one's derivative is the other two.
"""

from __future__ import annotations

from torch import Tensor

from ..layouts import Sets, leave_pooled
from ..sets import read
from .by_rank import from_ranks, spread_by_rank, sum_by_rank
from .dispatch import fastest, wants_gradient
from .inputs import (
    compute_dtype,
    exact,
    read_longest,
    read_pooled,
    read_temperature,
    read_weight,
)
from .order import Order
from .piecewise import piecewise_linear
from .relaxed_sort import apply_transposed, relaxed_order, slope
from .unpool import spread_ranks


def fspool(
    x: Tensor,
    weight: Tensor,
    *,
    mask: Tensor | None = None,
    sizes: Tensor | None = None,
    offsets: Tensor | None = None,
    longest: int | None = None,
    temperature: float | Tensor | None = None,
    return_order: bool = False,
) -> Tensor | tuple[Tensor, Order]:
    """Pool every set to one vector: featurewise sort, then a weighted sum over ranks.

    Args:
        x: Sets of features: padded ``(B, N, D)``, packed ``(T, D)`` with offsets, or jagged nested.
        weight: ``(D, k)``: for every feature k values of a piecewise-linear function of the
            relative rank, from the largest element (first) to the smallest (last).
        mask: ``(B, N)`` bool, True for elements, at any positions.
        sizes: ``(B,)`` integers, elements first.
        offsets: ``(B + 1,)`` integers; set b is ``x[offsets[b]:offsets[b + 1]]``.
        longest: Elements of the largest set at most, where sets are packed and somebody knows: a
            GPU then need not look after larger ones. There a set of more may come out as NaN.
        temperature: None for the ordinary sort; a positive number or 0-d tensor relaxes it.
        return_order: Also return the :class:`~fspool.Order`, for :func:`fsunpool`.

    Returns:
        ``(B, D)`` in the dtype of x. With a replica axis, x ``(G, B, N, D)`` and weight
        ``(G, D, k)`` give ``(G, B, D)``. The empty set gives zeros; one element alone takes the
        first knot. Padding never matters, whatever it holds; nor do, where replicas have offsets
        ``(G, B + 1)`` of their own that end before T, the rows after them.

    Example:
        >>> x = torch.tensor([[[3.0, 1.0], [1.0, 2.0], [2.0, 3.0]]])
        >>> maximum = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
        >>> fspool.functional.fspool(x, maximum)
        tensor([[3., 3.]])

    Nothing waits for the device, except second derivatives of a relaxed sort of packed sets.
    """
    sets, inner = read(x, mask=mask, sizes=sizes, offsets=offsets)
    weight = read_weight(weight, inner.shape[-1], sets, "x", inner.device)
    temperature = read_temperature(temperature, inner)
    longest = read_longest(longest, sets)
    with exact(inner):
        if temperature is None:
            y, ranks = sorted_sum(inner, weight, sets, return_order, longest)
            order = Order(sets, ranks)
        else:
            dtype = compute_dtype(inner, weight)
            sorted_x, order = relaxed_order(inner.to(dtype), temperature, sets)
            y = sum_by_rank(sorted_x, weight.to(dtype), sets)
        y = leave_pooled(sets, y.to(inner.dtype))
    return (y, order) if return_order else y


def fspool_vjp(g: Tensor, weight: Tensor, order: Order) -> Tensor:
    """The gradient of :func:`fspool` to x, for a gradient ``g (B, D)`` to its result.

    A plain forward function, differentiable itself in g, weight and (relaxed) x: what a model needs
    that takes gradient steps of its own, such as a deep set prediction network, and the form that
    ``torch.compile`` understands.

    Returns:
        A tensor of the layout of x; zeros in the padding.
    """
    inner, weight = read_pooled(g, weight, order, "g")
    sets = order.sets
    with exact(inner):
        if order.temperature is None:
            dx = spread_ranks(inner, weight, order)
        else:
            dtype = compute_dtype(inner, weight, order.values)
            a = spread_by_rank(inner.to(dtype), weight.to(dtype), sets)
            ds = apply_transposed(order, a) + slope(order, a, order.values)
            dx = from_ranks(ds, order.ranks, sets)
        return sets.leave(dx.to(g.dtype))


def sorted_sum(
    x: Tensor, weight: Tensor, sets: Sets, keep_ranks: bool, longest: int | None = None
) -> tuple[Tensor, Tensor]:
    """The pooled x and, where somebody will need them, the ranks: by the fastest implementation."""
    operator = fastest("pool", x)
    if operator is None:
        return pool_definition(x, weight, sets)
    weight_grad = wants_gradient(weight)
    ranked = keep_ranks or weight_grad or wants_gradient(x)
    if weight_grad and weight.is_cuda:  # as its kernels read it: copied here, not also in backward
        weight = weight.mT.contiguous().mT
    where = sets.mask, sets.lengths, sets.offsets
    return operator(x, weight, *where, ranked, weight_grad, longest)[:2]


def pool_definition(x: Tensor, weight: Tensor, sets: Sets) -> tuple[Tensor, Tensor]:
    """The formula at the top of this file. x (G, ..., D), weight (G, D, k) -> (G, B, D)."""
    dtype = compute_dtype(x, weight)
    ranks = sets.ranks(x.detach())
    weights = piecewise_linear(weight.to(dtype), ranks, sets.element_sizes)
    return sets.sum(weights * sets.clear(x.to(dtype))), ranks
