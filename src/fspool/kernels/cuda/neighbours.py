"""The sum over neighbours on CUDA.

A program has a few nodes and features, and reads some neighbours of each of them at once: their
numbers in one go, then their rows, which do not wait for one another. Each place among those adds
up its own neighbours; the places meet once, at the end. So the order of a sum is always the same,
and nothing is added to memory that others write to.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import cdiv, power_of_2
from .sets import index

TILE = 1024  # numbers that a program reads at once, 32 a thread: one warp, no node waits for others
FEATURES = 64  # of a program, at most
FEW, MANY = 4, 16  # neighbours of a node at once: of small molecules, and of dense graphs
DENSE = 16  # mean number of neighbours that makes a graph dense


def neighbour_sum(x: Tensor, starts: Tensor, sources: Tensor, own: float) -> Tensor:
    """x (G, T, D), starts (G, T + 1), sources (G, E) -> (G, T, D)."""
    groups, nodes, dim = x.shape
    edges = sources.shape[1]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if y.numel():
        features = min(FEATURES, power_of_2(dim))
        once = MANY if edges > DENSE * nodes else FEW
        rows = TILE // features // once
        programs = groups * cdiv(nodes, rows) * cdiv(dim, features)
        with torch.cuda.device_of(x):
            _sum[(programs,)](
                *(x.contiguous(), starts.contiguous(), sources.contiguous(), y),
                *(nodes, edges, dim),
                *(nodes * dim >= 1 << 31, rows, once, features, own),
                num_warps=1,
            )
    return y


@triton.jit(do_not_specialize=("nodes", "edges"))
def _sum(
    x_ptr,
    start_ptr,
    source_ptr,
    y_ptr,
    nodes,
    edges,
    dim,
    WIDE: tl.constexpr,
    BR: tl.constexpr,
    BK: tl.constexpr,
    BD: tl.constexpr,
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
    start_ptr += g * (nodes + 1) + node
    source_ptr += g * edges
    x_ptr += g * nodes * dim
    start = tl.load(start_ptr, mask=node < nodes, other=0).to(tl.int32)
    stop = tl.load(start_ptr + 1, mask=node < nodes, other=0).to(tl.int32)
    start = tl.maximum(start, 0)
    stop = tl.minimum(stop, edges)
    total = tl.zeros((BR, BK, BD), dtype)
    for k in range(0, tl.max(stop - start), BK):
        edge = start[:, None] + k + tl.arange(0, BK)[None, :]
        used = edge < stop[:, None]
        source = tl.load(source_ptr + edge, mask=used, other=0).to(tl.int32)
        used &= (source >= 0) & (source < nodes)
        at = index(source, WIDE)[:, :, None] * dim + d[None, None, :]
        inside = used[:, :, None] & (d < dim)[None, None, :]
        total += tl.load(x_ptr + at, mask=inside, other=0.0).to(dtype)
    y = tl.sum(total, axis=1)
    at = index(node, WIDE)[:, None] * dim + d[None, :]
    inside = (node < nodes)[:, None] & (d < dim)[None, :]
    if OWN != 0:
        y += OWN * tl.load(x_ptr + at, mask=inside, other=0.0).to(dtype)
    tl.store(y_ptr + g * nodes * dim + at, y.to(y_ptr.dtype.element_ty), mask=inside)
