"""Registration: one call makes a torch operator with shapes for tracing, vmap, and a place in the
table of :mod:`fspool.functional.dispatch`. Gradients are added by the file that knows them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..functional import dispatch
from .cpu.chunks import quiet

SETS = "Tensor? mask, Tensor? lengths, Tensor? offsets"
SHARED = {"offsets": 1, "temperature": 0}  # axes of tensors where they have no replica axis
HAS_TRITON = find_spec("triton") is not None and torch.version.hip is None  # written for NVIDIA's


def operator(
    name: str,
    schema: str,
    cpu: Callable,
    fake: Callable,
    cuda: str | None = None,
    narrow: bool = False,
) -> torch._ops.OpOverload:
    """Register ``fspool::name`` with its CPU implementation, its shapes, and, where Triton is
    installed, its CUDA implementation: "module.function" of :mod:`fspool.kernels.cuda`, which is
    narrow where it does not take float64.

    By the parts of ``torch.library.custom_op``, whose whole would import the compiler when called.
    """
    full = f"fspool::{name}"
    torch.library.define(full, schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(full, "CPU", quiet(cpu))
    torch.library.register_fake(full, fake)
    op = getattr(torch.ops.fspool, name).default
    torch.library.register_vmap(full, _fold(op))
    dispatch.register(name, "cpu", op)
    if cuda and HAS_TRITON:
        torch.library.impl(full, "CUDA", _at_first_call(cuda))
        dispatch.register(name, "cuda", op, narrow)
    return op


def _at_first_call(path: str) -> Callable:
    """A function of ``kernels.cuda`` that is imported, and Triton with it, when it is needed."""
    module, name = path.split(".")

    def call(*arguments):
        return getattr(import_module(f".cuda.{module}", __package__), name)(*arguments)

    return call


def differentiate(op: torch._ops.OpOverload, backward: Callable, remember: Callable) -> None:
    """Give an operator its gradient."""
    torch.library.register_autograd(op.name(), backward, setup_context=remember)


def _fold(op: torch._ops.OpOverload) -> Callable:
    """vmap by the replica axis: the mapped axis goes in front of it, and both become one.

    What replicas share cannot fold: where that is mapped, one call for each.
    """

    arguments = [argument.name for argument in op._schema.arguments]

    def is_shared(name, value, dim) -> bool:
        return name in SHARED and value.ndim - (dim is not None) == SHARED[name]

    def rule(info, in_dims, *values):
        given = arguments[: len(values)]  # the last ones may have their defaults
        named = list(zip(given, values, in_dims, strict=True))
        if any(dim is not None and is_shared(name, value, dim) for name, value, dim in named):
            each = [
                op(*(v if d is None else v.select(d, i) for _, v, d in named))
                for i in range(info.batch_size)
            ]
            out = pytree.tree_map(lambda *ts: torch.stack(ts), *each)
            return out, pytree.tree_map(lambda _: 0, out)
        folded, replicas = [], -1
        for name, value, dim in named:
            if isinstance(value, Tensor) and not is_shared(name, value, dim):
                value = value.unsqueeze(0) if dim is None else value.movedim(dim, 0)
                replicas = value.shape[1]
                value = value.expand(info.batch_size, *value.shape[1:]).flatten(0, 1)
            folded.append(value)
        out = op(*folded)
        out = pytree.tree_map(lambda t: t.unflatten(0, (info.batch_size, replicas)), out)
        return out, pytree.tree_map(lambda _: 0, out)

    return rule
