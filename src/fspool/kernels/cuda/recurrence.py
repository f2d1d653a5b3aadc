"""An LSTM on zero input, all its steps in one kernel, and all of its gradient in another.

Steps wait for one another, so that their latency is all that counts: a program has a single set,
and keeps the weights, and backwards the gradient to them too, in registers. Sums of products and no
``tl.dot``: that would want 16 sets, and float32 is added up by the same instructions there.

Beyond H the columns and rows of a tile are zeros, and so is all that comes of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cpu import recurrence as plain
from .counts import power_of_2, replicas

LARGEST = 64  # H up to which the weights fit in registers
FORWARD, BACKWARD = {32: 1, 64: 8}, {32: 4, 64: 8}  # warps by H: as few as hold it all; 1 below 32
ANY = ["batch", "steps"]  # integers that a kernel must not be compiled for


def recurrence(state: Tensor, weight: Tensor, bias: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """state (G, B, H) -> hidden and cells, (G, B, n, H)."""
    if not _fits(state):
        return plain.recurrence(state, weight, bias, n)
    groups, batch, width = state.shape
    hidden, cells = (state.new_empty(groups, batch, n, width) for _ in range(2))
    inputs = (t.contiguous() for t in (state, weight, bias))
    if hidden.numel():
        with torch.cuda.device_of(state):
            _forward[batch, replicas(groups)](
                *inputs, hidden, cells, batch, n, **_tile(width, FORWARD)
            )
    return hidden, cells


def pull(
    dhidden: Tensor, hidden: Tensor, cells: Tensor, state: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients to state, weight and bias. Sets of a replica share the latter two: they are
    added up after the kernel, in the same order always."""
    if not _fits(state):
        return plain.pull(dhidden, hidden, cells, state, weight, bias)
    groups, batch, n, width = hidden.shape
    tensors = (t.contiguous() for t in (dhidden, hidden, cells, state, weight, bias))
    dstate = state.new_empty(state.shape)
    dweight = state.new_empty(groups, batch, 4 * width, width)
    dbias = state.new_empty(groups, batch, 4 * width)
    if hidden.numel():
        with torch.cuda.device_of(state):
            _backward[batch, replicas(groups)](
                *tensors, dstate, dweight, dbias, batch, n, **_tile(width, BACKWARD)
            )
    return dstate, dweight.sum(1), dbias.sum(1)


def _fits(state: Tensor) -> bool:
    return state.dtype == torch.float32 and state.shape[-1] <= LARGEST


def _tile(width: int, warps: dict[int, int]) -> dict[str, int]:
    padded = power_of_2(width)
    return {"H": width, "BH": padded, "num_warps": warps.get(padded, 1)}


# --------------------------------------------------------------------------------------------------
# Inside of a program


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    """By its series near 0, where the quotient would lose the digits that 1 - e loses."""
    size = tl.abs(x)
    e = tl.exp(-2.0 * size)  # never overflows
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x + x * s * (-1.0 / 3 + s * (2.0 / 15 + s * (-17.0 / 315 + s * (62.0 / 2835))))
    return tl.where(size < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def _place(batch, H: tl.constexpr, BH: tl.constexpr):
    """Replica and set (counted over all replicas), the rows of a vector, and of a matrix of it."""
    replica = tl.program_id(1).to(tl.int64)
    row = tl.arange(0, BH)
    at = row[:, None] * H + row[None, :]
    return replica, replica * batch + tl.program_id(0), row, at, _inner(row, H)


@triton.jit
def _inner(row, H: tl.constexpr):
    return (row < H)[:, None] & (row < H)[None, :]


@triton.jit
def _weights(weight, bias, replica, row, at, within, H: tl.constexpr):
    """The four blocks of a replica's weights, and of its biases."""
    weight += replica * (4 * H * H) + at
    bias += replica * (4 * H) + row
    w_i = tl.load(weight, mask=within, other=0.0)
    w_f = tl.load(weight + H * H, mask=within, other=0.0)
    w_g = tl.load(weight + 2 * H * H, mask=within, other=0.0)
    w_o = tl.load(weight + 3 * H * H, mask=within, other=0.0)
    b_i = tl.load(bias, mask=row < H, other=0.0)
    b_f = tl.load(bias + H, mask=row < H, other=0.0)
    b_g = tl.load(bias + 2 * H, mask=row < H, other=0.0)
    b_o = tl.load(bias + 3 * H, mask=row < H, other=0.0)
    return w_i, w_f, w_g, w_o, b_i, b_f, b_g, b_o


@triton.jit
def _gates(h, w_i, w_f, w_g, w_o, b_i, b_f, b_g, b_o):
    across = h[None, :]
    i = _sigmoid(tl.sum(w_i * across, 1) + b_i)
    f = _sigmoid(tl.sum(w_f * across, 1) + b_f)
    g = _tanh(tl.sum(w_g * across, 1) + b_g)
    o = _sigmoid(tl.sum(w_o * across, 1) + b_o)
    return i, f, g, o


# --------------------------------------------------------------------------------------------------
# Kernels. Programs: sets of a replica, replicas


@triton.jit(do_not_specialize=ANY)
def _forward(state, weight, bias, hidden, cells, batch, steps, H: tl.constexpr, BH: tl.constexpr):
    replica, which, row, at, within = _place(batch, H, BH)
    w_i, w_f, w_g, w_o, b_i, b_f, b_g, b_o = _weights(weight, bias, replica, row, at, within, H)
    c = tl.load(state + which * H + row, mask=row < H, other=0.0)
    h = tl.zeros((BH,), tl.float32)
    hidden += which * steps * H + row
    cells += which * steps * H + row
    for t in range(steps):
        i, f, g, o = _gates(h, w_i, w_f, w_g, w_o, b_i, b_f, b_g, b_o)
        c = f * c + i * g
        h = o * _tanh(c)
        tl.store(hidden + t * H, h, mask=row < H)
        tl.store(cells + t * H, c, mask=row < H)


@triton.jit
def _recall(dhidden, hidden, cells, start, t, row, H: tl.constexpr):
    """What step t needs: the hidden state and the cell before it, and its gradient from outside."""
    earlier = (row < H) & (t > 0)
    h = tl.load(hidden + (t - 1) * H, mask=earlier, other=0.0)
    c = tl.load(cells + (t - 1) * H, mask=earlier, other=start)
    return h, c, tl.load(dhidden + t * H, mask=(row < H) & (t >= 0), other=0.0)


@triton.jit(do_not_specialize=ANY)
def _backward(
    dhidden,
    hidden,
    cells,
    state,
    weight,
    bias,
    dstate,
    dweight,
    dbias,
    batch,
    steps,
    H: tl.constexpr,
    BH: tl.constexpr,
):
    """The steps in reverse; their gates are computed once more."""
    replica, which, row, at, within = _place(batch, H, BH)
    w_i, w_f, w_g, w_o, b_i, b_f, b_g, b_o = _weights(weight, bias, replica, row, at, within, H)
    start = tl.load(state + which * H + row, mask=row < H, other=0.0)
    dhidden += which * steps * H + row
    hidden += which * steps * H + row
    cells += which * steps * H + row
    dw_i = tl.zeros((BH, BH), tl.float32)
    dw_f = tl.zeros((BH, BH), tl.float32)
    dw_g = tl.zeros((BH, BH), tl.float32)
    dw_o = tl.zeros((BH, BH), tl.float32)
    db_i = tl.zeros((BH,), tl.float32)
    db_f = tl.zeros((BH,), tl.float32)
    db_g = tl.zeros((BH,), tl.float32)
    db_o = tl.zeros((BH,), tl.float32)
    dh = tl.zeros((BH,), tl.float32)  # from the steps that came before this one, that is, after it
    dc = tl.zeros((BH,), tl.float32)
    c = tl.load(cells + (steps - 1) * H, mask=row < H, other=0.0)
    h_before, c_before, outside = _recall(dhidden, hidden, cells, start, steps - 1, row, H)
    for done in range(steps):
        t = steps - 1 - done
        # Read a step ahead: memory has the time of a step to answer.
        h_next, c_next, outside_next = _recall(dhidden, hidden, cells, start, t - 1, row, H)
        i, f, g, o = _gates(h_before, w_i, w_f, w_g, w_o, b_i, b_f, b_g, b_o)
        c = _tanh(c)
        dh += outside
        dc += dh * o * (1.0 - c * c)
        di = dc * g * i * (1.0 - i)
        df = dc * c_before * f * (1.0 - f)
        dg = dc * i * (1.0 - g * g)
        do = dh * c * o * (1.0 - o)
        across = h_before[None, :]
        dw_i += di[:, None] * across
        dw_f += df[:, None] * across
        dw_g += dg[:, None] * across
        dw_o += do[:, None] * across
        db_i += di
        db_f += df
        db_g += dg
        db_o += do
        products = w_i * di[:, None] + w_f * df[:, None] + w_g * dg[:, None] + w_o * do[:, None]
        dh = tl.sum(products, 0)
        dc *= f
        c = c_before
        h_before = h_next
        c_before = c_next
        outside = outside_next
    tl.store(dstate + which * H + row, dc, mask=row < H)
    dweight += which * (4 * H * H) + at
    tl.store(dweight, dw_i, mask=within)
    tl.store(dweight + H * H, dw_f, mask=within)
    tl.store(dweight + 2 * H * H, dw_g, mask=within)
    tl.store(dweight + 3 * H * H, dw_o, mask=within)
    dbias += which * (4 * H) + row
    tl.store(dbias, db_i, mask=row < H)
    tl.store(dbias + H, db_f, mask=row < H)
    tl.store(dbias + 2 * H, db_g, mask=row < H)
    tl.store(dbias + 3 * H, db_o, mask=row < H)
