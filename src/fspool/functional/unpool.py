"""FSUnpool: the pool run backwards, from one vector to a set in the order that was remembered.

.. math::
    S'_{ij} = f\\!\\left(\\frac{j - 1}{n - 1}, \\bar w'_i\\right) z_i, \\qquad X'_i = P_i^\\top S'_i
"""

from __future__ import annotations

from torch import Tensor

from .by_rank import from_ranks, spread_by_rank
from .dispatch import fastest
from .inputs import compute_dtype, exact, read_pooled
from .order import Order
from .piecewise import piecewise_linear
from .relaxed_sort import apply_transposed


def fsunpool(z: Tensor, weight: Tensor, order: Order) -> Tensor:
    """Spread every vector over the elements of its set, and undo the sort that made the order.

    Args:
        z: ``(B, D)``, one vector for each set.
        weight: ``(D, k)``, the knots of the decoder's own weight function.
        order: From ``fspool(..., return_order=True)``. ``order.select(features)`` unsorts with only
            some of the permutations; z and weight then have that many features.

    Returns:
        The layout that was pooled, in the dtype of z and with elements in their input order;
        padded ``(B, N, D)`` with zeros where there is no element, packed ``(T, D)``, or jagged.

    Example:
        >>> x = torch.tensor([[[3.0], [1.0], [2.0]]])
        >>> weight = torch.tensor([[1.0, 0.0, -1.0]])
        >>> _, order = fspool.functional.fspool(x, weight, return_order=True)
        >>> fspool.functional.fsunpool(torch.tensor([[10.0]]), weight, order).flatten()
        tensor([ 10., -10.,   0.])
    """
    inner, weight = read_pooled(z, weight, order, "z")
    sets = order.sets
    with exact(inner):
        if order.temperature is None:
            x = spread_ranks(inner, weight, order)
        else:
            dtype = compute_dtype(inner, weight, order.values)
            v = spread_by_rank(inner.to(dtype), weight.to(dtype), sets)
            v = apply_transposed(order, v)
            x = from_ranks(v, order.ranks, sets)
        return sets.leave(x.to(z.dtype))


def spread_ranks(z: Tensor, weight: Tensor, order: Order) -> Tensor:
    """Unpool with a hard order, by the fastest implementation."""
    sets, ranks = order.sets, order.ranks
    operator = fastest("unpool", z)
    if operator is None:
        return unpool_definition(z, weight, order)
    return operator(z, weight, ranks, sets.mask, sets.lengths, sets.offsets, sets.shape[2])


def unpool_definition(z: Tensor, weight: Tensor, order: Order) -> Tensor:
    """The formula at the top of this file, seen from each element: f(rank) times z."""
    dtype = compute_dtype(z, weight)
    weights = piecewise_linear(weight.to(dtype), order.ranks, order.sets.element_sizes)
    return order.sets.clear(weights * order.sets.spread(z.to(dtype)))
