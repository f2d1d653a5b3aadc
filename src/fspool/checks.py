"""Checks of arguments. An error is one sentence: what came, what was expected, what to do."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable

import torch
from torch import Tensor

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class UserError(ValueError):
    """Something that only the user can put right; the command prints its sentence and no trace."""


def check_tensor(name: str, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        raise TypeError(f"{name} is a {kind}; expected a tensor, so pass torch.tensor({name}).")


def check_floating(name: str, value: Tensor) -> None:
    check_tensor(name, value)
    if not value.is_floating_point():
        raise TypeError(
            f"{name} has dtype {value.dtype}; expected a floating dtype, so convert it first."
        )


def check_integer(name: str, value: Tensor) -> None:
    check_tensor(name, value)
    if value.dtype not in INTEGERS:
        raise TypeError(
            f"{name} has dtype {value.dtype}; expected an integer dtype such as torch.int64."
        )


def check_bool(name: str, value: Tensor) -> None:
    check_tensor(name, value)
    if value.dtype != torch.bool:
        raise TypeError(
            f"{name} has dtype {value.dtype}; expected torch.bool with True for elements, "
            f"so pass {name}.bool()."
        )


def check_device(name: str, value: Tensor, other: str, device: torch.device) -> None:
    if value.device != device:
        raise ValueError(
            f"{name} is on {value.device}, but {other} is on {device}; move one of them."
        )


def check_count(name: str, value: int, least: int, meaning: str) -> int:
    """An integer, or anything that counts as one."""
    count = operator.index(value) if hasattr(value, "__index__") else least - 1
    if count < least or isinstance(value, bool):
        raise ValueError(f"{name} is {value}; expected {meaning}, an integer of at least {least}.")
    return count


def nearest(name: str, value: str, valid: Iterable[str]) -> str:
    """The value, if it is one of the valid names; else an error that says which one is close."""
    valid = list(valid)
    if value in valid:
        return value
    close = difflib.get_close_matches(str(value), valid, n=1, cutoff=0.5)
    hint = f", perhaps {close[0]!r}" if close else ""
    raise UserError(f"{name} is {value!r}; expected one of {', '.join(valid)}{hint}.")
