"""Cells that are alike, trained as one: a model of all their runs, a batch of all their batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..checks import UserError
from .cell import Cell, Chunk
from .replicas import select
from .runs import State


class Several:
    """The first cell stands for all, but for what each has of its own: its start and its batches.

    Seeds are those of the first cell, then those of the second, and so on.
    """

    def __init__(self, cells: Sequence[Cell], runs: Sequence[int]) -> None:
        ends = [sum(runs[: i + 1]) for i in range(len(runs))]
        parts = [slice(end - count, end) for end, count in zip(ends, runs, strict=True)]
        self.parts = list(zip(cells, parts, strict=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.parts[0][0], name)

    def begin(self, model: nn.Module, seeds: Sequence[int]) -> None:
        for cell, part in self.parts:
            cell.begin(select(model, part), seeds[part])

    def batches(
        self, seeds: Sequence[int], steps: range, device: torch.device
    ) -> Tensor | Chunk | Iterator[Any]:
        each = [cell.batches(seeds[part], steps, device) for cell, part in self.parts]
        if len(each) == 1:
            return each[0]
        if all(isinstance(batches, Tensor | Chunk) for batches in each):
            return _cat(each, axis=1)
        return (_cat(batches) for batches in zip(*each, strict=True))

    def trials(self, seeds: Sequence[int], device: torch.device) -> Any:
        return _cat([cell.trials(seeds[part], device) for cell, part in self.parts])

    def probe(self, model: nn.Module, seeds, device, step: int) -> dict[str, list[float]]:
        each = [
            cell.probe(select(model, part), seeds[part], device, step) for cell, part in self.parts
        ]
        return {name: [x for metrics in each for x in metrics[name]] for name in each[0]}


def _cat(trees: Sequence[Any], axis: int = 0) -> Any:
    return pytree.tree_map(lambda *tensors: torch.cat(tensors, axis), *trees)


def part_of(state: State, part: slice) -> State:
    """The state of some runs; what has no axis is the same for all."""
    tensors = {name: t[part] if t.ndim else t for name, t in state.tensors.items()}
    return State(state.step, tensors, [part_of_record(record, part) for record in state.curve])


def part_of_record(record: dict, part: slice) -> dict:
    return pytree.tree_map(
        lambda values: values[part] if isinstance(values, list) else values,
        record,
        is_leaf=lambda values: isinstance(values, list),
    )


def join(states: Sequence[State]) -> State:
    """The state of all runs, from those of some that have come equally far."""
    first = states[0]
    if len(states) == 1:
        return first
    if any(state.tensors.keys() != first.tensors.keys() for state in states):
        raise UserError(
            f"the saved states of step {first.step} are of different versions; each is tried alone."
        )
    tensors = {
        name: torch.cat([state.tensors[name] for state in states]) if tensor.ndim else tensor
        for name, tensor in first.tensors.items()
    }
    curve = [
        pytree.tree_map(
            lambda *values: sum(values, []) if isinstance(values[0], list) else values[0],
            *records,
            is_leaf=lambda values: isinstance(values, list),
        )
        for records in zip(*(state.curve for state in states), strict=True)
    ]
    return State(first.step, tensors, curve)
