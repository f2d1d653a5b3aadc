"""Batch normalisation on CUDA: two passes over x, and two over x and dy for the gradient.

The rows of a replica are shared out among programs, its parts, which take turns. The first pass
leaves what each part knows; in the second every part puts that of all together for itself, so that
no program waits for another and no third kernel is needed. Always in the same order, and no
atomics: the same bits.

Each place of a tile keeps a mean, and a sum of squares around it, of its own rows (Welford, 1962).
What places and parts know is put together as by Chan, Golub and LeVeque (1979): nothing cancels,
however far from zero, or from one another, the numbers lie.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...functional.row_norm import row_norm_definition
from .counts import cdiv, power_of_2

TILE = 4096  # numbers that a program has in registers at once
FEATURES = 64  # of a program, at most
WARPS = 8
PROGRAMS, MOST = 1024, 128  # programs that fill a device; parts of a replica
PARTS = 32  # that are read at once
ANY = ["length", "parts"]  # integers that a kernel must not be compiled for


class Grid(NamedTuple):
    """How the rows of a replica are shared out."""

    programs: int
    parts: int
    rows: int  # of a tile
    features: int

    @property
    def tile(self) -> dict[str, int]:
        return {"BR": self.rows, "BD": self.features, "num_warps": WARPS}


def share_out(groups: int, length: int, dim: int) -> Grid:
    features = min(FEATURES, power_of_2(dim))
    rows, blocks = TILE // features, cdiv(dim, features)
    parts = min(cdiv(length, rows), MOST, cdiv(PROGRAMS, groups * blocks))
    return Grid(groups * parts * blocks, parts, rows, features)


# --------------------------------------------------------------------------------------------------
# Inside of a program


@triton.jit
def place(rows_ptr, length, dim, parts, BR: tl.constexpr, BD: tl.constexpr):
    """Replica, part and features; the rows that are there; the first row of the part, and how far
    it is from tile to tile: parts take turns, so that all have as many."""
    blocks = tl.cdiv(dim, BD)
    program = tl.program_id(0)
    d = (program % blocks) * BD + tl.arange(0, BD)[None, :]
    part = program // blocks % parts
    g = (program // blocks // parts).to(tl.int64)
    count = tl.minimum(tl.maximum(tl.load(rows_ptr + g), 0), length).to(tl.int32)
    return g, part, d, count, part * BR, parts * BR


@triton.jit
def load_numbers(ptr, at, inside, RELU: tl.constexpr):
    x = tl.load(ptr + at, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        x = tl.where(x < 0, 0.0, x)  # NaN stays
    return x


@triton.jit
def load_row(x_ptr, row, d, dim, count, RELU: tl.constexpr):
    return load_numbers(x_ptr + tl.cast(row, tl.int64) * dim, d, (d < dim) & (row < count), RELU)


@triton.jit
def sizes_of(p, parts, count, rows):
    """How many rows the parts p have, by tiles of so many rows."""
    tiles = tl.cdiv(count, rows)
    own = (tiles - p + parts - 1) // parts * rows
    short = tl.where(p == (tiles - 1) % parts, tiles * rows - count, 0)
    return tl.where((p < parts) & (p < tiles), own - short, 0)


@triton.jit
def take_in(mean, square, x, inside, turn):
    """Mean, and sum of squares around it, of the rows that came to each place of a tile."""
    away = tl.where(inside, x - mean, 0.0)
    mean += away * (1.0 / (turn + 1))
    return mean, square + away * (x - mean)  # away is 0 outside, and x finite


@triton.jit
def put_rows_together(mean, square, first, count, step, BR: tl.constexpr):
    """Those of a part, from those of the rows of its tiles."""
    n = (tl.maximum(count - first - tl.arange(0, BR)[:, None], 0) + step - 1) // step
    n = n.to(tl.float32)
    middle = tl.sum(n * mean, axis=0)[None, :] / tl.maximum(tl.sum(n, axis=0)[None, :], 1.0)
    away = mean - middle
    return middle, tl.sum(square + n * away * away, axis=0)[None, :]


@triton.jit
def put_together(
    mean_ptr, square_ptr, count, d, dim, parts, rows, BP: tl.constexpr, BD: tl.constexpr
):
    """Mean and variance of all parts of a replica, from their means and sums of squares."""
    inverse = 1.0 / tl.maximum(count, 1).to(tl.float32)
    total = tl.zeros((BP, BD), tl.float32)
    for first in range(0, parts, BP):
        p = first + tl.arange(0, BP)[:, None]
        n = sizes_of(p, parts, count, rows)
        mean = tl.load(mean_ptr + p * dim + d, mask=(n > 0) & (d < dim), other=0.0)
        total += n.to(tl.float32) * mean
    middle = tl.sum(total, axis=0)[None, :] * inverse
    total = tl.zeros((BP, BD), tl.float32)
    for first in range(0, parts, BP):
        p = first + tl.arange(0, BP)[:, None]
        n = sizes_of(p, parts, count, rows)
        inside = (n > 0) & (d < dim)
        away = tl.load(mean_ptr + p * dim + d, mask=inside, other=0.0) - middle
        square = tl.load(square_ptr + p * dim + d, mask=inside, other=0.0)
        total += square + n.to(tl.float32) * away * away
    return middle, tl.sum(total, axis=0)[None, :] * inverse


@triton.jit
def add_up(part_ptr, d, dim, parts, BP: tl.constexpr, BD: tl.constexpr):
    total = tl.zeros((BP, BD), tl.float32)
    for first in range(0, parts, BP):
        p = first + tl.arange(0, BP)[:, None]
        total += tl.load(part_ptr + p * dim + d, mask=(p < parts) & (d < dim), other=0.0)
    return tl.sum(total, axis=0)[None, :]


@triton.jit
def keep_numbers(
    mean_ptr,
    var_ptr,
    old_mean_ptr,
    old_var_ptr,
    new_mean_ptr,
    new_var_ptr,
    mean,
    var,
    count,
    momentum,
    own,
    inside,
):
    """Write mean and variance of a replica, and the running numbers that come of them."""
    tl.store(mean_ptr + own, mean, mask=inside)
    tl.store(var_ptr + own, var, mask=inside)
    step = tl.where(count > 0, momentum, 0.0)
    unbiased = var * (count.to(tl.float32) / tl.maximum(count - 1, 1).to(tl.float32))
    old = tl.load(old_mean_ptr + own, mask=inside, other=0.0)
    tl.store(new_mean_ptr + own, old + step * (mean - old), mask=inside)
    old = tl.load(old_var_ptr + own, mask=inside, other=0.0)
    tl.store(new_var_ptr + own, old + step * (unbiased - old), mask=inside)


# --------------------------------------------------------------------------------------------------
# Kernels. Programs: features, parts, replicas


@triton.jit(do_not_specialize=ANY)
def _moments(
    x_ptr,
    rows_ptr,
    mean_ptr,
    square_ptr,
    length,
    dim,
    parts,
    RELU: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """Mean of a part, from the first row of all on, and the sum of squares around it."""
    g, part, d, count, first, step = place(rows_ptr, length, dim, parts, BR, BD)
    x_ptr += g * length * dim
    origin = load_row(x_ptr, 0, d, dim, count, RELU)
    mean = tl.zeros((BR, BD), tl.float32)
    square = tl.zeros((BR, BD), tl.float32)
    for r in range(first, count, step):
        row = r + tl.arange(0, BR)[:, None]
        inside = (row < count) & (d < dim)
        x = load_numbers(x_ptr, row.to(tl.int64) * dim + d, inside, RELU)
        mean, square = take_in(mean, square, x - origin, inside, r // step)
    mean, square = put_rows_together(mean, square, first, count, step, BR)
    at = (g * parts + part) * dim + d
    tl.store(mean_ptr + at, mean, mask=d < dim)
    tl.store(square_ptr + at, square, mask=d < dim)


@triton.jit(do_not_specialize=ANY)
def normalise(
    x_ptr,
    rows_ptr,
    part_mean_ptr,
    part_square_ptr,
    weight_ptr,
    bias_ptr,
    old_mean_ptr,
    old_var_ptr,
    y_ptr,
    mean_ptr,
    var_ptr,
    new_mean_ptr,
    new_var_ptr,
    eps,
    momentum,
    length,
    dim,
    parts,
    RELU: tl.constexpr,
    FROM_FIRST: tl.constexpr,
    BP: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """y, zeros in the rows that are not there. The first part writes what a replica has one of.

    The means of parts are counted from the first row, or from zero.
    """
    g, part, d, count, first, step = place(rows_ptr, length, dim, parts, BR, BD)
    known = g * parts * dim
    mean, var = put_together(
        part_mean_ptr + known, part_square_ptr + known, count, d, dim, parts, BR, BP, BD
    )
    own = g * dim + d
    x_ptr += g * length * dim
    y_ptr += g * length * dim
    origin = tl.zeros((1, BD), tl.float32)
    if FROM_FIRST:
        origin = load_row(x_ptr, 0, d, dim, count, RELU)
    if part == 0:
        keep_numbers(
            *(mean_ptr, var_ptr, old_mean_ptr, old_var_ptr, new_mean_ptr, new_var_ptr),
            *(origin + mean, var, count, momentum, own, d < dim),
        )
    weight = tl.load(weight_ptr + own, mask=d < dim, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + own, mask=d < dim, other=0.0).to(tl.float32)
    scale = weight * tl.rsqrt(var + eps)
    for r in range(first, length, step):
        row = r + tl.arange(0, BR)[:, None]
        inside = (row < count) & (d < dim)
        at = row.to(tl.int64) * dim + d
        y = (load_numbers(x_ptr, at, inside, RELU) - origin - mean) * scale + bias
        y = tl.where(inside, y, 0.0).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + at, y, mask=(row < length) & (d < dim))


@triton.jit(do_not_specialize=ANY)
def sum_up(
    dy_ptr,
    x_ptr,
    rows_ptr,
    mean_ptr,
    var_ptr,
    sum_ptr,
    product_ptr,
    eps,
    length,
    dim,
    parts,
    RELU: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """Of dy, and of dy times the normalised x, over a part: the gradients to bias and weight."""
    g, part, d, count, first, step = place(rows_ptr, length, dim, parts, BR, BD)
    own = g * dim + d
    mean = tl.load(mean_ptr + own, mask=d < dim, other=0.0)
    root = tl.rsqrt(tl.load(var_ptr + own, mask=d < dim, other=0.0) + eps)
    x_ptr += g * length * dim
    dy_ptr += g * length * dim
    total = tl.zeros((BR, BD), tl.float32)
    product = tl.zeros((BR, BD), tl.float32)
    for r in range(first, count, step):
        row = r + tl.arange(0, BR)[:, None]
        inside = (row < count) & (d < dim)
        at = row.to(tl.int64) * dim + d
        dy = load_numbers(dy_ptr, at, inside, False)
        total += dy
        product += dy * (load_numbers(x_ptr, at, inside, RELU) - mean)
    at = (g * parts + part) * dim + d
    tl.store(sum_ptr + at, tl.sum(total, axis=0)[None, :], mask=d < dim)
    tl.store(product_ptr + at, tl.sum(product, axis=0)[None, :] * root, mask=d < dim)


@triton.jit(do_not_specialize=ANY)
def _pull(
    dy_ptr,
    x_ptr,
    rows_ptr,
    weight_ptr,
    mean_ptr,
    var_ptr,
    sum_ptr,
    product_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    eps,
    length,
    dim,
    parts,
    RELU: tl.constexpr,
    BP: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """dx, zeros in the rows that are not there. The first part writes the gradients of others."""
    g, part, d, count, first, step = place(rows_ptr, length, dim, parts, BR, BD)
    known = g * parts * dim
    dbias = add_up(sum_ptr + known, d, dim, parts, BP, BD)
    dweight = add_up(product_ptr + known, d, dim, parts, BP, BD)
    own = g * dim + d
    if part == 0:
        tl.store(dbias_ptr + own, dbias.to(dbias_ptr.dtype.element_ty), mask=d < dim)
        tl.store(dweight_ptr + own, dweight.to(dweight_ptr.dtype.element_ty), mask=d < dim)
    inverse = 1.0 / tl.maximum(count, 1).to(tl.float32)
    mean = tl.load(mean_ptr + own, mask=d < dim, other=0.0)
    root = tl.rsqrt(tl.load(var_ptr + own, mask=d < dim, other=0.0) + eps)
    scale = tl.load(weight_ptr + own, mask=d < dim, other=0.0).to(tl.float32) * root
    flat = dbias * inverse
    slope = dweight * inverse * root
    x_ptr += g * length * dim
    dy_ptr += g * length * dim
    dx_ptr += g * length * dim
    for r in range(first, length, step):
        row = r + tl.arange(0, BR)[:, None]
        inside = (row < count) & (d < dim)
        at = row.to(tl.int64) * dim + d
        x = load_numbers(x_ptr, at, inside, RELU)
        dx = scale * (load_numbers(dy_ptr, at, inside, False) - flat - (x - mean) * slope)
        if RELU:
            inside &= x != 0
        dx = tl.where(inside, dx, 0.0).to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + at, dx, mask=(row < length) & (d < dim))


# --------------------------------------------------------------------------------------------------
# The operators of ../row_norm.py


def row_norm(
    x: Tensor,
    rows: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
    momentum: float,
    relu: bool,
) -> tuple[Tensor, ...]:
    """y, mean and variance, and the new running numbers."""
    numbers = [t.contiguous() for t in (weight, bias, running_mean, running_var)]
    if not x.numel():
        return row_norm_definition(x, rows, *numbers, eps, momentum, relu)
    x, rows = x.contiguous(), rows.contiguous()
    groups, length, dim = x.shape
    grid = share_out(groups, length, dim)
    known = [x.new_empty(groups, grid.parts, dim, dtype=torch.float32) for _ in range(2)]
    mean, var = (x.new_empty(groups, dim, dtype=torch.float32) for _ in range(2))
    y, new_mean, new_var = (torch.empty_like(t) for t in (x, *numbers[2:]))
    shared = (length, dim, grid.parts, relu)
    with torch.cuda.device_of(x):
        _moments[(grid.programs,)](x, rows, *known, *shared, **grid.tile)
        normalise[(grid.programs,)](
            *(x, rows, *known, *numbers, y, mean, var, new_mean, new_var),
            *(eps, momentum, *shared, True, PARTS),
            **grid.tile,
        )
    return y, mean, var, new_mean, new_var


def pull(
    dy: Tensor,
    x: Tensor,
    rows: Tensor,
    weight: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    relu: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients to x, weight and bias."""
    if not x.numel():
        return torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
    dy, x, rows, weight, mean, var = (t.contiguous() for t in (dy, x, rows, weight, mean, var))
    groups, length, dim = x.shape
    grid = share_out(groups, length, dim)
    known = [x.new_empty(groups, grid.parts, dim, dtype=torch.float32) for _ in range(2)]
    dx, dweight, dbias = (torch.empty_like(t) for t in (x, weight, weight))
    shared = (length, dim, grid.parts, relu)
    with torch.cuda.device_of(x):
        sum_up[(grid.programs,)](dy, x, rows, mean, var, *known, eps, *shared, **grid.tile)
        _pull[(grid.programs,)](
            *(dy, x, rows, weight, mean, var, *known, dx, dweight, dbias, eps, *shared, PARTS),
            **grid.tile,
        )
    return dx, dweight, dbias
