"""Batches of questions with their scenes, made on the device that trains on them.

All questions lie there. A row of words has the last word first and the padding in front of it, as
the released code of the paper has it: it pads to the longest question of a batch and reverses the
whole. Rows are as long as the longest question of all, so that every batch has one shape; where the
padding of a batch would begin is said by ``start``.

A question that is missing, as in the last batch of an epoch, has the number -1 and the answer -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import draws
from .arrays import Clevr
from .vocabulary import OBJECTS

AT_ONCE = 1 << 15  # questions whose batches are made at once


class QuestionBatch(NamedTuple):
    """B questions for each of G replicas; or for each of many steps too, with one axis more."""

    objects: Tensor  # (G, B, 10, 7), in random order, zeros behind them
    sizes: Tensor  # int64 (G, B)
    words: Tensor  # uint8 (G, B, T)
    start: Tensor  # int32 (G, B)
    answers: Tensor  # int64 (G, B)
    keep: Tensor  # (G, B, units): dropout
    count: Tensor  # int64 (G, 1): questions of the whole batch


class Desk(NamedTuple):
    """The questions of a split, ready to be taken by number."""

    features: Tensor  # (scenes, 10, 7)
    sizes: Tensor  # int64 (scenes,)
    scene: Tensor  # int64 (questions,)
    words: Tensor  # uint8 (questions, T), reversed
    lengths: Tensor  # int64 (questions,)
    answers: Tensor  # int64 (questions,)

    def __len__(self) -> int:
        return len(self.answers)

    @classmethod
    def of(cls, data: Clevr) -> Desk:
        """On the device where the data is."""
        scenes, questions = data
        return cls(
            scenes.features(),
            scenes.sizes.long(),
            questions.scene.long(),
            questions.padded().flip(-1),
            questions.offsets.diff(),
            questions.answers.long(),
        )

    def take(self, numbers: Tensor, keys: Tensor, together: int) -> QuestionBatch:
        """The questions of these numbers (..., B), padded as the longest of each ``together``.

        ``keys`` (..., B, 10) are random: objects stand in their order.
        """
        there, found = numbers >= 0, numbers.clamp(min=0)
        lengths = self.lengths[found] * there
        longest = lengths.unflatten(-1, (-1, together)).amax(-1, keepdim=True)
        start = (self.words.shape[-1] - longest).expand(*longest.shape[:-1], together).flatten(-2)
        scene = self.scene[found]
        sizes = self.sizes[scene] * there
        inside = torch.arange(OBJECTS, device=numbers.device) < sizes.unsqueeze(-1)
        order = keys.masked_fill(~inside, torch.iinfo(torch.int64).max).argsort(-1)
        places = scene.unsqueeze(-1) * OBJECTS + order
        objects = self.features.flatten(0, 1)[places] * inside.unsqueeze(-1)
        return QuestionBatch(
            objects,
            sizes,
            self.words[found] * there.unsqueeze(-1),
            start.int(),
            self.answers[found].masked_fill(~there, -1),
            torch.ones((), dtype=torch.bool, device=numbers.device).expand(*numbers.shape, 1),
            there.sum(-1, keepdim=True),
        )


def train_batches(
    desk: Desk,
    seeds: Sequence[int],
    steps: range,
    batch: int,
    *,
    units: int,
    dropout: float,
    dtype: torch.dtype = torch.float32,
) -> Iterator[QuestionBatch]:
    """A batch for every step. Each epoch has every question once, in an order of its own."""
    every, device = -(-len(desk) // batch), desk.answers.device
    begin = steps.start
    while begin < steps.stop:
        epoch = begin // every
        most = max(1, AT_ONCE // (batch * len(seeds)))
        end = min(begin + most, steps.stop, (epoch + 1) * every)
        own = range(begin, end)
        order = draws.epoch_order(tuple(seeds), epoch, "questions", len(desk), device)
        order = pad(order, (0, every * batch - len(desk)), value=-1)
        first = (begin - epoch * every) * batch
        numbers = order[:, first : first + len(own) * batch].unflatten(1, (len(own), batch))
        keys = draws.bits(seeds, own, "objects", (batch, OBJECTS), device)
        many = desk.take(numbers.transpose(0, 1), keys, batch)
        keep = kept(seeds, own, batch, units, dropout, device, dtype)
        many = many._replace(objects=many.objects.to(dtype), keep=keep)
        for parts in zip(*(tensor.unbind() for tensor in many), strict=True):
            yield QuestionBatch(*parts)
        begin = end


def kept(seeds, steps: range, batch: int, units: int, dropout: float, device, dtype) -> Tensor:
    """What hidden units are multiplied by, (steps, G, B, units). Four of them share 64 bits."""
    if not dropout:
        one = torch.ones((), dtype=dtype, device=device)
        return one.expand(len(steps), len(seeds), batch, 1)
    bits = draws.bits(seeds, steps, "dropout", (batch, -(-units // 4)), device)
    numbers = bits.view(torch.int16)[..., :units]
    dropped = numbers < round(dropout * 2**16) - 2**15
    return (~dropped).to(dtype) / (1 - dropout)


def tried_batches(desk: Desk, seeds: Sequence[int], batch: int, piece: int) -> list[QuestionBatch]:
    """All questions in pieces of so many batches, (G, questions, ...); the same ones always,
    in the same order, whatever the pieces."""
    device, rows = desk.answers.device, batch * piece
    found = []
    for first in range(0, len(desk), rows):
        own = torch.arange(first, min(first + rows, len(desk)), device=device)
        batches = range(first // batch, -(-int(own[-1] + 1) // batch))
        numbers = pad(own, (0, len(batches) * batch - len(own)), value=-1).expand(len(seeds), -1)
        keys = draws.bits(seeds, batches, "validation/objects", (batch, OBJECTS), device)
        found.append(desk.take(numbers, keys.transpose(0, 1).flatten(1, 2), batch))
    return found
