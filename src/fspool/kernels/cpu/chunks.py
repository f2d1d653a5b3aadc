"""Work on the CPU in chunks: sets of equal size together, a cache-sized piece at a time.

A batch is seen as rows, ``x.reshape(-1, D)``, whatever its layout. Sets of the same size form dense
``(sets, n, features)`` blocks, so nothing is ever computed for padding and the layouts share all
code. Where many short steps go over a block, sets of nearly the same size may share one: Python's
own time for a step is then spent once. numpy lets go of the interpreter lock, so plain threads keep
all cores busy.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

KEEP = 16 << 20  # bytes of a scratch array that a thread holds on to
LIMIT = 1 << 19  # elements of a chunk: more leaves the cache, fewer makes threads wait for Python
REMEMBERED = 1 << 18  # rows of a batch whose plan is kept
ALONE = 1 << 15  # elements that one thread has done before another has woken up
WASTE = 8  # a block of sets of different sizes is padded by at most this part of it,
FREE = 1 << 14  # or by so few elements that a block more would take longer


class Chunk(NamedTuple):
    """Some features of some sets, of ``size`` elements each, or at most, where ``sizes`` differ."""

    size: int
    sets: np.ndarray  # flat numbers g * B + b
    rows: slice | np.ndarray  # (sets, size) rows of x, or the slice that holds them
    features: slice
    sizes: np.ndarray | None = None  # after its elements a set has its last row again

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.sets), self.size, self.features.stop - self.features.start

    @property
    def inside(self) -> np.ndarray | None:
        """Which places of the block are elements, (sets, size), where not all are."""
        return None if self.sizes is None else np.arange(self.size) < self.sizes[:, None]

    def take(self, x: np.ndarray) -> np.ndarray:
        """The block (sets, size, features) of x (rows, D); a view where the rows lie together."""
        block = x[self.rows, self.features]
        return block.reshape(self.shape) if isinstance(self.rows, slice) else block

    def put(self, x: np.ndarray, block: np.ndarray) -> None:
        rows = self.rows
        if isinstance(rows, slice):
            block = block.reshape(-1, block.shape[-1])
        elif self.sizes is not None:
            rows, block = rows[self.inside], block[self.inside]
        x[rows, self.features] = block

    def replicas(self, batch: int) -> np.ndarray:
        """The replica of every set."""
        return self.sets // batch


def plan(
    shape: tuple[int, ...],
    mask: Tensor | None,
    lengths: Tensor | None,
    offsets: Tensor | None,
    limit: int | None = None,
    join: bool = False,
) -> list[Chunk]:
    """Cut a batch of shape (G, B, N, D), or (G, T, D) with offsets, into chunks; skip empty sets.

    Without a ``limit`` of elements they are cut for :func:`run`: at least one for every thread.
    With ``join`` sets of nearly the same size share a chunk.
    """
    given = lengths if offsets is None else offsets
    if given is None or mask is not None or math.prod(shape[:-1]) > REMEMBERED:
        return list(_plan(shape, mask, lengths, offsets, limit, join))
    key = shape, limit, join, given is offsets, given.dtype, given.numpy().tobytes()
    key += (torch.get_num_threads(),)
    return _remembered(key, lambda: list(_plan(shape, mask, lengths, offsets, limit, join)))


def _plan(shape, mask, lengths, offsets, limit, join) -> Iterable[Chunk]:
    dim = shape[-1]
    row_of = None
    if offsets is not None:
        groups, rows = shape[:2]
        bounds = np.broadcast_to(offsets.numpy(), (groups, offsets.shape[-1]))
        sizes = np.diff(bounds).ravel()
        starts = (np.arange(groups)[:, None] * rows + bounds[:, :-1]).ravel()
    else:
        groups, batch, length = shape[:3]
        starts = np.arange(groups * batch) * length
        if mask is not None:
            flat = mask.numpy().reshape(groups * batch, length)
            sizes = flat.sum(-1)
            if not flat.all():
                starts, row_of = np.cumsum(sizes) - sizes, np.flatnonzero(flat)
        elif lengths is not None:
            sizes = lengths.numpy().ravel()
        else:
            sizes = np.full(groups * batch, length)
    return _cut(sizes, starts, row_of, dim, limit, join)


def _cut(
    sizes: np.ndarray,
    starts: np.ndarray,
    row_of: np.ndarray | None,
    dim: int,
    limit: int | None,
    join: bool,
) -> Iterable[Chunk]:
    if limit is None:  # as many chunks for every thread, none larger than LIMIT
        total = int(sizes.sum()) * dim
        threads = 1 if total <= ALONE else torch.get_num_threads()
        limit = max(1, math.ceil(total / (threads * math.ceil(max(total, 1) / (threads * LIMIT)))))
    order = np.argsort(sizes, kind="stable")
    order = order[np.searchsorted(sizes[order], 1) :]
    groups = np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1) if len(order) else []
    for members in _joined(groups, sizes, dim) if join else groups:
        size = int(sizes[members[-1]])
        width = dim if size * dim <= limit else max(1, limit // size)
        pieces = min(len(members), math.ceil(len(members) * size * dim / limit))
        for sets in np.array_split(members, pieces):
            own = sizes[sets] if sizes[sets[0]] < sizes[sets[-1]] else None
            rows = _rows(starts[sets], int(sizes[sets[-1]]), own, row_of)
            for f in range(0, dim, width):
                features = slice(f, min(f + width, dim))
                yield Chunk(int(sizes[sets[-1]]), sets, rows, features, own)


def _joined(groups: list[np.ndarray], sizes: np.ndarray, dim: int) -> list[np.ndarray]:
    """Groups of sets, by size, put together as long as little is lost to padding."""
    joined: list[list[np.ndarray]] = []
    largest = total = elements = 0
    for members in reversed(groups):
        size, count = int(sizes[members[0]]), len(members)
        total, elements = total + largest * count, elements + size * count
        waste = total - elements
        if not joined or waste * WASTE > total and waste * dim > FREE:
            joined.append([])
            largest, total, elements = size, size * count, size * count
        joined[-1].append(members)
    return [np.concatenate(alike[::-1]) for alike in reversed(joined)]


def _rows(
    first: np.ndarray, size: int, sizes: np.ndarray | None, row_of: np.ndarray | None
) -> slice | np.ndarray:
    """The rows of sets that start at ``first``: a slice where they lie together."""
    places = np.arange(size)
    if sizes is not None:
        places = np.minimum(places, sizes[:, None] - 1)
    if row_of is not None:
        return row_of[first[:, None] + places]
    if sizes is None and np.array_equal(first, first[0] + size * np.arange(len(first))):
        return slice(int(first[0]), int(first[0]) + size * len(first))
    return first[:, None] + places


def covers(chunks: list[Chunk], x: Tensor) -> bool:
    """Is every row of x an element of some set, so that no padding has to be filled?"""
    dim = x.shape[-1]
    whole = [chunk for chunk in chunks if chunk.features.stop == dim]
    done = sum(len(c.sets) * c.size if c.sizes is None else int(c.sizes.sum()) for c in whole)
    return dim == 0 or done * dim == x.numel()


def run(function: Callable[[Chunk], object], chunks: list[Chunk]) -> list:
    """``map(function, chunks)`` on all threads, results in order."""
    if len(chunks) < 2 or torch.get_num_threads() < 2:
        return [function(chunk) for chunk in chunks]
    return list(_executor().map(quiet(function), chunks))


def quiet(function: Callable) -> Callable:
    """What overflows or has no value shows in the result, as in torch: numpy says nothing, whatever
    it was told to say. Every thread has to be told by itself."""

    @functools.wraps(function)
    def call(*arguments):
        with np.errstate(all="ignore"):
            return function(*arguments)

    return call


_local = threading.local()
_pool: ThreadPoolExecutor | None = None


def scratch(name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """An uninitialised array of this thread, kept for the next chunk: fresh pages are slow."""
    buffers = _local.__dict__
    need = math.prod(shape) * np.dtype(dtype).itemsize
    if need > KEEP:  # the rare huge chunk is not worth holding on to
        return np.empty(shape, dtype)
    if name not in buffers or buffers[name].nbytes < need:
        buffers[name] = np.empty(need, np.uint8)
    return buffers[name][:need].view(dtype).reshape(shape)


_plans: OrderedDict = OrderedDict()


def _remembered(key: tuple, make: Callable[[], list[Chunk]]) -> list[Chunk]:
    """The pools of a network see the same sets one after the other, and so do gradients."""
    chunks = _plans.get(key)
    if chunks is None:
        chunks = _plans[key] = make()
        while len(_plans) > 2:
            with suppress(KeyError):  # another thread was faster
                _plans.popitem(last=False)
    return chunks


def keep_small(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Cache the last few arrays that a function made, unless they are huge."""
    made: OrderedDict = OrderedDict()

    def cached(*key) -> np.ndarray:
        array = made.get(key)
        if array is None:
            array = function(*key)
            if array.nbytes <= KEEP:
                made[key] = array
                while len(made) > 4:
                    made.popitem(last=False)
        return array

    return cached


def _executor() -> ThreadPoolExecutor:
    global _pool
    if _pool is None or _pool._max_workers != torch.get_num_threads():
        _pool = ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="fspool")
    return _pool


def _forget_threads() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_threads)  # threads do not survive a fork


def empty(shape: tuple[int, ...], dtype: torch.dtype, fill: int | None = None) -> Tensor:
    """A tensor in memory from numpy, which asks for huge pages: several times faster to fill."""
    kind = torch.empty(0, dtype=dtype).numpy().dtype
    return torch.from_numpy(np.empty(shape, kind) if fill is None else np.full(shape, fill, kind))


def to_numpy(x: Tensor) -> np.ndarray:
    """(rows, D) in float32 or float64, sharing memory where possible."""
    x = x.detach()
    if x.dtype not in (torch.float32, torch.float64):
        x = x.float()
    return x.numpy().reshape(-1, x.shape[-1])
