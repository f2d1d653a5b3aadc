"""The LSTM and its gradient in plain torch operators, which run on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from ...functional.lstm import rows_of


def shapes(groups: int, steps: int, batch: int, width: int) -> list[tuple[int, ...]]:
    """Of hidden states, cell states and gates."""
    states = (groups, steps + 1, batch, width)
    return [states, states, (groups, steps, batch, 4 * width)]


def lstm(x: Tensor, weight: Tensor, words: Tensor | None, start: Tensor | None, kept: bool):
    inputs = x if words is None else rows_of(x, words)
    groups, batch, steps, width = inputs.shape
    h = c = inputs.new_zeros(groups, batch, width // 4)
    hidden, cells, gates = [h], [c], []
    for t in range(steps):
        given = inputs[:, :, t] + torch.bmm(h.to(weight.dtype), weight.mT).to(inputs.dtype)
        enter, forget, new, leave = given.chunk(4, -1)
        active = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
        c = active[1] * c + active[0] * active[2]
        h = active[3] * c.tanh()
        if start is not None:
            begun = (t >= start).unsqueeze(-1)
            c, h = c * begun, h * begun
        if kept:
            hidden.append(h)
            cells.append(c)
            gates.append(torch.cat(active, -1))
    if not kept:
        return h, c, *(t.new_empty(groups, 0) for t in (weight, x, weight))
    hidden, gates = (torch.stack(t, 1).to(weight.dtype) for t in (hidden, gates or [inputs[:, :0]]))
    return h.clone(), c.clone(), hidden, torch.stack(cells, 1), gates


def pull(
    dhidden: Tensor,
    dcell: Tensor,
    weight: Tensor,
    start: Tensor | None,
    hidden: Tensor,
    cells: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients to the gates of all steps, (G, T, B, 4 H), and to the weight."""
    dh, dc = dhidden, dcell
    dgates = torch.empty_like(gates)
    for t in reversed(range(gates.shape[1])):
        i, f, g, o = gates[:, t].to(dh.dtype).chunk(4, -1)
        if start is not None:
            begun = (t >= start).unsqueeze(-1)
            dh, dc = dh * begun, dc * begun
        tanh = cells[:, t + 1].tanh()
        dc = dc + dh * o * (1 - tanh * tanh)
        di, df = dc * g * i * (1 - i), dc * cells[:, t] * f * (1 - f)
        dg, do = dc * i * (1 - g * g), dh * tanh * o * (1 - o)
        dgates[:, t] = torch.cat((di, df, dg, do), -1)
        dh, dc = torch.bmm(dgates[:, t], weight).to(dh.dtype), dc * f
    return dgates, weight_gradient(dgates, hidden)


def weight_gradient(dgates: Tensor, hidden: Tensor) -> Tensor:
    """The sum over all steps and sequences, as one product."""
    return torch.bmm(dgates.flatten(1, 2).mT, hidden[:, :-1].flatten(1, 2))
