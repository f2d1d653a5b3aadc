"""The LSTM step by step: a product of matrices, and a small kernel for all that is not one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .counts import cdiv, replicas

SLICE = 1024  # entries of a state that a program has


def forward(x, weight, words, start, hidden, cells, gates, steps: int) -> None:
    groups, slots, batch, width = hidden.shape
    grid = (cdiv(batch * width, SLICE), replicas(groups))
    for t in range(steps):
        a = gates[:, t % gates.shape[1]]
        torch.bmm(hidden[:, t % slots], weight.mT, out=a)
        now, then = t % slots, (t + 1) % slots
        _cell[grid](
            *(x, words, start, a, cells[:, now], cells[:, then], hidden[:, then]),
            *(batch, steps, x.shape[1], t, a.stride(0), cells.stride(0)),
            H=width,
            SLICE=SLICE,
        )


def backward(dh, dc, weight, start, cells, gates, dgates) -> None:
    groups, steps, batch, _ = gates.shape
    width = weight.shape[-1]
    grid = (cdiv(batch * width, SLICE), replicas(groups))
    product = torch.empty_like(dh, dtype=weight.dtype)
    for t in reversed(range(steps)):
        _cell_back[grid](
            *(dh if t == steps - 1 else product, dc, start, gates[:, t], cells[:, t]),
            *(cells[:, t + 1], dgates[:, t], batch, t, gates.stride(0), cells.stride(0)),
            H=width,
            SLICE=SLICE,
        )
        if t:
            torch.bmm(dgates[:, t], weight, out=product)


@triton.jit
def _exact_tanh(x):
    """By its series near 0, where the quotient would lose the digits that 1 - e loses."""
    size = tl.abs(x)
    e = tl.exp(-2.0 * size)  # never overflows
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x + x * s * (-1.0 / 3 + s * (2.0 / 15 + s * (-17.0 / 315 + s * (62.0 / 2835))))
    return tl.where(size < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def _place(start, batch, t, H: tl.constexpr, SLICE: tl.constexpr):
    """Replica, entries of a state, their rows, and which of them there are, and have begun."""
    replica = tl.program_id(1).to(tl.int64)
    entry = tl.program_id(0) * SLICE + tl.arange(0, SLICE)
    row = entry // H
    inside = row < batch
    begun = inside
    if start is not None:
        begun &= t >= tl.load(start + replica * batch + row, mask=inside, other=0).to(tl.int32)
    return replica, entry, row, inside, begun


STEP = ["batch", "steps", "vocabulary", "t", "apart_gates", "apart_cells"]


@triton.jit(do_not_specialize=STEP)
def _cell(
    x,
    words,
    start,
    gates,
    before,
    after,
    hidden,
    batch,
    steps,
    vocabulary,
    t,
    apart_gates,
    apart_cells,
    H: tl.constexpr,
    SLICE: tl.constexpr,
):
    replica, entry, row, inside, begun = _place(start, batch, t, H, SLICE)
    if words is not None:
        word = tl.load(words + (replica * batch + row) * steps + t, mask=inside, other=0)
        read = replica * vocabulary + word.to(tl.int64)
    else:
        read = (replica * batch + row) * steps + t
    given = x + read * (4 * H) + entry % H
    a = gates + replica * apart_gates + row.to(tl.int64) * (4 * H) + entry % H
    at = replica * apart_cells + entry
    i = tl.load(a, mask=begun, other=0.0) + tl.load(given, mask=begun, other=0.0)
    f = tl.load(a + H, mask=begun, other=0.0) + tl.load(given + H, mask=begun, other=0.0)
    g = tl.load(a + 2 * H, mask=begun, other=0.0) + tl.load(given + 2 * H, mask=begun, other=0.0)
    o = tl.load(a + 3 * H, mask=begun, other=0.0) + tl.load(given + 3 * H, mask=begun, other=0.0)
    i = 1.0 / (1.0 + tl.exp(-i))
    f = 1.0 / (1.0 + tl.exp(-f))
    g = _exact_tanh(g)
    o = 1.0 / (1.0 + tl.exp(-o))
    c = tl.where(begun, f * tl.load(before + at, mask=begun, other=0.0) + i * g, 0.0)
    tl.store(after + at, c, mask=inside)
    h = tl.where(begun, o * _exact_tanh(c), 0.0)
    tl.store(hidden + at, h.to(hidden.dtype.element_ty), mask=inside)
    tl.store(a, i.to(gates.dtype.element_ty), mask=begun)
    tl.store(a + H, f.to(gates.dtype.element_ty), mask=begun)
    tl.store(a + 2 * H, g.to(gates.dtype.element_ty), mask=begun)
    tl.store(a + 3 * H, o.to(gates.dtype.element_ty), mask=begun)


@triton.jit(do_not_specialize=STEP)
def _cell_back(
    dh,
    dc,
    start,
    gates,
    before,
    after,
    dgates,
    batch,
    t,
    apart_gates,
    apart_cells,
    H: tl.constexpr,
    SLICE: tl.constexpr,
):
    replica, entry, row, inside, begun = _place(start, batch, t, H, SLICE)
    here = replica * apart_gates + row.to(tl.int64) * (4 * H) + entry % H
    a, to = gates + here, dgates + here
    at, own = replica * apart_cells + entry, replica * batch * H + entry
    i = tl.load(a, mask=begun, other=0.0).to(tl.float32)
    f = tl.load(a + H, mask=begun, other=0.0).to(tl.float32)
    g = tl.load(a + 2 * H, mask=begun, other=0.0).to(tl.float32)
    o = tl.load(a + 3 * H, mask=begun, other=0.0).to(tl.float32)
    c = _exact_tanh(tl.load(after + at, mask=begun, other=0.0))
    dh = tl.load(dh + own, mask=begun, other=0.0).to(tl.float32)
    dc_own = tl.load(dc + own, mask=begun, other=0.0) + dh * o * (1.0 - c * c)
    c_before = tl.load(before + at, mask=begun, other=0.0)
    tl.store(to, (dc_own * g * i * (1.0 - i)).to(dgates.dtype.element_ty), mask=inside)
    tl.store(to + H, (dc_own * c_before * f * (1.0 - f)).to(dgates.dtype.element_ty), mask=inside)
    tl.store(to + 2 * H, (dc_own * i * (1.0 - g * g)).to(dgates.dtype.element_ty), mask=inside)
    tl.store(to + 3 * H, (dh * c * o * (1.0 - o)).to(dgates.dtype.element_ty), mask=inside)
    tl.store(dc + own, dc_own * f, mask=inside)
