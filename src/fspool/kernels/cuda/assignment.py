"""Exact linear assignment of small matrices, one program each: shortest augmenting paths.

Row by row, a path of least reduced cost leads from the new row to a free column, and the pairs
along it are exchanged (Jonker and Volgenant, 1987). All columns are looked at together, a lane
each; a path never comes to a column twice, so it ends after at most M of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import power_of_2

HUGE = tl.constexpr(1e30)  # more than any cost: what is not finite is taken for it


def assign(costs: Tensor) -> Tensor:
    """For every row of costs (B, N, M), N at most M, the column that it is paired with, (B, N)."""
    batch, n, m = costs.shape
    found = torch.empty(batch, n, dtype=torch.long, device=costs.device)
    if found.numel():
        with torch.cuda.device_of(costs):
            _assign[(batch,)](costs.contiguous(), found, n, m, LANES=power_of_2(m), num_warps=1)
    return found


@triton.jit
def _pick(values, lane, place):
    """The value of one lane."""
    return tl.sum(tl.where(lane == place, values, 0), axis=0)


@triton.jit(do_not_specialize=["n", "m"])
def _assign(cost_ptr, found_ptr, n, m, LANES: tl.constexpr):
    which = tl.program_id(0).to(tl.int64)
    cost_ptr += which * n * m
    lane = tl.arange(0, LANES)
    of_row = tl.zeros((LANES,), tl.float64)  # prices
    of_column = tl.zeros((LANES,), tl.float64)
    owner = tl.full((LANES,), -1, tl.int32)  # the row that has a column
    for new in range(0, n):
        least = tl.full((LANES,), HUGE, tl.float64)  # reduced cost of the way to a column
        before = tl.full((LANES,), -1, tl.int32)  # the column before it on that way
        done = lane >= m  # columns that the search has left
        rows = lane == new  # rows that it has come to
        row = new
        column = -1
        while row >= 0:
            cost = tl.load(cost_ptr + row * m + lane, mask=lane < m, other=0.0).to(tl.float64)
            cost = tl.where(cost == cost, cost, 0.0)  # whatever pairs NaN will do
            cost = tl.minimum(tl.maximum(cost, -HUGE), HUGE)
            reduced = cost - _pick(of_row, lane, row) - of_column
            nearer = (reduced < least) & ~done
            least = tl.where(nearer, reduced, least)
            before = tl.where(nearer, column, before)
            step = tl.min(tl.where(done, 2 * HUGE, least), axis=0)
            column = tl.min(tl.where((least <= step) & ~done, lane, LANES), axis=0)
            of_row += tl.where(rows, step, 0.0)
            of_column -= tl.where(done & (lane < m), step, 0.0)
            least -= tl.where(done, 0.0, step)
            done |= lane == column
            row = _pick(owner, lane, column)
            rows |= lane == row
        while column >= 0:  # back along the path, every column goes to the row before it
            last = _pick(before, lane, column)
            taken = tl.where(last >= 0, _pick(owner, lane, last), new)
            owner = tl.where(lane == column, taken, owner)
            column = last
    tl.store(found_ptr + which * n + owner, lane.to(tl.int64), mask=owner >= 0)
