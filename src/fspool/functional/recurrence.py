"""An LSTM that is fed nothing: what it puts out follows from its first cell state alone.

.. math::
    i, f, g, o &= W h_{t-1} + b \\\\
    c_t &= \\sigma(f)\\, c_{t-1} + \\sigma(i) \\tanh g, \\qquad
    h_t = \\sigma(o) \\tanh c_t, \\qquad h_0 = 0
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import on_device
from .inputs import compute_dtype, exact


def recurrence(state: Tensor, weight: Tensor, bias: Tensor, n: int) -> Tensor:
    """The hidden states of n steps.

    Args:
        state: ``(..., H)``, the first cell states.
        weight: ``(4 H, H)``, the blocks of the gates in torch's order: input, forget, cell, output.
        bias: ``(4 H,)``.
        n: Steps, at least one.

    Returns:
        ``(..., n, H)`` in the dtype of state. With a replica axis, state ``(G, ..., H)``, weight
        ``(G, 4 H, H)`` and bias ``(G, 4 H)`` give ``(G, ..., n, H)``.
    """
    if n < 1:
        raise ValueError(f"n is {n}; expected at least 1 step.")
    dtype = compute_dtype(state, weight, bias)
    inner, weight, bias = (t.to(dtype) for t in (state, weight, bias))
    if weight.ndim == 2:
        inner, weight, bias = (t.unsqueeze(0) for t in (inner, weight, bias))
    shape = inner.shape[1:-1]
    inner = inner.flatten(1, -2) if len(shape) else inner.unsqueeze(1)
    with exact(state):
        hidden = _run(inner, weight, bias, n)
    hidden = hidden.reshape(*state.shape[:-1], n, state.shape[-1])
    return hidden.to(state.dtype)


def _run(state: Tensor, weight: Tensor, bias: Tensor, n: int) -> Tensor:
    operator = on_device("recurrence", state)
    if operator is None:
        return recurrence_definition(state, weight, bias, n)
    return operator(state, weight, bias, n)[0]


def recurrence_definition(state: Tensor, weight: Tensor, bias: Tensor, n: int) -> Tensor:
    """The formula at the top of this file. state (G, B, H) -> (G, B, n, H)."""
    return torch.stack(steps(state, weight, bias, n)[0], -2)


def steps(state: Tensor, weight: Tensor, bias: Tensor, n: int) -> tuple[list[Tensor], list[Tensor]]:
    """Hidden and cell states (G, B, H) after every step."""
    hidden, cells = [torch.zeros_like(state)], [state]
    for _ in range(n):
        gates = torch.baddbmm(bias.unsqueeze(1), hidden[-1], weight.mT)
        enter, forget, new, leave = gates.chunk(4, -1)
        cells.append(forget.sigmoid() * cells[-1] + enter.sigmoid() * new.tanh())
        hidden.append(leave.sigmoid() * cells[-1].tanh())
    return hidden[1:], cells[1:]
