"""A linear layer, a ReLU and batch normalisation on CUDA: as in row_norm.py, with the products of
matrices inside of its passes.

The first pass forwards multiplies, and leaves what each part of a replica knows of mean and
variance; the second normalises. Backwards the first pass is that of the norm, and the second makes
the gradient to W x + b in registers and multiplies on: to x, and to the weights, whose sums over
parts another small kernel adds up. Always in the same order: the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...functional.linear_norm import linear_norm_definition
from .counts import cdiv, power_of_2
from .perceptron import NARROWEST, add_up_parts, load_matrix, load_vector
from .row_norm import ANY, PARTS, Grid, add_up, load_numbers, normalise, place, share_out, sum_up

ROWS, WARPS = 64, 4  # of a tile backwards
PROGRAMS, MOST = 2048, 32  # programs that fill a device; of a replica, whose sums are added up
NUMBERS = 256  # that one program adds up
STAGES = 1  # tiles of which the loads are under way


def share_products(groups: int, length: int) -> Grid:
    """How the rows are shared out backwards, where each program has sums of its own to write."""
    tiles = cdiv(length, ROWS)
    turns = cdiv(tiles, min(MOST, max(1, PROGRAMS // groups)))
    parts = cdiv(tiles, turns)
    return Grid(groups * parts, parts, turns, ROWS, 0)


# --------------------------------------------------------------------------------------------------
# Kernels. Programs: parts, replicas


@triton.jit
def _clear(ptr, column, first, stop, end, WIDTH: tl.constexpr, BR: tl.constexpr):
    """Zeros in the rows of a part after the last tile that had any."""
    tiles = tl.cdiv(tl.maximum(stop - first, 0), BR)
    for r in range(first + tiles * BR, end, BR):
        row = r + tl.arange(0, BR)[:, None]
        inside = (row < end) & (column < WIDTH)
        zeros = tl.zeros(inside.shape, tl.float32)
        tl.store(ptr + row * WIDTH + column, zeros, mask=inside)


@triton.jit(do_not_specialize=ANY)
def _multiply(
    x_ptr,
    weight_ptr,
    bias_ptr,
    rows_ptr,
    linear_ptr,
    mean_ptr,
    square_ptr,
    length,
    parts,
    turns,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    BC: tl.constexpr,
    BO: tl.constexpr,
    BR: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """W x + b, zeros in the rows that are not there; of a part the mean after the ReLU, and the sum
    of squares around it: by tiles."""
    g, part, o, count, first, end, stop = place(rows_ptr, length, O, parts, turns, BR, BO)
    weight = load_matrix(weight_ptr + g * O * C, O, C, BO, BC)
    bias = load_vector(bias_ptr + g * O, O, BO)
    c = tl.arange(0, BC)[None, :]
    x_ptr += g * length * C
    linear_ptr += g * length * O
    mean = tl.zeros((1, BO), tl.float32)
    square = tl.zeros((1, BO), tl.float32)
    for r in tl.range(first, stop, BR, num_stages=STAGES):
        row = r + tl.arange(0, BR)[:, None]
        inside = row < count
        x = tl.load(x_ptr + row * C + c, mask=inside & (c < C), other=0.0)
        y = tl.dot(x, tl.trans(weight), input_precision=PRECISION) + bias
        y = tl.where(inside & (o < O), y, 0.0)
        value = tl.where(y < 0, 0.0, y)  # NaN stays
        n = tl.minimum(count - r, BR).to(tl.float32)
        seen = (r - first).to(tl.float32)
        own = tl.sum(value, axis=0)[None, :] / n
        away = tl.where(inside, value - own, 0.0)
        step = own - mean
        mean += step * (n / (seen + n))
        square += tl.sum(away * away, axis=0)[None, :] + step * step * (seen * n / (seen + n))
        tl.store(linear_ptr + row * O + o, y, mask=(row < end) & (o < O))
    _clear(linear_ptr, o, first, stop, end, O, BR)
    at = (g * parts + part) * O + o
    tl.store(mean_ptr + at, mean, mask=o < O)
    tl.store(square_ptr + at, square, mask=o < O)


@triton.jit(do_not_specialize=[*ANY, "known"])
def _pull(
    dy_ptr,
    linear_ptr,
    x_ptr,
    rows_ptr,
    weight_ptr,
    scale_ptr,
    mean_ptr,
    var_ptr,
    sum_ptr,
    product_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    dscale_ptr,
    dshift_ptr,
    eps,
    known,
    length,
    parts,
    turns,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    BC: tl.constexpr,
    BO: tl.constexpr,
    BP: tl.constexpr,
    BR: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """dx where it is wanted, and what a part gives to weight and bias. The first part writes the
    gradients of the norm, from the sums of ``known`` parts of the pass before."""
    g, part, o, count, first, end, stop = place(rows_ptr, length, O, parts, turns, BR, BO)
    there = o < O
    own = g * O + o
    dshift = add_up(sum_ptr + g * known * O, o, O, known, BP, BO)
    dscale = add_up(product_ptr + g * known * O, o, O, known, BP, BO)
    if part == 0:
        tl.store(dshift_ptr + own, dshift, mask=there)
        tl.store(dscale_ptr + own, dscale, mask=there)
    inverse = 1.0 / tl.maximum(count, 1).to(tl.float32)
    mean = tl.load(mean_ptr + own, mask=there, other=0.0)
    root = tl.rsqrt(tl.load(var_ptr + own, mask=there, other=0.0) + eps)
    scale = tl.load(scale_ptr + own, mask=there, other=0.0) * root
    flat = dshift * inverse
    slope = dscale * inverse * root
    weight = load_matrix(weight_ptr + g * O * C, O, C, BO, BC)
    c = tl.arange(0, BC)[None, :]
    x_ptr += g * length * C
    dy_ptr += g * length * O
    linear_ptr += g * length * O
    dweight = tl.zeros((BO, BC), tl.float32)
    dbias = tl.zeros((1, BO), tl.float32)
    for r in tl.range(first, stop, BR, num_stages=STAGES):
        row = r + tl.arange(0, BR)[:, None]
        inside = (row < count) & there
        value = load_numbers(linear_ptr, row * O + o, inside, True)
        dlinear = scale * (load_numbers(dy_ptr, row * O + o, inside, False) - flat)
        dlinear -= scale * (value - mean) * slope
        dlinear = tl.where(inside & (value != 0), dlinear, 0.0)
        x = tl.load(x_ptr + row * C + c, mask=(row < count) & (c < C), other=0.0)
        dweight += tl.dot(tl.trans(dlinear), x, input_precision=PRECISION)
        dbias += tl.sum(dlinear, axis=0)[None, :]
        if dx_ptr is not None:
            dx = tl.dot(dlinear, weight, input_precision=PRECISION)
            tl.store(dx_ptr + (g * length + row) * C + c, dx, mask=(row < end) & (c < C))
    if dx_ptr is not None:
        _clear(dx_ptr + g * length * C, c, first, stop, end, C, BR)
    at = g * parts + part
    r = tl.arange(0, BO)[:, None]
    tl.store(dweight_ptr + at * O * C + r * C + c, dweight, mask=(r < O) & (c < C))
    tl.store(dbias_ptr + at * O + o, dbias, mask=there)


@triton.jit(do_not_specialize=ANY)
def _finish(
    dweight_ptr,
    dbias_ptr,
    weight_out_ptr,
    bias_out_ptr,
    parts,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    B: tl.constexpr,
):
    """Both sums over parts."""
    g = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * B + tl.arange(0, B)
    add_up_parts(dweight_ptr, weight_out_ptr, g, i, parts, O * C)
    add_up_parts(dbias_ptr, bias_out_ptr, g, i - O * C, parts, O)


# --------------------------------------------------------------------------------------------------
# The operators of ../linear_norm.py


def linear_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    rows: Tensor,
    scale: Tensor,
    shift: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    eps: float,
    momentum: float,
) -> tuple[Tensor, ...]:
    """y, W x + b, its mean and variance, and the new running numbers."""
    given = (x, weight, bias, rows, scale, shift, running_mean, running_var)
    x, weight, bias, rows, *numbers = (t.contiguous() for t in given)
    if not x.numel():
        return linear_norm_definition(x, weight, bias, rows, *numbers, eps, momentum)
    groups, length, dim = *x.shape[:2], weight.shape[1]
    grid = share_out(groups, length, dim)
    known = [x.new_empty(groups, grid.parts, dim) for _ in range(2)]
    y, linear = (x.new_empty(groups, length, dim) for _ in range(2))
    mean, var, new_mean, new_var = (x.new_empty(groups, dim) for _ in range(4))
    with torch.cuda.device_of(x):
        _multiply[(grid.programs,)](
            *(x, weight, bias, rows, linear, *known, length, grid.parts, grid.turns),
            **_widths(weight),
            BR=grid.rows,
            STAGES=STAGES,
            PRECISION=_precision(),
            num_warps=grid.tile["num_warps"],
        )
        normalise[(grid.programs,)](
            *(linear, rows, *known, *numbers, y, mean, var, new_mean, new_var, eps, momentum),
            *(length, dim, grid.parts, grid.turns, True, False, PARTS),
            **grid.tile,
        )
    return y, linear, mean, var, new_mean, new_var


def pull(
    dy: Tensor,
    linear: Tensor,
    x: Tensor,
    rows: Tensor,
    weight: Tensor,
    scale: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
    wants_x: bool,
) -> tuple[Tensor, ...]:
    """The gradients to x (no rows where nobody wants it), weight, bias, scale and shift."""
    given = (dy, linear, x, rows, weight, scale, mean, var)
    dy, linear, x, rows, weight, scale, mean, var = (t.contiguous() for t in given)
    (groups, length, columns), dim = x.shape, weight.shape[1]
    dx = x.new_empty(x.shape if wants_x else (groups, 0))
    if not x.numel():
        return dx, torch.zeros_like(weight), *(torch.zeros_like(scale) for _ in range(3))
    sums, grid = share_out(groups, length, dim), share_products(groups, length)
    known = [x.new_empty(groups, sums.parts, dim) for _ in range(2)]
    parts = [x.new_empty(groups, grid.parts, *shape) for shape in ((dim, columns), (dim,))]
    dweight, dbias, dscale, dshift = (torch.empty_like(t) for t in (weight, *[scale] * 3))
    with torch.cuda.device_of(x):
        sum_up[(sums.programs,)](
            *(dy, linear, rows, mean, var, *known, eps, length, dim, sums.parts, sums.turns, True),
            **sums.tile,
        )
        _pull[(grid.programs,)](
            *(dy, linear, x, rows, weight, scale, mean, var, *known, dx if wants_x else None),
            *(*parts, dscale, dshift, eps, sums.parts, length, grid.parts, grid.turns),
            **_widths(weight),
            BP=PARTS,
            BR=grid.rows,
            STAGES=STAGES,
            PRECISION=_precision(),
            num_warps=WARPS,
        )
        _finish[cdiv(dim * (columns + 1), NUMBERS), groups](
            *(*parts, dweight, dbias, grid.parts, columns, dim, NUMBERS), num_warps=4
        )
    return dx, dweight, dbias, dscale, dshift


def _widths(weight: Tensor) -> dict[str, int]:
    dim, columns = weight.shape[1:]
    padded = (max(NARROWEST, power_of_2(width)) for width in (columns, dim))
    return dict(zip(("C", "O", "BC", "BO"), (columns, dim, *padded), strict=True))


def _precision() -> str:
    """TF32 where torch's own products may have it; else three parts that keep float32."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
