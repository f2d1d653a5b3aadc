"""Two linear layers with a ReLU between them on CUDA: the hidden layer lives in registers.

Rows go through in tiles. Backwards each tile is computed once more, and a program adds up what its
tiles give to the weights; another kernel adds up the programs, always in the same order: the same
bits. Beyond the widths of the layers the columns of a tile are zeros. Products are by the matrix
units in three parts ("tf32x3"), which keeps float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import cdiv, power_of_2, replicas

FORWARD, BACKWARD = (64, 4), (32, 2)  # rows of a tile, and warps: as measured
NARROWEST = 16  # side of a tile: what products of tiles take
PROGRAMS, MOST = 512, 32  # programs that fill a device; of a replica, whose sums are added up
NUMBERS = 256  # that one program adds up
ANY = ["sets", "length", "parts"]  # integers that a kernel must not be compiled for
PRECISION = tl.constexpr("tf32x3")


class Grid(NamedTuple):
    """How the rows of a replica are cut into tiles, and these shared out among programs."""

    sets: int
    length: int
    parts: int
    tile: dict[str, int]


def share_out(x: Tensor, sizes: Tensor | None, form: tuple[int, int], most: int) -> Grid:
    groups, sets, length, _ = x.shape
    if sizes is None:  # all rows are alike
        sets, length = 1, sets * length
    most_rows, warps = form
    rows = min(most_rows, max(NARROWEST, power_of_2(length)))
    tiles = sets * cdiv(length, rows)
    parts = min(tiles, most, max(1, cdiv(PROGRAMS, groups)))
    return Grid(sets, length, parts, {"BR": rows, "num_warps": warps})


# --------------------------------------------------------------------------------------------------
# Inside of a program


@triton.jit
def load_matrix(ptr, rows: tl.constexpr, columns: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.arange(0, BR)[:, None]
    c = tl.arange(0, BC)[None, :]
    return tl.load(ptr + r * columns + c, mask=(r < rows) & (c < columns), other=0.0)


@triton.jit
def load_vector(ptr, count: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    return tl.load(ptr + i, mask=i < count, other=0.0)[None, :]


@triton.jit
def _tile(tile, g, sizes_ptr, sets, length, BR: tl.constexpr):
    """Where the rows of a tile lie among those of all replicas; which there are, and which are
    elements of a set."""
    blocks = tl.cdiv(length, BR)
    s = tile // blocks
    row = (tile % blocks) * BR + tl.arange(0, BR)[:, None]
    size = length
    if sizes_ptr is not None:
        size = tl.minimum(tl.load(sizes_ptr + g * sets + s), length).to(tl.int32)
    at = (g * sets + s) * length + row
    return at, row < length, row < size, (tile % blocks) * BR < size


@triton.jit
def _hidden(x, w1, b1, H: tl.constexpr, BH: tl.constexpr):
    """Before the ReLU."""
    hidden = tl.dot(x, tl.trans(w1), input_precision=PRECISION) + b1
    if H < BH:  # infinity times the zeros there is not zero
        hidden = tl.where(tl.arange(0, BH)[None, :] < H, hidden, 0.0)
    return hidden


@triton.jit
def _relu(hidden):
    return tl.where(hidden <= 0, 0.0, hidden)  # NaN stays


# --------------------------------------------------------------------------------------------------
# Kernels. Programs: parts of a replica, replicas


@triton.jit(do_not_specialize=ANY)
def _forward(
    x_ptr,
    w1_ptr,
    b1_ptr,
    w2_ptr,
    b2_ptr,
    sizes_ptr,
    y_ptr,
    sets,
    length,
    parts,
    C: tl.constexpr,
    H: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    BC: tl.constexpr,
    BH: tl.constexpr,
    BO: tl.constexpr,
    BR: tl.constexpr,
):
    g = tl.program_id(1).to(tl.int64)
    w1, b1 = load_matrix(w1_ptr + g * H * C, H, C, BH, BC), load_vector(b1_ptr + g * H, H, BH)
    w2, b2 = load_matrix(w2_ptr + g * O * H, O, H, BO, BH), load_vector(b2_ptr + g * O, O, BO)
    c = tl.arange(0, BC)[None, :]
    o = tl.arange(0, BO)[None, :]
    for tile in range(tl.program_id(0), sets * tl.cdiv(length, BR), parts):
        at, there, element, some = _tile(tile, g, sizes_ptr, sets, length, BR)
        y = tl.zeros((BR, BO), tl.float32)
        if some:
            x = tl.load(x_ptr + at * C + c, mask=element & (c < C), other=0.0)
            hidden = _relu(_hidden(x, w1, b1, H, BH))
            y = tl.dot(hidden, tl.trans(w2), input_precision=PRECISION) + b2
        tl.store(y_ptr + at * O + o, tl.where(element, y, 0.0), mask=there & (o < O))


@triton.jit(do_not_specialize=ANY)
def _backward(
    dy_ptr,
    x_ptr,
    w1_ptr,
    b1_ptr,
    w2_ptr,
    sizes_ptr,
    dx_ptr,
    dw1_ptr,
    db1_ptr,
    dw2_ptr,
    db2_ptr,
    sets,
    length,
    parts,
    C: tl.constexpr,
    H: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    BC: tl.constexpr,
    BH: tl.constexpr,
    BO: tl.constexpr,
    BR: tl.constexpr,
):
    """dx where it is wanted, and what the tiles of a program give to weights and biases."""
    g = tl.program_id(1).to(tl.int64)
    w1, b1 = load_matrix(w1_ptr + g * H * C, H, C, BH, BC), load_vector(b1_ptr + g * H, H, BH)
    w2 = load_matrix(w2_ptr + g * O * H, O, H, BO, BH)
    c = tl.arange(0, BC)[None, :]
    o = tl.arange(0, BO)[None, :]
    h = tl.arange(0, BH)[None, :]
    dw1 = tl.zeros((BH, BC), tl.float32)
    db1 = tl.zeros((1, BH), tl.float32)
    dw2 = tl.zeros((BO, BH), tl.float32)
    db2 = tl.zeros((1, BO), tl.float32)
    for tile in range(tl.program_id(0), sets * tl.cdiv(length, BR), parts):
        at, there, element, some = _tile(tile, g, sizes_ptr, sets, length, BR)
        dx = tl.zeros((BR, BC), tl.float32)
        if some:
            x = tl.load(x_ptr + at * C + c, mask=element & (c < C), other=0.0)
            dy = tl.load(dy_ptr + at * O + o, mask=element & (o < O), other=0.0)
            before = _hidden(x, w1, b1, H, BH)
            dhidden = tl.dot(dy, w2, input_precision=PRECISION)
            dhidden = tl.where(before <= 0, 0.0, dhidden)
            dw2 += tl.dot(tl.trans(dy), _relu(before), input_precision=PRECISION)
            dw1 += tl.dot(tl.trans(dhidden), x, input_precision=PRECISION)
            db2 += tl.sum(dy, axis=0)[None, :]
            db1 += tl.sum(dhidden, axis=0)[None, :]
            if dx_ptr is not None:
                dx = tl.dot(dhidden, w1, input_precision=PRECISION)
        if dx_ptr is not None:
            tl.store(dx_ptr + at * C + c, tl.where(element, dx, 0.0), mask=there & (c < C))
    part = g * parts + tl.program_id(0)
    r = tl.arange(0, BH)[:, None]
    tl.store(dw1_ptr + part * H * C + r * C + c, dw1, mask=(r < H) & (c < C))
    tl.store(db1_ptr + part * H + h, db1, mask=h < H)
    r = tl.arange(0, BO)[:, None]
    tl.store(dw2_ptr + part * O * H + r * H + h, dw2, mask=(r < O) & (h < H))
    tl.store(db2_ptr + part * O + o, db2, mask=o < O)


@triton.jit
def _add_up(in_ptr, out_ptr, g, i, parts, count: tl.constexpr):
    """The i-th of ``count`` numbers, over all parts of a replica."""
    inside = (i >= 0) & (i < count)
    total = tl.zeros(i.shape, tl.float32)
    for part in range(parts):
        total += tl.load(in_ptr + (g * parts + part) * count + i, mask=inside, other=0.0)
    tl.store(out_ptr + g * count + i, total, mask=inside)


@triton.jit(do_not_specialize=ANY)
def finish(
    dw1_ptr,
    db1_ptr,
    dw2_ptr,
    db2_ptr,
    out1_ptr,
    out2_ptr,
    out3_ptr,
    out4_ptr,
    parts,
    C: tl.constexpr,
    H: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    B: tl.constexpr,
):
    """The four sums over parts, side by side."""
    g = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * B + tl.arange(0, B)
    _add_up(dw1_ptr, out1_ptr, g, i, parts, H * C)
    _add_up(db1_ptr, out2_ptr, g, i - H * C, parts, H)
    _add_up(dw2_ptr, out3_ptr, g, i - (H * C + H), parts, O * H)
    _add_up(db2_ptr, out4_ptr, g, i - (H * C + H + O * H), parts, O)


# --------------------------------------------------------------------------------------------------
# The operators of ../perceptron.py


def perceptron(
    x: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    second_bias: Tensor,
    sizes: Tensor | None,
) -> Tensor:
    """Zeros in the rows that are not there."""
    y = x.new_empty(*x.shape[:-1], second.shape[1])
    if y.numel():
        grid = share_out(x, sizes, FORWARD, PROGRAMS)
        tensors = (x, first, first_bias, second, second_bias, sizes)
        with torch.cuda.device_of(x):
            _forward[grid.parts, replicas(len(x))](
                *(t if t is None else t.contiguous() for t in tensors),
                *(y, *grid[:3]),
                **_widths(first, second),
                **grid.tile,
            )
    return y


def pull(
    dy: Tensor,
    x: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    sizes: Tensor | None,
    wants_x: bool,
) -> tuple[Tensor, ...]:
    """The gradients to x (no rows where nobody wants it), and to weights and biases."""
    groups, (hidden, columns), out = len(x), first.shape[1:], second.shape[1]
    dx = x.new_empty(x.shape if wants_x else (groups, 0))
    shapes = [(hidden, columns), (hidden,), (out, hidden), (out,)]
    if not x.numel():
        return dx, *(x.new_zeros(groups, *shape) for shape in shapes)
    grid = share_out(x, sizes, BACKWARD, MOST)
    sums = [x.new_empty(groups, grid.parts, *shape) for shape in shapes]
    tensors = (dy, x, first, first_bias, second, sizes)
    with torch.cuda.device_of(x):
        _backward[grid.parts, replicas(groups)](
            *(t if t is None else t.contiguous() for t in tensors),
            *(dx if wants_x else None, *sums, *grid[:3]),
            **_widths(first, second),
            **grid.tile,
        )
        if grid.parts == 1:
            return dx, *(t.squeeze(1) for t in sums)
        totals = [x.new_empty(groups, *shape) for shape in shapes]
        numbers = hidden * (columns + 1) + out * (hidden + 1)
        finish[cdiv(numbers, NUMBERS), groups](
            *(*sums, *totals, grid.parts, columns, hidden, out, NUMBERS), num_warps=4
        )
    return dx, *totals


def _widths(first: Tensor, second: Tensor) -> dict[str, int]:
    columns, hidden, out = first.shape[2], first.shape[1], second.shape[1]
    padded = (max(NARROWEST, power_of_2(width)) for width in (columns, hidden, out))
    return dict(
        zip(("C", "H", "O", "BC", "BH", "BO"), (columns, hidden, out, *padded), strict=True)
    )
