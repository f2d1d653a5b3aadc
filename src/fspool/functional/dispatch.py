"""Which implementation runs: the definition, or a registered operator where one may be used.

`fspool.kernels` registers its operators here when it is imported; nothing here knows it. Without
that folder the table stays empty and every public function runs its definition.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..layouts import transforms

OFF = os.environ.get("FSPOOL_KERNELS") == "0"  # the definitions alone, wherever one is in doubt

_operators: dict[tuple[str, str], Callable] = {}
_narrow: set[tuple[str, str]] = set()  # those that float64 does not fit


def register(name: str, device_type: str, operator: Callable, narrow: bool = False) -> None:
    if OFF:
        return
    _operators[name, device_type] = operator
    if narrow:
        _narrow.add((name, device_type))


def registered(device_type: str) -> list[str]:
    """The operators that have a kernel there."""
    return [name for name, kind in _operators if kind == device_type]


def fastest(name: str, x: Tensor) -> Callable | None:
    """The registered operator for x, or None where only the definition is right.

    torch.export and ONNX get plain torch operators, so that what they write runs without fspool.
    torch.func.grad and friends, and forward-mode derivatives, cannot see through a registered
    operator; vmap can.
    """
    if is_exporting():
        return None
    if any(name != "Vmap" for name in transforms()) or forward_ad._current_level >= 0:
        return None
    if x.shape[-1] == 0:  # nothing to make fast
        return None
    return fitting(name, x)


def wants_gradient(tensor: Tensor) -> bool:
    """Will a gradient be asked for? Inside a transform, such as vmap, a tensor does not say."""
    return torch.is_grad_enabled() and (tensor.requires_grad or bool(transforms()))


def is_exporting() -> bool:
    return torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()


# Called while tracing, as `transforms` in layouts.py is. Traced, torch.compiler.is_exporting would
# be true under torch.compile as well.
is_exporting._dynamo_marked_constant = True


def without_gradient(name: str, x: Tensor) -> Callable | None:
    """An operator whose result has no derivative: every transform can go through it."""
    return None if is_exporting() else fitting(name, x)


def fitting(name: str, x: Tensor) -> Callable | None:
    """The operator for x, if there is one, whoever asks."""
    key = name, x.device.type
    return None if key in _narrow and x.dtype == torch.float64 else _operators.get(key)


def on_device(name: str, x: Tensor) -> Callable | None:
    """An operator where many small ones would each cost a launch. The CPU gains nothing by it."""
    if x.device.type == "cpu" or not x.is_floating_point():
        return None
    return fastest(name, x)
