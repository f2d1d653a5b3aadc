"""Many runs as one: models of the same form become one model with a leading replica axis."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn


def stack(models: Sequence[nn.Module]) -> nn.Module:
    """One model whose parameters are those of the models, stacked: x is (G, B, ...) for it.

    Its layers have to know the replica axis, as those of `fspool.nn` and `fspool.models` do.
    """
    stacked = copy.deepcopy(models[0])
    parameters = [dict(model.named_parameters()) for model in models]
    for name in parameters[0]:
        owner, _, leaf = name.rpartition(".")
        value = torch.stack([own[name].detach() for own in parameters])
        trained = parameters[0][name].requires_grad
        setattr(stacked.get_submodule(owner), leaf, nn.Parameter(value, requires_grad=trained))
    return stacked


def select(model: nn.Module, part: slice) -> nn.Module:
    """The model of some of the runs; its parameters are the same memory."""
    selected = copy.deepcopy(model)
    for name, parameter in model.named_parameters():
        owner, _, leaf = name.rpartition(".")
        value = nn.Parameter(parameter.detach()[part], requires_grad=parameter.requires_grad)
        setattr(selected.get_submodule(owner), leaf, value)
    return selected
