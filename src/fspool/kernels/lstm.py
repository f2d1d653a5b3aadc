"""The LSTM of :mod:`fspool.functional.lstm` as torch operators.

x is float32. What is kept for the gradient lies by step: hidden and cell states (G, T + 1, B, H)
from the zeros before the first step on, and gates after their sigmoid or tanh (G, T, B, 4 H).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional.lstm import lstm_definition
from .cpu import lstm as cpu
from .operator import differentiate, operator


def _fake(x, weight, words, start, kept):
    groups, batch, steps = (x if words is None else words).shape[:3]
    width = weight.shape[-1]
    shapes = cpu.shapes(groups, steps, batch, width) if kept else [(groups, 0)] * 3
    last = [x.new_empty((groups, batch, width)) for _ in range(2)]
    hidden, cells, gates = (x.new_empty(shape) for shape in shapes)
    return *last, hidden.to(weight.dtype), cells, gates.to(weight.dtype)


lstm = operator(
    "lstm",
    "(Tensor x, Tensor weight, Tensor? words, Tensor? start, bool kept)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu.lstm,
    _fake,
    cuda="lstm.lstm",
    narrow=True,
)
pull = operator(
    "lstm_pull",
    "(Tensor dhidden, Tensor dcell, Tensor weight, Tensor? start, Tensor hidden, Tensor cells,"
    " Tensor gates) -> (Tensor, Tensor)",
    cpu.pull,
    lambda dhidden, dcell, weight, start, hidden, cells, gates: (
        gates.new_empty(gates.shape),
        weight.new_empty(weight.shape),
    ),
    cuda="lstm.pull",
    narrow=True,
)


# --------------------------------------------------------------------------------------------------
# Gradients


def _remember(ctx, inputs, output) -> None:
    x, weight, words, start, _ = inputs
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, words, start, *output[2:])


def _backward(ctx, dhidden: Tensor | None, dcell: Tensor | None, *_):
    x, weight, words, start, *kept = ctx.saved_tensors
    given = [g for g in (dhidden, dcell) if g is not None]
    if not given:
        return (None,) * 5
    dhidden, dcell = (
        torch.zeros_like(given[0]) if g is None else g.contiguous() for g in (dhidden, dcell)
    )
    if torch.is_grad_enabled():  # second derivatives are wanted
        _, back = torch.func.vjp(lambda x, w: lstm_definition(x, w, words, start), x, weight)
        return *back((dhidden, dcell)), None, None, None
    dgates, dweight = pull(dhidden, dcell, weight, start, *kept)
    if words is None:
        return dgates.transpose(1, 2).to(x.dtype), dweight, None, None, None
    return _by_word(dgates, words, x), dweight, None, None, None


def _by_word(dgates: Tensor, words: Tensor, x: Tensor) -> Tensor:
    """Sums over all places of a word, as a product of matrices: the same order always."""
    places = words.transpose(1, 2).flatten(1).unsqueeze(1)  # (G, 1, T B)
    numbers = torch.arange(x.shape[1], device=x.device, dtype=words.dtype).unsqueeze(-1)
    chosen = (places == numbers).to(dgates.dtype)
    return torch.bmm(chosen, dgates.flatten(1, 2)).to(x.dtype)


differentiate(lstm, _backward, _remember)
