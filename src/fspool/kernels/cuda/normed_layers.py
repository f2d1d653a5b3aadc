"""Two linear layers, each with a ReLU and a norm behind it, on CUDA: as in row_norm.py, with the
products of matrices inside of its passes.

Forwards a first pass multiplies, and leaves what each part of a replica knows of mean and variance.
The second normalises that as it reads it, multiplies again and leaves the same of its own; the
third normalises. Backwards it goes the other way round. The pass of a layer makes the gradient to
W x + b in registers, multiplies on to the input, and adds up two things of a part: that gradient,
and its product with the normalised input. Of those is made all that the weights, and the norm
before them, get. The sums over parts are another small kernel. Always in the same order, and no
atomics: the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...functional.normed_layers import Layer, normed_layers_definition
from .counts import cdiv, power_of_2, replicas
from .perceptron import NARROWEST, NUMBERS, finish, load_matrix, load_vector
from .row_norm import (
    ANY,
    PARTS,
    Grid,
    add_up,
    keep_numbers,
    load_numbers,
    normalise,
    place,
    put_rows_together,
    put_together,
    share_out,
    sum_up,
    take_in,
)

TILES = {16: (64, 4), 32: (32, 4), 64: (32, 8)}  # rows and warps backwards, by the widest side
REGISTERS = 128  # of a thread, fewer than the compiler would take: more programs run at once
PROGRAMS, MOST = 800, 32  # programs that fill a device; of a replica, whose sums are added up
STAGES = 1  # tiles of which the loads are under way


def share_products(groups: int, length: int, rows: int) -> Grid:
    """How the rows are shared out backwards, where each program has sums of its own to write."""
    parts = min(cdiv(length, rows), MOST, cdiv(PROGRAMS, groups))
    return Grid(groups * parts, parts, rows, 0)


# --------------------------------------------------------------------------------------------------
# Inside of a program


@triton.jit
def _clear(ptr, column, start, first, count, length, step, WIDTH: tl.constexpr, BR: tl.constexpr):
    """Zeros in the rows of a part after the last tile that had any. ``start``, of 64 bits, is how
    many rows other replicas have before."""
    i = tl.arange(0, BR)[:, None]
    turns = tl.cdiv(tl.maximum(count - first, 0), step)
    for r in range(first + turns * step, length, step):
        inside = (r + i < length) & (column < WIDTH)
        zeros = tl.zeros(inside.shape, tl.float32)
        tl.store(ptr + (start + r) * WIDTH + (i * WIDTH + column), zeros, mask=inside)


@triton.jit
def _root(var_ptr, at, inside, eps):
    return tl.rsqrt(tl.load(var_ptr + at, mask=inside, other=0.0) + eps)


# --------------------------------------------------------------------------------------------------
# Kernels. Programs: parts, replicas


@triton.jit(do_not_specialize=[*ANY, "known", "size"])
def _multiply(
    x_ptr,
    weight_ptr,
    bias_ptr,
    rows_ptr,
    linear_ptr,
    mean_ptr,
    square_ptr,
    known_mean_ptr,
    known_square_ptr,
    scale_ptr,
    shift_ptr,
    old_mean_ptr,
    old_var_ptr,
    out_mean_ptr,
    out_var_ptr,
    new_mean_ptr,
    new_var_ptr,
    eps,
    momentum,
    known,
    size,
    length,
    parts,
    NORMED: tl.constexpr,
    C: tl.constexpr,
    O: tl.constexpr,  # noqa: E741
    BC: tl.constexpr,
    BO: tl.constexpr,
    BP: tl.constexpr,
    BR: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """W x + b, zeros in the rows that are not there; of a part the mean after the ReLU, and the sum
    of squares around it. Or x is what came out of the layer before, and is normalised first: by
    mean and variance of ``known`` parts by tiles of ``size`` rows, which the first part writes."""
    g, part, o, count, first, step = place(rows_ptr, length, O, parts, BR, BO)
    weight = load_matrix(weight_ptr + g * O * C, O, C, BO, BC)
    bias = load_vector(bias_ptr + g * O, O, BO)
    c = tl.arange(0, BC)[None, :]
    if NORMED:
        own = g * C + c
        at = g * known * C
        middle, var = put_together(
            known_mean_ptr + at, known_square_ptr + at, count, c, C, known, size, BP, BC
        )
        if part == 0:
            keep_numbers(
                *(out_mean_ptr, out_var_ptr, old_mean_ptr, old_var_ptr, new_mean_ptr, new_var_ptr),
                *(middle, var, count, momentum, own, c < C),
            )
        scale = tl.load(scale_ptr + own, mask=c < C, other=0.0) * tl.rsqrt(var + eps)
        shift = tl.load(shift_ptr + own, mask=c < C, other=0.0)
    i = tl.arange(0, BR)[:, None]
    start = g * length
    x_ptr += start * C
    mean = tl.zeros((BR, BO), tl.float32)
    square = tl.zeros((BR, BO), tl.float32)
    for r in tl.range(first, count, step, num_stages=STAGES):
        row, tile = r + i, tl.cast(r, tl.int64)  # 64 bits for where a tile is
        inside = row < count
        there = inside & (c < C)
        x = load_numbers(x_ptr + tile * C, i * C + c, there, NORMED)
        if NORMED:
            x = tl.where(there, (x - middle) * scale + shift, 0.0)
        y = tl.dot(x, tl.trans(weight), input_precision=PRECISION) + bias
        y = tl.where(inside & (o < O), y, 0.0)
        value = tl.where(y < 0, 0.0, y)  # NaN stays
        mean, square = take_in(mean, square, value, inside, r // step)
        tl.store(linear_ptr + (start + tile) * O + (i * O + o), y, mask=(row < length) & (o < O))
    _clear(linear_ptr, o, start, first, count, length, step, O, BR)
    mean, square = put_rows_together(mean, square, first, count, step, BR)
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
    before_scale_ptr,
    before_shift_ptr,
    before_mean_ptr,
    before_var_ptr,
    before_sum_ptr,
    before_product_ptr,
    dx_ptr,
    dweight_ptr,
    dbias_ptr,
    dscale_ptr,
    dshift_ptr,
    eps,
    known,
    length,
    parts,
    NORMED: tl.constexpr,
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
    gradients of the norm, from the sums of ``known`` parts of the pass before. Where x is what came
    out of the layer before, dx is that to its norm, and a part adds up what that is to know."""
    g, part, o, count, first, step = place(rows_ptr, length, O, parts, BR, BO)
    there = o < O
    own = g * O + o
    dshift = add_up(sum_ptr + g * known * O, o, O, known, BP, BO)
    dscale = add_up(product_ptr + g * known * O, o, O, known, BP, BO)
    if part == 0:
        tl.store(dshift_ptr + own, dshift, mask=there)
        tl.store(dscale_ptr + own, dscale, mask=there)
    inverse = 1.0 / tl.maximum(count, 1).to(tl.float32)
    mean = tl.load(mean_ptr + own, mask=there, other=0.0)
    root = _root(var_ptr, own, there, eps)
    scale = tl.load(scale_ptr + own, mask=there, other=0.0) * root
    flat = dshift * inverse
    slope = dscale * inverse * root
    weight = load_matrix(weight_ptr + g * O * C, O, C, BO, BC)
    c = tl.arange(0, BC)[None, :]
    if NORMED:
        before = g * C + c
        before_mean = tl.load(before_mean_ptr + before, mask=c < C, other=0.0)
        before_root = _root(before_var_ptr, before, c < C, eps)
    i = tl.arange(0, BR)[:, None]
    start = g * length
    product = tl.zeros((BO, BC), tl.float32)
    total = tl.zeros((BR, BO), tl.float32)
    for r in tl.range(first, count, step, num_stages=STAGES):
        row, tile = r + i, start + r
        inside = (row < count) & there
        value = load_numbers(linear_ptr + tile * O, i * O + o, inside, True)
        dlinear = scale * (load_numbers(dy_ptr + tile * O, i * O + o, inside, False) - flat)
        dlinear -= scale * (value - mean) * slope
        dlinear = tl.where(inside & (value != 0), dlinear, 0.0)
        x = load_numbers(x_ptr + tile * C, i * C + c, (row < count) & (c < C), NORMED)
        if NORMED:
            x = (x - before_mean) * before_root  # where a row is not there, its dlinear is 0
        if dx_ptr is not None:
            dx = tl.dot(dlinear, weight, input_precision=PRECISION)
            tl.store(dx_ptr + tile * C + (i * C + c), dx, mask=(row < length) & (c < C))
        product += tl.dot(tl.trans(dlinear), x, input_precision=PRECISION)
        total += dlinear
    if dx_ptr is not None:
        _clear(dx_ptr, c, start, first, count, length, step, C, BR)
    dbias = tl.sum(total, axis=0)[None, :]
    dweight = product
    at = g * parts + part
    if NORMED:
        each = tl.trans(dbias + tl.zeros((BC, BO), tl.float32))
        before_scale = tl.load(before_scale_ptr + before, mask=c < C, other=0.0)
        before_shift = tl.load(before_shift_ptr + before, mask=c < C, other=0.0)
        dweight = product * before_scale + each * before_shift
        sums = tl.sum(weight * each, axis=0)[None, :]
        products = tl.sum(weight * product, axis=0)[None, :]
        tl.store(before_sum_ptr + at * C + c, sums, mask=c < C)
        tl.store(before_product_ptr + at * C + c, products, mask=c < C)
    k = tl.arange(0, BO)[:, None]
    tl.store(dweight_ptr + at * O * C + k * C + c, dweight, mask=(k < O) & (c < C))
    tl.store(dbias_ptr + at * O + o, dbias, mask=there)


# --------------------------------------------------------------------------------------------------
# The operators of ../normed_layers.py


def normed_layers(x: Tensor, rows: Tensor, *rest) -> tuple[Tensor, ...]:
    """y, what comes out of both layers, means and variances, and the new running numbers."""
    *tensors, eps, momentum = rest
    x, rows, *tensors = (t.contiguous() for t in (x, rows, *tensors))
    first, second = Layer(*tensors[:6]), Layer(*tensors[6:])
    if not x.numel():
        return normed_layers_definition(x, rows, *tensors, eps, momentum)
    groups, length = x.shape[:2]
    widths = [len(layer.bias[0]) for layer in (first, second)]
    linear = [x.new_empty(groups, length, width) for width in widths]
    # As if no layer were narrower than its tile, whose rows get too many for shared memory else.
    grids = [share_out(groups, length, max(NARROWEST, width)) for width in widths]
    parts = [
        [x.new_empty(groups, grid.parts, width) for _ in range(2)]
        for grid, width in zip(grids, widths, strict=True)
    ]
    known, running = ([x.new_empty(groups, w) for w in widths for _ in range(2)] for _ in range(2))
    y = torch.empty_like(linear[1])
    nothing = (None,) * 10
    between = *parts[0], *first[2:], *known[:2], *running[:2]
    steps = zip((x, linear[0]), (first, second), linear, parts, grids, strict=True)
    with torch.cuda.device_of(x):
        for given, layer, out, own, grid in steps:
            normed = layer is second
            _multiply[(grid.programs,)](
                *(given, layer.weight, layer.bias, rows, out, *own),
                *(between if normed else nothing),
                *(eps, momentum, grids[0].parts, grids[0].rows, length, grid.parts, normed),
                **_widths(layer.weight),
                **{"BP": PARTS, "BR": grid.rows, "STAGES": STAGES, "PRECISION": _precision()},
                num_warps=grid.tile["num_warps"],
                maxnreg=REGISTERS,
            )
        normalise[(grid.programs,)](
            *(linear[1], rows, *parts[1], *second[2:], y, *known[2:], *running[2:], eps, momentum),
            *(length, widths[1], grid.parts, True, False, PARTS),
            **grid.tile,
        )
    return y, *linear, *known, *running


def pull(
    dy: Tensor,
    x: Tensor,
    rows: Tensor,
    linear_1: Tensor,
    linear_2: Tensor,
    weight_1: Tensor,
    weight_2: Tensor,
    scale_1: Tensor,
    shift_1: Tensor,
    scale_2: Tensor,
    mean_1: Tensor,
    var_1: Tensor,
    mean_2: Tensor,
    var_2: Tensor,
    eps: float,
    wants_x: bool,
) -> tuple[Tensor, ...]:
    """The gradients to x (no rows where nobody wants it), and to weight, bias, scale and shift of
    both layers."""
    (groups, length, columns), hidden, out = x.shape, weight_1.shape[1], weight_2.shape[1]
    dx = x.new_empty(x.shape if wants_x else (groups, 0))
    shapes = [(hidden, columns), (hidden,), (out, hidden), (out,)]
    new = x.new_empty if x.numel() else x.new_zeros
    dweight_1, dbias_1, dweight_2, dbias_2 = totals = [new(groups, *shape) for shape in shapes]
    norms = [new(groups, width) for width in (hidden, hidden, out, out)]
    found = dweight_1, dbias_1, *norms[:2], dweight_2, dbias_2, *norms[2:]
    if not x.numel():
        return dx, *found
    tensors = dy, x, rows, linear_1, linear_2, weight_1, weight_2, scale_1, shift_1, scale_2
    dy, x, rows, *given = (t.contiguous() for t in (*tensors, mean_1, var_1, mean_2, var_2))
    linear_1, linear_2, weight_1, weight_2, scale_1, shift_1, scale_2, *known = given
    form, warps = next(t for width, t in TILES.items() if max(columns, hidden, out) <= width)
    sums, grid = share_out(groups, length, out), share_products(groups, length, form)
    of_dy = [x.new_empty(groups, sums.parts, out) for _ in range(2)]
    of_dz = [x.new_empty(groups, grid.parts, hidden) for _ in range(2)]
    parts = [x.new_empty(groups, grid.parts, *shape) for shape in shapes]
    dz = torch.empty_like(linear_1)
    before, nothing = (scale_1, shift_1, *known[:2], *of_dz), (None,) * 6
    options = {"BP": PARTS, "BR": grid.rows, "STAGES": STAGES, "PRECISION": _precision()}
    options |= {"num_warps": warps, "maxnreg": REGISTERS}
    tail = length, grid.parts
    with torch.cuda.device_of(x):
        sum_up[(sums.programs,)](
            *(dy, linear_2, rows, *known[2:], *of_dy, eps, length, out, sums.parts),
            True,
            **sums.tile,
        )
        _pull[(grid.programs,)](
            *(dy, linear_2, linear_1, rows, weight_2, scale_2, *known[2:], *of_dy, *before),
            *(dz, *parts[2:], *norms[2:], eps, sums.parts, *tail, True),
            **(_widths(weight_2) | options),
        )
        _pull[(grid.programs,)](
            *(dz, linear_1, x, rows, weight_1, scale_1, *known[:2], *of_dz, *nothing),
            *(dx if wants_x else None, *parts[:2], *norms[:2], eps, grid.parts, *tail, False),
            **(_widths(weight_1) | options),
        )
        finish[cdiv(sum(t[0].numel() for t in totals), NUMBERS), replicas(groups)](
            *(*parts, *totals, grid.parts, columns, hidden, out, NUMBERS), num_warps=4
        )
    return dx, *found


def _widths(weight: Tensor) -> dict[str, int]:
    dim, columns = weight.shape[1:]
    padded = (max(NARROWEST, power_of_2(width)) for width in (columns, dim))
    return dict(zip(("C", "O", "BC", "BO"), (columns, dim, *padded), strict=True))


def _precision() -> str:
    """TF32 where torch's own products may have it; else three parts that keep float32.

    Asked so, since torch.get_float32_matmul_precision fails where this was what was set.
    """
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
