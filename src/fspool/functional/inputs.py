"""Checks that the operators share, beyond those of the sets themselves."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layouts import Sets
from ..sets import readable


def read_weight(weight: Tensor, dim: int, sets: Sets, device: torch.device) -> Tensor:
    """``weight (D, k)``, or ``(G, D, k)`` where the sets have replicas, to the inner (G, D, k)."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        got = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
        raise TypeError(f"weight is of type {got}; expected a tensor of a floating dtype.")
    groups = sets.shape[0]
    form = f"(G, D, k) = ({groups}, {dim}, k)" if sets.replicas else f"(D, k) = ({dim}, k)"
    expected = (groups, dim) if sets.replicas else (dim,)
    if weight.ndim != len(expected) + 1 or tuple(weight.shape[:-1]) != expected:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; expected {form} to fit x.")
    if weight.shape[-1] < 2:
        raise ValueError(
            f"weight has {weight.shape[-1]} knots; expected at least 2, the largest and smallest."
        )
    if weight.device != device:
        raise ValueError(f"weight is on {weight.device}, but x is on {device}; move one of them.")
    return weight if sets.replicas else weight.unsqueeze(0)


def read_temperature(temperature: float | Tensor | None, x: Tensor) -> Tensor | None:
    """None for the ordinary sort, else a 0-d tensor beside x."""
    if temperature is None:
        return None
    if not isinstance(temperature, Tensor):
        if isinstance(temperature, bool) or not isinstance(temperature, (int, float)):
            kind = type(temperature).__name__
            raise TypeError(f"temperature is a {kind}; expected None, a number or a 0-d tensor.")
        if not 0 < temperature < float("inf"):
            raise ValueError(
                f"temperature is {temperature}; expected a positive number, "
                "or None for the ordinary sort."
            )
        return torch.full((), temperature, dtype=compute_dtype(x), device=x.device)
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
    if temperature.device != x.device:
        raise ValueError(
            f"temperature is on {temperature.device}, but x is on {x.device}; move one of them."
        )
    if readable(temperature) and not 0 < float(temperature) < float("inf"):
        raise ValueError(
            f"temperature is {float(temperature)}; expected a positive number, "
            "or None for the ordinary sort."
        )
    return temperature


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """What sums are accumulated in: float32, or float64 where any input has it."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def exact(x: Tensor) -> torch.autocast:
    """Autocast off: the operators choose their own precision."""
    return torch.autocast(x.device.type, enabled=False)
