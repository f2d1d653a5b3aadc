"""Many runs as one: models of the same form become one model with a leading replica axis."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn


def stack(models: Sequence[nn.Module]) -> nn.Module:
    """One model whose parameters are those of the models, stacked: x is (G, B, ...) for it.

    Its layers have to know the replica axis, as those of `fspool.nn` and `fspool.models` do.
    """
    stacked = copy.deepcopy(models[0])
    each = [dict(_tensors(model)) for model in models]
    for name, first in each[0].items():
        _put(stacked, name, torch.stack([own[name].detach() for own in each]), first)
    return stacked


def select(model: nn.Module, part: slice) -> nn.Module:
    """The model of some of the runs; its tensors are the same memory."""
    selected = copy.deepcopy(model)
    for name, tensor in _tensors(model):
        _put(selected, name, tensor.detach()[part], tensor)
    return selected


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, and buffers that every run has its own of: those with an axis."""
    yield from model.named_parameters()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if buffer.ndim)


def _put(model: nn.Module, name: str, value: Tensor, like: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    if isinstance(like, nn.Parameter):
        value = nn.Parameter(value, requires_grad=like.requires_grad)
    setattr(model.get_submodule(owner), leaf, value)
