"""An LSTM that reads sequences, of which the last state is wanted.

.. math::
    i, f, g, o &= x_t + W h_{t-1} \\\\
    c_t &= \\sigma(f)\\, c_{t-1} + \\sigma(i) \\tanh g, \\qquad
    h_t = \\sigma(o) \\tanh c_t, \\qquad h_0 = c_0 = 0

x is what a step reads after the weights of the input and the biases. There are few words, so that
this is a table with one row a word: no product with the input is left to do in a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import on_device, wants_gradient
from .inputs import exact


def lstm(
    x: Tensor, weight: Tensor, *, words: Tensor | None = None, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The last hidden state and the last cell state, each ``(G, B, H)``, in the dtype of x.

    Args:
        x: ``(G, V, 4 H)``, a row for every word; or ``(G, B, T, 4 H)`` without ``words``. The gates
            in torch's order: input, forget, cell, output.
        weight: ``(G, 4 H, H)``. Where it is bfloat16, so are products and what is kept for the
            gradient; sums and cell states are not.
        words: ``(G, B, T)`` integers below V.
        start: ``(G, B)`` integers: the state stays zero until this step. A sequence that is to
            begin later can so have room in front of it.
    """
    if (x.ndim == 3) != (words is not None):
        raise ValueError(
            f"x has shape {tuple(x.shape)}; expected (G, V, 4 H) with words (G, B, T), or "
            "(G, B, T, 4 H) without."
        )
    with exact(x):
        operator = on_device("lstm", x)
        if operator is None:
            return lstm_definition(x, weight, words, start)
        kept = wants_gradient(x) or wants_gradient(weight)
        hidden, cell = operator(x.float(), weight, words, start, kept)[:2]
        return hidden.to(x.dtype), cell.to(x.dtype)


def lstm_definition(
    x: Tensor, weight: Tensor, words: Tensor | None, start: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The formula at the top of this file."""
    inputs = x if words is None else rows_of(x, words)
    groups, batch, _, width = inputs.shape
    hidden = cell = inputs.new_zeros(groups, batch, width // 4)
    for t, given in enumerate(inputs.unbind(2)):
        gates = given + (hidden.to(weight.dtype) @ weight.mT).to(inputs.dtype)
        enter, forget, new, leave = gates.chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        if start is not None:
            begun = (t >= start).unsqueeze(-1)
            cell, hidden = cell * begun, hidden * begun
    return hidden, cell


def rows_of(x: Tensor, words: Tensor) -> Tensor:
    """x (G, V, D) at words (G, B, T): (G, B, T, D)."""
    index = words.long().flatten(1)
    first = torch.arange(len(x), device=x.device).unsqueeze(-1) * x.shape[1]
    return x.flatten(0, 1).index_select(0, (first + index).flatten()).unflatten(0, words.shape)
