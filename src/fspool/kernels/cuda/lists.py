"""Sets in lists by their rows, so that the programs of a tile go through those that it is for.

A program that finds a set of another size leaves at once, but it has to be started: of large tiles
a processor holds one or two at a time, and few sets are large.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .counts import cdiv
from .sets import ANY, LISTS, Sets, find

BLOCK = 1024  # sets that a program looks at
WARPS = 4096  # in all, enough to fill a device


@triton.jit(do_not_specialize=(*ANY, *LISTS, "least"))
def _make_lists(
    count_ptr,
    number_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    least,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The order within a list is left to chance, and nothing depends on it."""
    g = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = b < batch
    one = tl.minimum(b, batch - 1)
    _, _, rows, _ = find(g, one, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
    for i in tl.static_range(LAST - FIRST + 1 + (LAST > TOP)):
        if FIRST + i > LAST:
            own = known & (rows > (1 << TOP))
        elif i == 0:
            own = known & (rows > least)
        else:
            own = known & (rows > (1 << (FIRST + i - 1)))
        if FIRST + i < LAST:
            own = own & (rows <= (1 << (FIRST + i)))
        mine = own.to(tl.int32)
        to = i * tl.num_programs(1) + g
        place = tl.atomic_add(count_ptr + to, tl.sum(mine)) + tl.cumsum(mine) - mine
        tl.store(number_ptr + to * batch + place, b, mask=own)


@triton.jit
def in_list(count_ptr, g, dim, BD: tl.constexpr):
    """Tiles of the sets in a list: each has some features of one.

    Loops over them have ``disable_licm``: what is kept from tile to tile takes the registers that a
    sort needs.
    """
    return tl.load(count_ptr + g) * tl.cdiv(dim, BD)


@triton.jit
def listed(i, number_ptr, g, batch, dim, BD: tl.constexpr):
    """Set of tile i, and its first feature."""
    blocks = tl.cdiv(dim, BD)
    return tl.load(number_ptr + g * batch + i // blocks), (i % blocks) * BD


class Lists:
    """Of sets of more than ``least`` rows: those of at most 2^first rows, 2^(first + 1), and so on;
    all that are larger are in the last list. Where some have more than 2^top there is one of all of
    these, too."""

    def __init__(self, sets: Sets, least: int, first: int, last: int, top: int) -> None:
        self.sets, self.first = sets, first
        device = sets.args[0 if sets.packed else 2].device
        count = last - first + 1 + (last > top)
        self.counts = torch.zeros(count, sets.replicas, dtype=torch.int32, device=device)
        self.numbers = self.counts.new_empty(count, sets.replicas, sets.batch)
        _make_lists[cdiv(sets.batch, BLOCK), sets.replicas](
            *(self.counts, self.numbers, *sets.args[:-1], least, first, last, top, BLOCK)
        )

    def of(self, log: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.counts[log - self.first], self.numbers[log - self.first]

    def all(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.counts[-1], self.numbers[-1]

    def grid(self, features: int, warps: int, above: int, share: int = 1) -> tuple[int, int]:
        """Programs for a list of sets of more than ``above`` rows, each in so many shares."""
        sets = self.sets
        few = sets.packed and above >= 0
        most = min(sets.batch, sets.length // (above + 1)) if few else sets.batch
        tiles = most * share * cdiv(sets.dim, features)
        return max(1, min(tiles, cdiv(WARPS, warps * sets.replicas))), sets.replicas
