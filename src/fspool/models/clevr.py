"""Answers to questions about scenes, from descriptions of their objects (section 6.3 of the paper).

An LSTM makes a vector of the question, which every object is shown: g makes features of the two, a
pool makes one vector of them, f makes an answer of it.

The scenes of a batch are padded with zeros to a number of slots. g of an empty slot is not zero, as
it sees the question, and the pools that FSPool is compared with pool it too. All empty slots of a
scene are the same; so g is computed of one, which counts as often as there are such slots.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ..checks import nearest
from ..functional.inputs import exact
from ..functional.lstm import lstm
from ..nn import FSPool, JanossyPool
from ..nn.baselines import as_autocast, pair_weights, weighted_sum
from .linear import TorchLinear, affine

POOLS = ("fspool", "rn", "janossy", "sum", "mean", "max", "none")
FEATURES = 7  # of an object: x, y, z, colour, material, shape, size


class QuestionAnswering(nn.Module):
    """Scores of all answers.

    All parameters may have a replica axis in front (:mod:`.linear`), and inputs with them.

    Args:
        words: In the vocabulary, which are numbered from 1; 0 is padding.
        pool: ``"fspool"``, ``"rn"`` (relation network), ``"janossy"``, ``"sum"``, ``"mean"`` or
            ``"max"``; ``"none"`` answers without a look at the scene.
        slots: That scenes are padded to.
        pool_padding: Pool the empty slots too, as in the released code of the paper: the mean then
            divides by the number of objects all the same. FSPool never does, Janossy pooling always
            does.
        scaled: Multiply what is pooled by the number of slots, as in the released code; the sum
            over pairs of a relation network and Janossy pooling are not multiplied.
        init: Of the :class:`~fspool.FSPool`.
    """

    def __init__(
        self,
        words: int = 82,
        answers: int = 28,
        *,
        pool: str = "fspool",
        knots: int = 20,
        slots: int = 12,
        embedding: int = 32,
        hidden: int = 256,
        width: int = 512,
        pool_padding: bool = True,
        scaled: bool = True,
        init: str = "ones",
    ) -> None:
        super().__init__()
        self.kind, self.slots = nearest("pool", pool, POOLS), slots
        self.pool_padding = pool_padding
        self.scale = slots if scaled and pool not in ("rn", "janossy", "none") else 1
        self.question = QuestionEncoder(words + 1, embedding, hidden)
        self.pool = None
        if pool != "none":
            inputs = 2 * FEATURES if pool == "rn" else FEATURES
            self.first = TorchLinear(inputs + hidden, width)
            self.rest = nn.ModuleList(TorchLinear(width, width) for _ in range(3))
        if pool == "fspool":
            self.pool = FSPool(width, knots, init=init)
        elif pool == "janossy":
            self.pool = JanossyPool(width)
        self.answer = nn.ModuleList(
            (
                TorchLinear(hidden if pool == "none" else width, width),
                TorchLinear(width, 2 * width),
                TorchLinear(2 * width, answers),
            )
        )

    def forward(
        self,
        objects: Tensor,
        sizes: Tensor,
        words: Tensor,
        start: Tensor | None = None,
        keep: Tensor | None = None,
    ) -> Tensor:
        """Scores ``(..., B, answers)``.

        Args:
            objects: ``(..., B, N, 7)``, no more than ``sizes (..., B)`` of them in a scene.
            words: ``(..., B, T)``, the last word first, with padding in front.
            start: As for :func:`~fspool.functional.lstm.lstm`: where a question's padding begins,
                if there is room in front of it too.
            keep: ``(..., B, 2 width)``, what hidden units of f are multiplied by: dropout, drawn
                by whoever trains.
        """
        question = self.question(words, start)
        y = question if self.kind == "none" else self._pooled(objects, sizes, question)
        y = self.answer[0](y * self.scale if self.scale != 1 else y).relu()
        y = self.answer[1](y).relu()
        return self.answer[2](y if keep is None else y * keep)

    def _pooled(self, objects: Tensor, sizes: Tensor, question: Tensor) -> Tensor:
        if self.kind == "fspool":
            return self.pool(self._elements(objects, question), sizes=sizes)
        if self.kind == "janossy":
            empty = self.slots - objects.shape[-2]
            return self.pool(self._elements(pad(objects, (0, 0, 0, empty)), question))
        if self.pool_padding:  # one more place, so that every scene has an empty one
            objects = pad(objects, (0, 0, 0, 1))
        weights = self._weights(objects, sizes)
        if self.kind == "rn":
            return weighted_sum(self._pairs(objects, question), pair_weights(weights))
        x = self._elements(objects, question)
        if self.kind == "max":
            x = x.masked_fill((weights == 0).unsqueeze(-1), float("-inf"))
            return x.amax(-2).masked_fill(weights.sum(-1, keepdim=True) == 0, 0)
        y = weighted_sum(x, weights)  # whole numbers, which bfloat16 has all of
        return y / sizes.clamp(min=1).unsqueeze(-1) if self.kind == "mean" else y

    def _weights(self, objects: Tensor, sizes: Tensor) -> Tensor:
        """How often every place counts, ``(..., B, N)``: an empty one stands for all of them."""
        places = torch.arange(objects.shape[-2], device=sizes.device)
        sizes = sizes.unsqueeze(-1)
        weights = (places < sizes).to(objects.dtype)
        if self.pool_padding:
            weights = weights + (places == sizes) * (self.slots - sizes)
        return weights

    def _elements(self, objects: Tensor, question: Tensor) -> Tensor:
        """g of every object, ``(..., B, N, width)``."""
        given = self._question_part(question, FEATURES).unsqueeze(-2)
        return self._finish(relu_of_sum(self._object_part(objects, 0), given))

    def _pairs(self, objects: Tensor, question: Tensor) -> Tensor:
        """g of every pair of objects, ``(..., B, N^2, width)``."""
        given = self._question_part(question, 2 * FEATURES).unsqueeze(-2)
        one = (self._object_part(objects, 0) + given).unsqueeze(-2)
        other = self._object_part(objects, FEATURES).unsqueeze(-3)
        return self._finish(relu_of_sum(one, other).flatten(-3, -2))

    def _finish(self, x: Tensor) -> Tensor:
        """The rest of g, after its first linear layer."""
        for layer in self.rest:
            x = layer(x).relu()
        return x

    # The first layer is linear, so that the question's part is computed once for all objects.

    def _object_part(self, objects: Tensor, column: int) -> Tensor:
        """In full precision: places are to be compared, and it is little work."""
        weight = self.first.weight[..., column : column + FEATURES]
        with exact(objects):
            return affine(objects, weight)

    def _question_part(self, question: Tensor, column: int) -> Tensor:
        return affine(question, self.first.weight[..., column:], self.first.bias)


def relu_of_sum(one: Tensor, other: Tensor) -> Tensor:
    """``(one + other).relu()``, added in full precision, in the dtype of products of matrices.

    The sum itself is never stored: of all pairs of objects it would be the largest tensor by far.
    """
    return _ReluOfSum.apply(one, other, as_autocast(one.new_empty(0)).dtype)


class _ReluOfSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, one: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
        shape = torch.broadcast_shapes(one.shape, other.shape)
        y = torch.add(one, other, out=one.new_empty(shape, dtype=dtype)).relu_()
        ctx.save_for_backward(y)
        ctx.inputs = [(t.shape, t.dtype) for t in (one, other)]
        return y

    @staticmethod
    def backward(ctx, dy: Tensor):
        (y,) = ctx.saved_tensors
        dx = torch.ops.aten.threshold_backward(dy, y, 0)
        return *(_sum_to(dx, shape, dtype) for shape, dtype in ctx.inputs), None


def _sum_to(x: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The gradient of what was broadcast."""
    axes = [i for i, (own, n) in enumerate(zip(shape, x.shape, strict=True)) if own < n]
    return x.sum(axes, keepdim=True, dtype=dtype) if axes else x.to(dtype)


class QuestionEncoder(nn.Module):
    """Embedding and LSTM: the last hidden state, ``(..., B, hidden)``.

    Every word has one row of a table: its embedding after the weights of the input and the biases.
    """

    def __init__(self, rows: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(rows, embedding))
        self.weight_input = nn.Parameter(torch.empty(4 * hidden, embedding))
        self.weight_hidden = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_input = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hidden = nn.Parameter(torch.empty(4 * hidden))
        for parameter in list(self.parameters())[1:]:
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, words: Tensor, start: Tensor | None = None) -> Tensor:
        with exact(self.embedding):
            bias = self.bias_input + self.bias_hidden
            table = affine(self.embedding, self.weight_input, bias)
        weight = as_autocast(self.weight_hidden)
        if weight.ndim == 3:
            return lstm(table, weight, words=words, start=start)[0]
        start = None if start is None else start.unsqueeze(0)
        one = (t.unsqueeze(0) for t in (table, weight))
        return lstm(*one, words=words.unsqueeze(0), start=start)[0].squeeze(0)
