"""One training by several processes, on one machine or on many, as torchrun starts them.

Each has a share of every batch, and gradients are added up; so the curve is that of one process.
The first process reads and writes the run folders, and tells the others what they have to know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.utils import _pytree as pytree

from ..checks import UserError


class Team(NamedTuple):
    """Which process this is, and of how many."""

    rank: int = 0
    size: int = 1


def team() -> Team:
    if not (distributed.is_available() and distributed.is_initialized()):
        return Team()
    return Team(distributed.get_rank(), distributed.get_world_size())


@contextmanager
def joined(device: torch.device) -> Iterator[torch.device]:
    """Join the others, if torchrun started any; the device is this process's own."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        distributed.destroy_process_group()


def add_up(tensors: Sequence[Tensor]) -> None:
    """Replace all tensors, which are of one dtype, by their sums over all processes."""
    if team().size == 1 or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    distributed.all_reduce(flat)
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def make_same(tensors: Sequence[Tensor]) -> None:
    """Replace all tensors by those of the first process."""
    if team().size > 1:
        for tensor in tensors:
            own = tensor.contiguous()
            distributed.broadcast(own, 0)
            tensor.copy_(own)


def even_share(batch: Any, rank: int, size: int) -> Any:
    """The sets of a batch that one process has, of tensors (G, B, ...).

    ``count``, how many the whole batch has, stays: losses that are divided by it add up.
    """
    length = batch[0].shape[1]
    if length % size:
        raise UserError(
            f"batch is {length}, which {size} processes cannot share evenly; start as many as "
            "divide it."
        )
    rows = slice(rank * (length // size), (rank + 1) * (length // size))
    own = pytree.tree_map(lambda tensor: tensor[:, rows], batch)
    return own._replace(count=batch.count)


def agreed(value: Any, device: torch.device | str = "cpu") -> Any:
    """What the first process says, which JSON can express."""
    if team().size == 1:
        return value
    text = list(json.dumps(value).encode())
    length = torch.tensor([len(text)], device=device)
    distributed.broadcast(length, 0)
    content = torch.tensor(text, dtype=torch.uint8, device=device)
    if team().rank:
        content = torch.empty(int(length), dtype=torch.uint8, device=device)
    distributed.broadcast(content, 0)
    return json.loads(bytes(content.tolist()))


def first_then_others(function: Callable[[], Any], device: torch.device | str = "cpu") -> Any:
    """What the first process makes, the others find."""
    found = function() if team().rank == 0 else None
    agreed(None, device)
    return found if team().rank == 0 else function()
