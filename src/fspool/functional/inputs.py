"""Checks that the operators share, beyond those of the sets themselves."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..checks import check_device, check_floating
from ..layouts import Sets, enter_pooled
from ..sets import check_longest, readable

if TYPE_CHECKING:
    from .order import Order


def read_weight(weight: Tensor, dim: int, sets: Sets, beside: str, device: torch.device) -> Tensor:
    """``weight (D, k)``, or ``(G, D, k)`` where the sets have replicas, to the inner (G, D, k)."""
    check_floating("weight", weight)
    groups = sets.shape[0]
    form = f"(G, D, k) = ({groups}, {dim}, k)" if sets.replicas else f"(D, k) = ({dim}, k)"
    expected = (groups, dim) if sets.replicas else (dim,)
    if weight.ndim != len(expected) + 1 or tuple(weight.shape[:-1]) != expected:
        hint = ""
        if weight.ndim == 2 and sets.layout == "padded" and sets.replicas:
            hint = f", or {beside}.flatten(0, 1) where both of its first axes are of the batch"
        elif weight.ndim == 2 and sets.layout == "packed" and sets.replicas:
            hint = f"; packed {beside} is (T, D), and padded {beside} goes with sizes, not offsets"
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}; expected {form} to fit {beside}, "
            f"which has {dim} features{hint}."
        )
    if weight.shape[-1] < 2:
        raise ValueError(
            f"weight has {weight.shape[-1]} knots; expected at least 2, the largest and smallest."
        )
    check_device("weight", weight, beside, device)
    return weight if sets.replicas else weight.unsqueeze(0)


def read_pooled(z: Tensor, weight: Tensor, order: Order, name: str) -> tuple[Tensor, Tensor]:
    """What a decoder takes, checked, to the inner (G, B, D) and (G, D, k)."""
    from .order import Order

    if not isinstance(order, Order):
        kind = type(order).__name__
        raise TypeError(f"order is a {kind}; expected the Order that return_order=True gives.")
    inner = enter_pooled(order.sets, z, order.dim, name)
    weight = read_weight(weight, order.dim, order.sets, name, inner.device)
    check_device("order", order.ranks, name, inner.device)
    return inner, weight


def read_longest(longest: int | None, sets: Sets) -> int | None:
    """How many elements a packed set has at most; what can be read is checked."""
    if longest is None:
        return None
    if sets.layout == "padded":
        raise ValueError("got longest for padded sets, which have N rows; leave it out.")
    return check_longest(longest, sets.offsets)


def read_temperature(temperature: float | Tensor | None, x: Tensor) -> Tensor | None:
    """None for the ordinary sort, else a 0-d tensor beside x."""
    if temperature is None:
        return None
    dtype = compute_dtype(x)
    if not isinstance(temperature, Tensor):
        if isinstance(temperature, bool) or not isinstance(temperature, Real):
            kind = type(temperature).__name__
            raise TypeError(f"temperature is a {kind}; expected None, a number or a 0-d tensor.")
        _check_positive(float(temperature), dtype)
        return torch.full((), float(temperature), dtype=dtype, device=x.device)
    if temperature.ndim != 0 or not temperature.is_floating_point():
        raise ValueError(
            f"temperature is a tensor of shape {tuple(temperature.shape)} and dtype "
            f"{temperature.dtype}; expected a 0-d tensor of a floating dtype."
        )
    if temperature.requires_grad:
        raise ValueError(
            "temperature requires a gradient, which the relaxed sort does not have; "
            "learn a scale of x instead: P depends on x / temperature only."
        )
    check_device("temperature", temperature, "x", x.device)
    if readable(temperature):
        _check_positive(float(temperature), dtype)
    return temperature.clone()  # a schedule writes the original in place, under an order's feet


def _check_positive(temperature: float, dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    if not limits.tiny <= temperature <= limits.max:  # nor NaN
        raise ValueError(
            f"temperature is {temperature}; expected a positive number that {dtype} can hold, "
            "or None for the ordinary sort."
        )


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """What sums are accumulated in: float32, or float64 where any input has it."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def exact(x: Tensor) -> AbstractContextManager:
    """Autocast off: the operators choose their own precision."""
    if x.device.type == "meta":  # knows no autocast
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)
