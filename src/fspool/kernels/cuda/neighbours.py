"""The sum over neighbours on CUDA.

A program has some nodes and features. It reads the nodes' own rows first, which are often one
another's neighbours, and then a few neighbours of every node at once. A node with very many would
keep the others waiting. It comes afterwards, alone: each row of the tile adds up its share of the
neighbours, and these rows meet at the end. So the order of a sum is always the same, and nothing is
added to memory that others write to.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import cdiv, power_of_2
from .sets import index

WARPS = 4
TILE = 512 * WARPS  # numbers that a program adds up: 16 a thread, half of that in dense graphs
ROWS = 16 * WARPS  # nodes of it, at most: so few that each thread reads the places of its own ones
FEATURES = 64  # of it, at most
ONCE = 2  # neighbours of a node at once
REGISTERS = 80  # of a thread: with room for them, the compiler does not read one after the other
DENSE = 4  # neighbours of a node, on average, that are many
MANY = 8  # times 1 + the mean number of neighbours: a node with more than that comes alone


def neighbour_sum(x: Tensor, starts: Tensor, sources: Tensor, own: float) -> Tensor:
    """x (G, T, D), starts (G, T + 1), sources (G, E) -> (G, T, D)."""
    groups, nodes, dim = x.shape
    edges = sources.shape[1]
    sources = sources.short() if sources.dtype == torch.uint8 else sources  # -1 is no node
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        features = min(FEATURES, power_of_2(dim))
        dense = edges > DENSE * nodes
        # Half as many where the registers hold doubles, or an address for every number.
        half = dense or dim % 16 > 0 or x.dtype == torch.float64
        rows = min(ROWS, TILE // (2 if half else 1) // features)
        programs = groups * cdiv(nodes, rows) * cdiv(dim, features)
        with torch.cuda.device_of(x):
            _sum[(programs,)](
                *(x.contiguous(), starts.contiguous(), sources.contiguous(), y),
                *(nodes, edges, dim, nodes * dim >= 1 << 31),
                *(MANY * (1 + edges // nodes), rows, features, ONCE, own),
                num_warps=WARPS,
                maxnreg=REGISTERS * 3 // 4 if dense else REGISTERS,
            )
    return y


@triton.jit(do_not_specialize=("nodes", "edges", "many"))
def _sum(
    x_ptr,
    start_ptr,
    source_ptr,
    y_ptr,
    nodes,
    edges,
    dim,
    WIDE: tl.constexpr,
    many,
    BR: tl.constexpr,
    BD: tl.constexpr,
    ONCE: tl.constexpr,
    OWN: tl.constexpr,
):
    """Whatever starts and sources hold, nothing outside the memory is read."""
    dtype: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    blocks = tl.cdiv(dim, BD)
    program = tl.program_id(0)
    d = (program % blocks) * BD + tl.arange(0, BD)
    part = program // blocks
    parts = tl.cdiv(nodes, BR)
    g = (part // parts).to(tl.int64)
    node = (part % parts) * BR + tl.arange(0, BR)
    start_ptr += g * (nodes + 1)
    source_ptr += g * edges
    x_ptr += g * nodes * dim + d
    y_ptr += g * nodes * dim + d

    at = index(node, WIDE)[:, None] * dim
    inside = (node < nodes)[:, None] & (d < dim)[None, :]
    y = tl.zeros((BR, BD), dtype)
    if OWN != 0:
        y += OWN * tl.load(x_ptr[None, :] + at, mask=inside, other=0.0).to(dtype)
    start, count = _neighbours(start_ptr, node, node < nodes, edges)
    few = count <= many
    count = tl.where(few, count, 0)
    y = _add(y, x_ptr, source_ptr + start, count, 1, nodes, d, dim, WIDE, ONCE)
    tl.store(y_ptr[None, :] + at, y.to(y_ptr.dtype.element_ty), mask=inside & few[:, None])

    hub = tl.min(tl.where(few, nodes, node))
    while hub < nodes:
        row = tl.arange(0, BR)
        first, degree = _neighbours(start_ptr, hub, True, edges)
        share = tl.zeros((BR, BD), dtype)
        place = source_ptr + first + row
        share = _add(share, x_ptr, place, degree - row, BR, nodes, d, dim, WIDE, ONCE)
        total = tl.sum(share, axis=0)
        of_hub = index(hub, WIDE) * dim
        if OWN != 0:
            total += OWN * tl.load(x_ptr + of_hub, mask=d < dim, other=0.0).to(dtype)
        tl.store(y_ptr + of_hub, total.to(y_ptr.dtype.element_ty), mask=d < dim)
        hub = tl.min(tl.where(few | (node <= hub), nodes, node))


@triton.jit
def _neighbours(start_ptr, node, inside, edges):
    """Where those of a node begin, and how many there are: none, if the number is negative."""
    start = tl.load(start_ptr + node, mask=inside, other=0).to(tl.int32)
    stop = tl.load(start_ptr + node + 1, mask=inside, other=0).to(tl.int32)
    start = tl.maximum(start, 0)
    return start, tl.minimum(tl.maximum(stop, 0), edges) - start


@triton.jit
def _add(
    y,
    x_ptr,
    source_ptr,
    count,
    STEP: tl.constexpr,
    nodes,
    d,
    dim,
    WIDE: tl.constexpr,
    ONCE: tl.constexpr,
):
    """To each row of y the rows of x at every STEP-th of its next ``count`` sources."""
    for k in range(0, tl.max(count), STEP * ONCE):
        for i in tl.static_range(ONCE):
            used = k + i * STEP < count
            source = tl.load(source_ptr + k + i * STEP, mask=used, other=-1)
            used = source.to(tl.uint32) < nodes  # nor is it below 0, which would be a large one
            at = index(source.to(tl.int32), WIDE)[:, None] * dim
            inside = used[:, None] & (d < dim)[None, :]
            y += tl.load(x_ptr[None, :] + at, mask=inside, other=0.0).to(y.dtype)
    return y
