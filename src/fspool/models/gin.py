"""The graph isomorphism network (Xu et al., 2019) as the paper uses it (section 6.4).

Every block adds the neighbours' vectors to a node's own and sends the sum through a small MLP. What
each block puts out is pooled over the nodes of a graph, and a classifier sees all of these vectors.
The graphs of a batch lie packed, one behind the other, with rows to spare at the end: so that every
batch can have one shape.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..functional.neighbours import neighbour_sum
from ..functional.normed_layers import Layer, has_kernel, normed_layers
from ..functional.perceptron import has_kernel as has_perceptron
from ..functional.perceptron import perceptron
from .batch_norm import BatchNorm
from .linear import Linear
from .readout import make_readout, outputs_of, read_out

NARROW = 64  # columns up to which one-hot features are made: products of matrices are cheap


class GIN(nn.Module):
    """Class scores of graphs.

    Args:
        columns: Features of a node.
        width: Of everything inside.
        pool: One of :data:`.readout.READOUTS`, such as ``"fspool"``, ``"sum"`` or ``"mean"``.
        knots: Of each :class:`~fspool.FSPool`, which starts as the sum.
        norm_first: Linear-BatchNorm-ReLU in the blocks, in place of Linear-ReLU-BatchNorm.
        wide_eps: A node's own vector counts 1 + the width of the block's input, as in the released
            code of the paper; else it counts as one of its neighbours does.
    """

    def __init__(
        self,
        columns: int,
        width: int,
        classes: int,
        *,
        pool: str = "fspool",
        knots: int = 5,
        blocks: int = 5,
        norm_first: bool = False,
        wide_eps: bool = False,
    ) -> None:
        super().__init__()
        inputs = [columns] + [width] * (blocks - 1)
        self.blocks = nn.ModuleList(
            Block(c, width, eps=c if wide_eps else 0, norm_first=norm_first) for c in inputs
        )
        self.pools = nn.ModuleList(make_readout(pool, width, knots) for _ in inputs)
        vector = sum(outputs_of(own, width) for own in self.pools)
        self.norm = BatchNorm(vector)
        self.hidden, self.scores = Linear(vector, width), Linear(width, classes)

    def forward(
        self,
        x: Tensor,
        starts: Tensor,
        sources: Tensor,
        offsets: Tensor,
        keep: Tensor | None = None,
        longest: int | None = None,
    ) -> Tensor:
        """Scores ``(G, B, classes)``; of graphs without nodes, which come last, they mean nothing.

        Args:
            x: Features ``(G, T, columns)``, or integers ``(G, T)``: the feature that is 1, where
                all others are 0.
            starts, sources: As for :func:`~fspool.functional.neighbours.neighbour_sum`.
            offsets: ``(G, B + 1)``: graph i has the nodes from ``offsets[i]`` to
                ``offsets[i + 1]``; rows after the last are not used.
            keep: ``(G, B, width)``, what hidden units of the classifier are multiplied by: dropout,
                drawn by whoever trains.
            longest: Nodes of the largest graph at most, where somebody knows.
        """
        nodes, graphs = offsets[:, -1], (offsets.diff() > 0).sum(-1)
        vectors = []
        for block, pool in zip(self.blocks, self.pools, strict=True):
            x = block(x, starts, sources, nodes)
            vectors.append(read_out(pool, x, offsets, longest))
        hidden = self.hidden(self.norm(torch.cat(vectors, -1), graphs)).relu()
        return self.scores(hidden if keep is None else hidden * keep)


class Block(nn.Module):
    """``MLP((1 + eps) x_i + sum of the neighbours' x_j)`` for every node i."""

    def __init__(self, inputs: int, width: int, *, eps: float, norm_first: bool) -> None:
        super().__init__()
        self.eps, self.norm_first = eps, norm_first
        self.first, self.second = Linear(inputs, width), Linear(width, width)
        self.norms = nn.ModuleList(BatchNorm(width, relu=not norm_first) for _ in range(2))

    def forward(self, x: Tensor, starts: Tensor, sources: Tensor, nodes: Tensor) -> Tensor:
        def summed(x: Tensor) -> Tensor:
            return neighbour_sum(x, starts, sources, own=1 + self.eps)

        if x.is_floating_point():
            return self._layers(summed(x), nodes)
        if self.first.in_features <= NARROW:
            return self._layers(summed(one_hot(x, self.first)), nodes)
        # The first layer may also come before the sum: both are linear.
        x = summed(columns_of(self.first.weight, x)) + self.first.bias.unsqueeze(-2)
        return self._activate(1, self.second(self._activate(0, x, nodes)), nodes)

    def _layers(self, x: Tensor, nodes: Tensor) -> Tensor:
        """Both, by a kernel where there is one."""
        alike = len({(norm.training, norm.eps, norm.momentum) for norm in self.norms}) == 1
        if alike and not self.norm_first and self.first.weight.ndim == 3:
            if self.norms[0].training:
                layers = self._with_norms(len(x))
                if has_kernel(x, *layers):
                    return self._by_this_batch(x, nodes, layers)
            else:
                weights = self._known_weights()
                if has_perceptron(x, *weights):
                    return self._by_known_numbers(x, nodes, weights)
        return self._activate(1, self.second(self._activate(0, self.first(x), nodes)), nodes)

    def _by_this_batch(self, x: Tensor, nodes: Tensor, layers: list[Layer]) -> Tensor:
        norm = self.norms[0]
        y, *running = normed_layers(x, nodes, *layers, eps=norm.eps, momentum=norm.momentum)
        for norm, new in zip(self.norms, running, strict=True):
            norm.keep(*new)
        return y

    def _by_known_numbers(self, x: Tensor, nodes: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        scale, shift = (t.unsqueeze(-2) for t in self.norms[1].affine())
        return torch.addcmul(shift, perceptron(x, *weights, nodes).relu(), scale)

    def _activate(self, index: int, x: Tensor, nodes: Tensor) -> Tensor:
        x = self.norms[index](x, nodes)
        return x.relu() if self.norm_first else x

    def _with_norms(self, groups: int) -> list[Layer]:
        pairs = zip((self.first, self.second), self.norms, strict=True)
        return [Layer(own.weight, own.bias, *norm.numbers(groups)) for own, norm in pairs]

    def _known_weights(self) -> tuple[Tensor, ...]:
        """Of both layers, where the norm between them has known numbers: then it is linear."""
        scale, shift = self.norms[0].affine()
        weight, bias = self.second.weight, self.second.bias
        bias = bias + (weight @ shift.unsqueeze(-1)).squeeze(-1)
        return self.first.weight, self.first.bias, weight * scale.unsqueeze(-2), bias


def one_hot(kinds: Tensor, layer: Linear) -> Tensor:
    """``(G, T, columns)`` in the dtype of the layer."""
    columns = torch.arange(layer.in_features, device=kinds.device)
    return (kinds.unsqueeze(-1) == columns).to(layer.weight.dtype)


def columns_of(weight: Tensor, kinds: Tensor) -> Tensor:
    """What a linear layer without its bias makes of one-hot rows, ``(G, T, out)``."""
    weight = weight if weight.ndim == 3 else weight.expand(len(kinds), -1, -1)
    return rows_of(weight.mT, kinds)


def rows_of(x: Tensor, index: Tensor) -> Tensor:
    """x ``(G, T, D)`` at index ``(G, K)``; as one table, whose gradient is fast."""
    first = torch.arange(len(x), device=x.device).unsqueeze(-1) * x.shape[1]
    return x.flatten(0, 1).index_select(0, (first + index).flatten()).unflatten(0, index.shape)
