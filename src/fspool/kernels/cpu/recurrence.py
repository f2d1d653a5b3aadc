"""The recurrence and its gradient in plain torch operators, which run on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from ...functional.recurrence import steps


def recurrence(state: Tensor, weight: Tensor, bias: Tensor, n: int) -> tuple[Tensor, Tensor]:
    hidden, cells = steps(state, weight, bias, n)
    return torch.stack(hidden, -2), torch.stack(cells, -2)


def pull(
    dhidden: Tensor, hidden: Tensor, cells: Tensor, state: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gates of all steps at once, then the steps backwards."""
    h_before = torch.cat((torch.zeros_like(hidden[:, :, :1]), hidden[:, :, :-1]), 2).flatten(1, 2)
    c_before = torch.cat((state.unsqueeze(2), cells[:, :, :-1]), 2)
    gates = torch.baddbmm(bias.unsqueeze(1), h_before, weight.mT).unflatten(1, hidden.shape[1:3])
    enter, forget, new, leave = gates.chunk(4, -1)
    i, f, g, o = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    c = cells.tanh()
    # What a gradient to the new cell state, or to the hidden state, is multiplied with.
    to_i, to_f, to_g = g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g)
    to_o, to_c = c * o * (1 - o), o * (1 - c * c)
    dh, dc, dgates = torch.zeros_like(state), torch.zeros_like(state), []
    for t in reversed(range(hidden.shape[2])):
        dh = dh + dhidden[:, :, t]
        dc = dc + dh * to_c[:, :, t]
        to_cell = [dc * factor[:, :, t] for factor in (to_i, to_f, to_g)]
        dgates.append(torch.cat((*to_cell, dh * to_o[:, :, t]), -1))
        dh = torch.bmm(dgates[-1], weight)
        dc = dc * f[:, :, t]
    back = torch.stack(dgates[::-1], 2).flatten(1, 2)
    return dc, torch.bmm(back.mT, h_before), back.sum(1)
