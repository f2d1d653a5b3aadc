"""Batches of graphs on CUDA, in one pass over nodes and edges; torch needs some twenty gathers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import MOST, cdiv

ROWS = 1024  # of a program


def take(
    kinds: Tensor,
    starts: Tensor,
    sources: Tensor,
    firsts: Tensor,
    ends: Tensor,
    nodes: int,
    edges: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Kinds (N, T), starts (N, T + 1) and sources (N, E) of N batches.

    Args:
        kinds, starts, sources: Of all graphs of the set, counted inside of each.
        firsts: (N, B, 2), the first node and the first edge of each graph of a batch.
        ends: (N, B + 1, 2), nodes and edges of the graphs before it.
    """
    batches, graphs = firsts.shape[:2]
    new = [kinds.new_empty(batches, n, dtype=torch.int32) for n in (nodes, nodes + 1, edges)]
    firsts, ends = firsts.contiguous(), ends.contiguous()
    with torch.cuda.device_of(kinds):
        for begin in range(0, batches, MOST):
            part = slice(begin, begin + MOST)
            own = firsts[part], ends[part], *(t[part] for t in new)
            grid = cdiv(nodes + 1, ROWS) + cdiv(edges, ROWS), len(own[0])
            _take[grid](kinds, starts, sources, *own, graphs, nodes, edges, ROWS, num_warps=4)
    return tuple(new)


@triton.jit
def _find(end_ptr, row, graphs):
    """The graph that a row is of: the last that begins at it or before."""
    low = tl.zeros(row.shape, tl.int32)
    high = low + graphs
    left = graphs
    while left > 1:
        middle = (low + high) // 2
        before = tl.load(end_ptr + 2 * middle) <= row
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
        left = tl.max(high - low)
    return low


@triton.jit(do_not_specialize=["graphs", "nodes", "edges"])
def _take(
    kind_ptr,
    start_ptr,
    source_ptr,
    first_ptr,
    end_ptr,
    own_kind_ptr,
    own_start_ptr,
    own_source_ptr,
    graphs,
    nodes,
    edges,
    ROWS: tl.constexpr,
):
    """Programs: blocks of nodes and then blocks of edges, batches."""
    batch = tl.program_id(1).to(tl.int64)
    first_ptr += batch * graphs * 2
    end_ptr += batch * (graphs + 1) * 2
    block = tl.program_id(0)
    of_nodes = tl.cdiv(nodes + 1, ROWS)
    if block < of_nodes:
        row = block * ROWS + tl.arange(0, ROWS)
        used = row < tl.load(end_ptr + graphs * 2)
        graph = _find(end_ptr, row, graphs)
        place = tl.load(first_ptr + 2 * graph) + row - tl.load(end_ptr + 2 * graph)
        kind = tl.load(kind_ptr + place, mask=used, other=0)
        tl.store(own_kind_ptr + batch * nodes + row, kind, mask=row < nodes)
        start = tl.load(end_ptr + 2 * graph + 1) + tl.load(start_ptr + place, mask=used, other=0)
        start = tl.where(used, start, tl.load(end_ptr + graphs * 2 + 1))
        tl.store(own_start_ptr + batch * (nodes + 1) + row, start.to(tl.int32), mask=row <= nodes)
    else:
        row = (block - of_nodes) * ROWS + tl.arange(0, ROWS)
        used = row < tl.load(end_ptr + graphs * 2 + 1)
        graph = _find(end_ptr + 1, row, graphs)
        place = tl.load(first_ptr + 2 * graph + 1) + row - tl.load(end_ptr + 2 * graph + 1)
        source = tl.load(end_ptr + 2 * graph) + tl.load(source_ptr + place, mask=used, other=0)
        source = tl.where(used, source, 0).to(tl.int32)
        tl.store(own_source_ptr + batch * edges + row, source, mask=row < edges)
