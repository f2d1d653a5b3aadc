"""Hard FSPool of very small padded sets: every thread has a column of its own, and all its rows.

Rows are a tuple, so that the compiler sees each one as a register. Nothing goes between threads. An
element's rank is the number of those that come before it, and that settles ties too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .piecewise import load_weights
from .sets import ANY, Sets, find, is_element, origin, program, strides
from .sorting import LOWEST, key_of, value_of

MOST = 16  # rows
STEP = 4  # a kernel for every so many rows: with one for each, lengths that vary compile too often
FEATURES = 32  # of a program: a warp
SHARED = 4  # sets at most of one program, which have their weights in common
PROGRAMS = 4096  # enough to fill a device


@triton.jit
def _exchange(keys, A: tl.constexpr, B: tl.constexpr):
    """The larger one of two rows first."""
    first, second = tl.maximum(keys[A], keys[B]), tl.minimum(keys[A], keys[B])
    return keys[:A] + (first,) + keys[A + 1 : B] + (second,) + keys[B + 1 :]


@triton.jit
def _exchange_all(keys, N: tl.constexpr, BIT: tl.constexpr, SET: tl.constexpr, BY: tl.constexpr):
    """Rows at a distance, of which the first has a bit set or not set."""
    for i in tl.static_range(N - BY):
        if (i & BIT) == SET:
            keys = _exchange(keys, i, i + BY)
    return keys


@triton.jit
def _sort(keys, N: tl.constexpr, LOG: tl.constexpr):
    """Batcher's odd-even merge sort, of any number of rows up to 2^LOG; the largest comes first."""
    for k in tl.static_range(LOG):
        keys = _exchange_all(keys, N, 1 << (LOG - 1 - k), 0, 1 << (LOG - 1 - k))
        for i in tl.static_range(k):
            keys = _exchange_all(
                *(keys, N, 1 << (LOG - 1 - k), 1 << (LOG - 1 - k)),
                (1 << (LOG - 1 - i)) - (1 << (LOG - 1 - k)),
            )
    return keys


@triton.jit
def _rank(keys, ROW: tl.constexpr, N: tl.constexpr):
    """How many come before a row: those that are larger, and equal ones above it."""
    rank = tl.zeros(keys[ROW].shape, tl.int32)
    for i in tl.static_range(N):
        if i < ROW:
            rank += (keys[i] >= keys[ROW]).to(tl.int32)
        elif i > ROW:  # seen from the other row the same comparison, which is then made once
            rank += 1 - (keys[ROW] >= keys[i]).to(tl.int32)
    return rank


@triton.jit
def _zeros(N: tl.constexpr, BD: tl.constexpr):
    rows = ()
    for _ in tl.static_range(N):
        rows = rows + (tl.zeros((1, BD), tl.float32),)
    return rows


@triton.jit
def _weights(w_ptr, size, d, knots, dim, N: tl.constexpr):
    f = ()
    for i in tl.static_range(N):
        row = tl.full((1, 1), i, tl.int32)
        f = f + (load_weights(w_ptr, row, size, d, (row < size) & (d < dim), knots, dim),)
    return f


@triton.jit(do_not_specialize=(*ANY, "share"))
def _pool(
    x_ptr,
    w_ptr,
    y_ptr,
    rank_ptr,
    sorted_ptr,
    offsets_ptr,
    apart,
    sizes_ptr,
    mask_ptr,
    batch,
    length,
    dim,
    stride_g,
    stride_b,
    stride_n,
    stride_d,
    knots,
    share,
    N: tl.constexpr,
    LOG: tl.constexpr,
    BD: tl.constexpr,
):
    """``share`` sets; their weights are made again only where one has another size."""
    g, chunk, d = program(dim, BD)
    inside = d < dim
    f = _zeros(N, BD)
    known = tl.full((), 0, tl.int32)
    for b in range(chunk * share, tl.minimum(chunk * share + share, batch)):
        _, first, rows, size = find(g, b, offsets_ptr, apart, sizes_ptr, mask_ptr, batch, length)
        if w_ptr is not None:
            if size != known:
                f = _weights(w_ptr + g * knots * dim, size, d, knots, dim, N)
                known = size
        start = x_ptr + origin(g, b, 0, stride_g, stride_b, stride_n) + d * stride_d
        keys = ()
        for i in tl.static_range(N):
            element = is_element(i, first, rows, mask_ptr) & inside
            x = tl.load(start + i * stride_n, mask=element, other=0.0)
            keys = keys + (tl.where(element, key_of(x, i), LOWEST),)
        at = first * dim + d
        if w_ptr is not None:
            ordered = _sort(keys, N, LOG)
            y = tl.zeros((1, BD), tl.float32)
            for i in tl.static_range(N):
                value = value_of(ordered[i], x_ptr.dtype.element_ty)
                y += tl.where(i < size, f[i] * value.to(tl.float32), 0.0)
                if sorted_ptr is not None:
                    tl.store(sorted_ptr + at + i * dim, value, mask=inside & (i < size))
            tl.store(y_ptr + (g * batch + b) * dim + d, y, mask=inside)
        if rank_ptr is not None:
            for i in tl.static_range(N):
                rank, stored = _rank(keys, i, N), is_element(i, first, rows, mask_ptr)
                if mask_ptr is None:  # padding comes last, by position
                    rank = tl.where(i < rows, rank, i)
                    stored = i < length
                rank = rank.to(rank_ptr.dtype.element_ty)
                tl.store(rank_ptr + at + i * dim, rank, mask=inside & stored)


def fits(sets: Sets) -> bool:
    return sets.length <= MOST and not sets.packed


def pool(x: Tensor, sets: Sets, weight, y, ranks, ordered) -> None:
    """Whatever is not None of y, ranks and x in sorted order; the first needs the weight."""
    rows = max(STEP, triton.cdiv(sets.length, STEP) * STEP)
    blocks = triton.cdiv(sets.dim, FEATURES)
    share = min(SHARED, max(1, sets.replicas * sets.batch * blocks // PROGRAMS))
    knots = 1 if weight is None else weight.shape[1]
    with torch.cuda.device_of(x):
        _pool[sets.grid(triton.cdiv(sets.batch, share), FEATURES)](
            *(x, weight, y, ranks, ordered, *sets.args, *strides(x), knots, share),
            *(rows, (rows - 1).bit_length(), FEATURES),
            num_warps=1,
        )
