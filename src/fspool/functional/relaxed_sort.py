"""NeuralSort (Grover et al., ICLR 2019), feature by feature: a sort with a gradient everywhere.

For the n values s of one feature of one set and a temperature :math:`\\tau > 0`, row r of

.. math::
    P_{rj} = \\mathrm{softmax}_j
        \\left( \\frac{(n + 1 - 2r)\\, s_j - \\sum_k |s_j - s_k|}{\\tau} \\right)

says how much each element takes part in rank r; :math:`P s` is the relaxed sort, and P becomes the
ordinary permutation matrix as :math:`\\tau \\to 0`.

Everything here works on values that were sorted before (NeuralSort is equivariant, so that only
renames the columns): there P is a band around the diagonal, which the registered operators walk
without storing it. The definitions below build P: O(n^2) memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..layouts import Sets
from ..sets import read
from .by_rank import lengths_by_rank, to_ranks
from .dispatch import fastest
from .inputs import compute_dtype, exact, read_temperature

if TYPE_CHECKING:
    from .order import Order

SMALL = 1 << 22  # entries of P up to which the CPU builds it faster than it walks along its band


def relaxed_sort(
    x: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    mask: Tensor | None = None,
    sizes: Tensor | None = None,
    offsets: Tensor | None = None,
    return_order: bool = False,
) -> Tensor | tuple[Tensor, Order]:
    """Sort every feature of every set in descending order, softly: P x.

    Args:
        x: Sets of features, ``(B, N, D)``, packed ``(T, D)`` or nested.
        temperature: Small is close to the ordinary sort; large averages.
        mask: ``(B, N)``, True for elements.
        sizes: ``(B,)``, elements first.
        offsets: ``(B + 1,)`` for packed x.
        return_order: Also return the :class:`~fspool.Order`, whose ``unsort`` applies P^T.

    Returns:
        A tensor like x. Row j of a set holds its j-th largest values; zeros in the padding.

    Example:
        >>> x = torch.tensor([[[1.0], [3.0], [2.0]]])
        >>> fspool.functional.relaxed_sort(x, temperature=0.1).flatten()
        tensor([3.0000, 2.0000, 1.0000])

    Memory is linear in n and time about n sqrt(n). Second derivatives use the definition, O(n^2),
    and so does CUDA where Triton is not installed. The definition pads packed sets to the largest,
    which on CUDA waits for the device.
    """
    sets, inner = read(x, mask=mask, sizes=sizes, offsets=offsets)
    temperature = read_temperature(temperature, inner)
    if temperature is None:
        raise ValueError("temperature is None; expected a positive number, or use torch.sort.")
    with exact(inner):
        result, order = relaxed_order(inner.to(compute_dtype(inner)), temperature, sets)
        result = sets.leave(result.to(inner.dtype))
    return (result, order) if return_order else result


def relaxed_order(x: Tensor, temperature: Tensor, sets: Sets) -> tuple[Tensor, Order]:
    """P x by rank, and the order that remembers P. x is (G, ..., D) in its compute dtype."""
    from .order import Order

    ranks = sorted_ranks(x, sets)
    values = to_ranks(x, ranks, sets)
    operator = fastest("relaxed_sort", values)
    if operator is None or _is_small(sets, values):
        p = permutation(values, temperature, sets)
        order = Order(sets, ranks, values, None, temperature, p)
        return sets.clear_ranks(apply(order, values)), order
    result, normaliser = operator(values, values, temperature, None, *lengths_by_rank(sets))
    return result, Order(sets, ranks, values, normaliser, temperature)


def sorted_ranks(x: Tensor, sets: Sets) -> Tensor:
    """The rank of every element, by the fastest implementation."""
    operator = fastest("ranks", x)
    if operator is None:
        return sets.ranks(x.detach())
    return operator(x.detach(), sets.mask, sets.lengths, sets.offsets)


def apply(order: Order, v: Tensor) -> Tensor:
    """P v, both indexed by rank."""
    operator = fastest("relaxed_sort", v)
    if operator is None or order.normaliser is None:
        p = _stored(order)
        v = order.sets.pad(v, p.shape[-2]).unsqueeze(-3)
        return order.sets.unpad((p * v.to(p.dtype)).sum(-2))
    return operator(order.values, v.to(order.values.dtype), *_parameters(order))[0]


def apply_transposed(order: Order, v: Tensor) -> Tensor:
    """P^T v, both indexed by rank."""
    operator = fastest("relaxed_unsort", v)
    if operator is None or order.normaliser is None:
        p = _stored(order)
        v = order.sets.pad(v, p.shape[-2]).unsqueeze(-2)
        return order.sets.unpad((p * v.to(p.dtype)).sum(-3))
    return operator(order.values, v.to(order.values.dtype), *_parameters(order))


def slope(order: Order, a: Tensor, x: Tensor) -> Tensor:
    """The gradient of a^T P(s) x to the sorted values s, with a and x held fixed."""
    operator = fastest("relaxed_slope", a)
    if operator is None or order.normaliser is None:
        pad, sets = order.sets.pad, order.sets
        values = pad(order.values)
        count = sets.sizes[..., None, None]
        return sets.unpad(slope_definition(values, pad(a), pad(x), order.temperature, count))
    dtype = order.values.dtype
    projected = apply(order, x.to(dtype))
    return operator(order.values, a.to(dtype), x.to(dtype), projected, *_parameters(order))


def permutation(values: Tensor, temperature: Tensor, sets: Sets) -> Tensor:
    """P of every set and feature, (G, B, N, N, D), columns in sorted order."""
    operator = fastest("permutation", values)
    if operator is not None and sets.full:
        return operator(values, temperature)
    count = None if sets.full else sets.sizes[..., None, None]
    return permutation_definition(sets.pad(values), temperature, count)


def permutation_definition(s: Tensor, temperature: Tensor, count: Tensor | None = None) -> Tensor:
    """The formula at the top of this file: values s (..., N, D) to P (..., N, N, D).

    Where only the first ``count (..., 1, 1)`` values are valid, rows and columns from there on are
    zero: a mask, since a very low number in the padding would swamp the logits. Logits are small
    differences of large numbers: float64 for them, where the device has it.
    """
    length, dtype = s.shape[-2], s.dtype
    s = s if s.device.type == "mps" else s.double()
    index = torch.arange(length, device=s.device)[:, None]
    valid = None if count is None else index < count  # (..., N, 1)
    if valid is not None:
        s = s.masked_fill(~valid, 0)
    s = s - s[..., :1, :].detach()  # only differences matter
    distance = (s.unsqueeze(-2) - s.unsqueeze(-3)).abs()
    if valid is not None:
        distance = distance.masked_fill(~valid.unsqueeze(-3), 0)
    scale = ((length if count is None else count) - 1 - 2 * index).to(s.dtype)  # n + 1 - 2r
    logits = scale.unsqueeze(-1) * s.unsqueeze(-3) - distance.sum(-2).unsqueeze(-3)
    logits = logits / temperature.to(s.dtype)
    if valid is None:
        return logits.softmax(-2).to(dtype)
    kept = valid | (count == 0)  # softmax needs something, also where all of it is cleared
    logits = logits.masked_fill(~kept.unsqueeze(-3), float("-inf"))
    p = logits.softmax(-2).masked_fill(~(valid.unsqueeze(-3) & valid.unsqueeze(-2)), 0)
    return p.to(dtype)


def slope_definition(s: Tensor, a: Tensor, x: Tensor, temperature: Tensor, count: Tensor) -> Tensor:
    """:func:`slope` for padded (..., N, D) tensors, written out so that it has derivatives itself.

    With G = dL/dlogits and C its column sums, the logits' derivative to s_m has one term from
    (n + 1 - 2r) s_m and two from the absolute differences, whose sign is 0 at a tie.
    """
    p = permutation_definition(s, temperature, count).movedim(-1, -3)
    index = torch.arange(s.shape[-2], device=s.device)
    valid = index < count
    s, a, x = (t.transpose(-1, -2).masked_fill(~valid, 0) for t in (s, a, x))
    outer = a.unsqueeze(-1) * x.unsqueeze(-2)
    gradient = p * (outer - (p * outer).sum(-1, keepdim=True))
    column = gradient.sum(-2)
    sign = (s.unsqueeze(-1) - s.unsqueeze(-2)).sign()  # sign[j, m] of s_j - s_m
    both = valid.unsqueeze(-1) & valid.unsqueeze(-2)
    sign = sign.masked_fill(~both, 0)
    scale = (count - 1 - 2 * index).to(s.dtype).unsqueeze(-1)
    ds = (scale * gradient).sum(-2) + (column.unsqueeze(-1) * sign).sum(-2) + column * sign.sum(-2)
    return ds.transpose(-1, -2) / temperature.to(s.dtype)


def _stored(order: Order) -> Tensor:
    if order.p is not None:
        return order.p
    return permutation(order.values, order.temperature, order.sets)


def _is_small(sets: Sets, values: Tensor) -> bool:
    if values.device.type != "cpu" or not sets.full:
        return False
    return values.numel() * sets.shape[2] <= SMALL


def _parameters(order: Order) -> tuple:
    return order.temperature, order.normaliser, *lengths_by_rank(order.sets)
