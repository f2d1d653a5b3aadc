"""A decoder that puts out a list element by element: an LSTM that is fed nothing but its state."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..functional import Order
from ..functional.recurrence import recurrence
from .linear import Linear


class RecurrentDecoder(nn.Module):
    """z becomes the first cell state of an LSTM, which runs n steps on zeros; a linear layer reads
    an element off every hidden state.

    The weights of an input that is always zero are left out. As in torch there are two biases,
    which Adam moves both.
    """

    def __init__(self, latent: int, hidden: int, channels: int, n: int) -> None:
        super().__init__()
        self.n, self.hidden = n, hidden
        self.cell = Linear(latent, hidden)
        self.weight = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_input = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hidden = nn.Parameter(torch.empty(4 * hidden))
        self.element = Linear(hidden, channels)
        for parameter in (self.weight, self.bias_input, self.bias_hidden):
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, z: Tensor, order: Order | None = None) -> Tensor:
        bias = self.bias_input + self.bias_hidden
        return self.element(recurrence(self.cell(z), self.weight, bias, self.n))
