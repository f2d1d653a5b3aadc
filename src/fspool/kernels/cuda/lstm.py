"""The LSTM on CUDA, in one of two ways.

In bfloat16 all steps are one kernel, and all of them backwards another: a program has a few
sequences and reads the weights in each step, which stay in the cache of the device. In float32, or
where the weights are too wide, a step is a product of matrices and a small kernel
(:mod:`.lstm_steps`).

In either way a sequence that has not started has zeros for its state and for its gradient.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cpu.lstm import shapes, weight_gradient
from . import lstm_steps
from .counts import cdiv, replicas

WIDEST = 256  # H up to which a program's state fits in registers
UNITS = 32  # whose gates are computed at a time; all four of them are 64 KiB of weights
STAGES = 3  # of these, in flight
INTERPRETED = triton.knobs.runtime.interpret
MANY = 132  # programs that a large GPU has room for
ANY = ["batch", "steps", "vocabulary"]  # integers that a kernel must not be compiled for


def lstm(x: Tensor, weight: Tensor, words: Tensor | None, start: Tensor | None, kept: bool):
    """Last hidden and cell states (G, B, H), and what is kept; see ``..lstm``."""
    groups, batch, steps = (x if words is None else words).shape[:3]
    width = weight.shape[-1]
    x, weight = x.contiguous(), weight.contiguous()
    words, start = (None if t is None else t.contiguous() for t in (words, start))
    hidden, cells, gates = _memory(x, weight, shapes(groups, steps, batch, width), kept)
    if batch and steps:
        with torch.cuda.device_of(x):
            forward = _fused if fits(weight) else lstm_steps.forward
            forward(x, weight, words, start, hidden, cells, gates, steps)
    last = hidden[:, steps % hidden.shape[1]].float(), cells[:, steps % cells.shape[1]].clone()
    if not kept:
        hidden, cells, gates = (t.new_empty(groups, 0) for t in (hidden, cells, gates))
    return *last, hidden, cells, gates


def _memory(x: Tensor, weight: Tensor, sizes: list[tuple[int, ...]], kept: bool):
    """Where nothing is kept, steps take turns with memory for two."""
    if not kept:
        groups, _, batch, width = sizes[0]
        sizes = [(groups, 2, batch, width)] * 2 + [(groups, 1, batch, 4 * width)]
    hidden, gates = weight.new_empty(sizes[0]), weight.new_empty(sizes[2])
    cells = x.new_empty(sizes[1])
    hidden[:, 0], cells[:, 0] = 0, 0
    return hidden, cells, gates


def pull(
    dhidden: Tensor,
    dcell: Tensor,
    weight: Tensor,
    start: Tensor | None,
    hidden: Tensor,
    cells: Tensor,
    gates: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients to the gates (G, T, B, 4 H) and to the weight."""
    weight, hidden, cells, gates = (t.contiguous() for t in (weight, hidden, cells, gates))
    start = None if start is None else start.contiguous()
    dgates = torch.empty_like(gates)
    dh, dc = dhidden.float().contiguous().clone(), dcell.float().contiguous().clone()
    if gates.numel():
        with torch.cuda.device_of(weight):
            backward = _fused_back if fits(weight) else lstm_steps.backward
            backward(dh, dc, weight, start, cells, gates, dgates)
    return dgates, weight_gradient(dgates, hidden)


def fits(weight: Tensor) -> bool:
    width = weight.shape[-1]
    return weight.dtype == torch.bfloat16 and width <= WIDEST and width in (32, 64, 128, 256)


def _rows(groups: int, batch: int) -> int:
    """Sequences of a program: few, so that many programs run; more where there are too many."""
    return 16 if groups * cdiv(batch, 16) <= MANY else 32


# --------------------------------------------------------------------------------------------------
# All steps in one kernel


def _fused(x, weight, words, start, hidden, cells, gates, steps: int) -> None:
    groups, _, batch, width = hidden.shape
    rows = _rows(groups, batch)
    _forward[cdiv(batch, rows), replicas(groups)](
        *(x, weight, words, start, hidden, cells, gates, batch, steps, x.shape[1]),
        KEPT=gates.shape[1] == steps and hidden.shape[1] == steps + 1,
        **_tile(width, rows, 4),
    )


def _fused_back(dh, dc, weight, start, cells, gates, dgates) -> None:
    groups, steps, batch, _ = gates.shape
    width = weight.shape[-1]
    rows = _rows(groups, batch)
    _backward[cdiv(batch, rows), replicas(groups)](
        *(dh, dc, weight, start, cells, gates, dgates, batch, steps), **_tile(width, rows, 8)
    )


def _tile(width: int, rows: int, warps: int) -> dict[str, object]:
    shape = {"H": width, "ROWS": rows, "UNITS": UNITS, "FAST": not INTERPRETED}
    return shape | {"STAGES": STAGES, "num_warps": warps}


@triton.jit
def _tanh(x, FAST: tl.constexpr):
    """One instruction in a GPU, with as many digits as bfloat16 can use."""
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0


@triton.jit
def _sigmoid(x, FAST: tl.constexpr):
    if FAST:
        return 0.5 * _tanh(0.5 * x, FAST) + 0.5
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _product(a, b, added, FAST: tl.constexpr):
    """The interpreter takes the bits of bfloat16 for integers."""
    if FAST:
        return tl.dot(a, b, added)
    return tl.dot(a.to(tl.float32), b.to(tl.float32), added)


@triton.jit
def _begin(start, replica, row, inside, batch, steps):
    """The first step of every sequence, and of any of them."""
    if start is not None:
        own = tl.load(start + replica * batch + row, mask=inside, other=steps).to(tl.int32)
    else:
        own = tl.where(inside, 0, steps)
    return own, tl.minimum(tl.maximum(tl.min(own), 0), steps)


@triton.jit(do_not_specialize=ANY)
def _forward(
    x,
    weight,
    words,
    start,
    hidden,
    cells,
    gates,
    batch,
    steps,
    vocabulary,
    KEPT: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    FAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    replica = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < batch
    own, first = _begin(start, replica, row, inside, batch, steps)
    k = tl.arange(0, H)
    weight += replica * (4 * H * H)
    slots = steps + 1 if KEPT else 2
    hidden += replica * slots * batch * H
    cells += replica * slots * batch * H
    gates += replica * steps * batch * (4 * H)
    nothing = tl.zeros((ROWS, H), tl.float32)
    here = inside[:, None] & (k < H)[None, :]
    for t in range(0, first):
        slot = t + 1 if KEPT else (t + 1) % 2
        at = (slot * batch + row)[:, None].to(tl.int64) * H + k[None, :]
        tl.store(hidden + at, nothing.to(hidden.dtype.element_ty), mask=here)
        tl.store(cells + at, nothing, mask=here)
    tl.debug_barrier()
    for t in range(first, steps):
        before = t if KEPT else t % 2
        after = t + 1 if KEPT else (t + 1) % 2
        from_row = (before * batch + row)[:, None].to(tl.int64) * H
        to_row = (after * batch + row)[:, None].to(tl.int64) * H
        h = tl.load(hidden + from_row + k[None, :], mask=here, other=0.0)
        if words is not None:
            at = (replica * batch + row) * steps + t
            read = replica * vocabulary + tl.load(words + at, mask=inside, other=0).to(tl.int64)
        else:
            read = (replica * batch + row) * steps + t
        begun = ((t >= own) & inside)[:, None]
        for j in tl.range(0, H, UNITS, num_stages=STAGES):
            unit = j + tl.arange(0, UNITS)
            w = weight + unit[None, :] * H + k[:, None]
            i = _product(h, tl.load(w), None, FAST)
            f = _product(h, tl.load(w + H * H), None, FAST)
            g = _product(h, tl.load(w + 2 * H * H), None, FAST)
            o = _product(h, tl.load(w + 3 * H * H), None, FAST)
            given = x + read[:, None] * (4 * H) + unit[None, :]
            i = _sigmoid(i + tl.load(given, mask=begun, other=0.0), FAST)
            f = _sigmoid(f + tl.load(given + H, mask=begun, other=0.0), FAST)
            g = _tanh(g + tl.load(given + 2 * H, mask=begun, other=0.0), FAST)
            o = _sigmoid(o + tl.load(given + 3 * H, mask=begun, other=0.0), FAST)
            c = tl.load(cells + from_row + unit[None, :], mask=begun, other=0.0)
            c = tl.where(begun, f * c + i * g, 0.0)
            new = tl.where(begun, o * _tanh(c, FAST), 0.0)
            tl.store(cells + to_row + unit[None, :], c, mask=inside[:, None])
            tl.store(
                hidden + to_row + unit[None, :],
                new.to(hidden.dtype.element_ty),
                mask=inside[:, None],
            )
            if KEPT:
                to = gates + (t * batch + row)[:, None].to(tl.int64) * (4 * H) + unit[None, :]
                tl.store(to, i.to(gates.dtype.element_ty), mask=begun)
                tl.store(to + H, f.to(gates.dtype.element_ty), mask=begun)
                tl.store(to + 2 * H, g.to(gates.dtype.element_ty), mask=begun)
                tl.store(to + 3 * H, o.to(gates.dtype.element_ty), mask=begun)
        tl.debug_barrier()  # all threads of the program read what each has written


@triton.jit(do_not_specialize=ANY)
def _backward(
    dh,
    dc,
    weight,
    start,
    cells,
    gates,
    dgates,
    batch,
    steps,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    UNITS: tl.constexpr,
    FAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """dh and dc hold the gradients to the state; they are written over."""
    replica = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < batch
    own, first = _begin(start, replica, row, inside, batch, steps)
    k = tl.arange(0, H)
    here = inside[:, None] & (k < H)[None, :]
    weight += replica * (4 * H * H)
    cells += replica * (steps + 1) * batch * H
    gates += replica * steps * batch * (4 * H)
    dgates += replica * steps * batch * (4 * H)
    state = (replica * batch + row)[:, None] * H
    nothing = tl.zeros((ROWS, H), dgates.dtype.element_ty)
    for t in range(0, first):
        to = dgates + (t * batch + row)[:, None].to(tl.int64) * (4 * H) + k[None, :]
        for q in tl.static_range(4):
            tl.store(to + q * H, nothing, mask=here)
    for done in range(0, steps - first):
        t = steps - 1 - done
        begun = ((t >= own) & inside)[:, None]
        at_cell = cells + (t * batch + row)[:, None].to(tl.int64) * H
        at_gate = (t * batch + row)[:, None].to(tl.int64) * (4 * H)
        new = tl.zeros((ROWS, H), tl.float32)
        for j in tl.range(0, H, UNITS, num_stages=STAGES):
            unit = (j + tl.arange(0, UNITS))[None, :]
            w = weight + (j + tl.arange(0, UNITS))[:, None] * H + k[None, :]
            a = gates + at_gate + unit
            i = tl.load(a, mask=begun, other=0.0).to(tl.float32)
            f = tl.load(a + H, mask=begun, other=0.0).to(tl.float32)
            g = tl.load(a + 2 * H, mask=begun, other=0.0).to(tl.float32)
            o = tl.load(a + 3 * H, mask=begun, other=0.0).to(tl.float32)
            c_before = tl.load(at_cell + unit, mask=begun, other=0.0)
            c = _tanh(tl.load(at_cell + batch * H + unit, mask=begun, other=0.0), FAST)
            dh_own = tl.load(dh + state + unit, mask=begun, other=0.0)
            dc_own = tl.load(dc + state + unit, mask=begun, other=0.0)
            dc_own += dh_own * o * (1.0 - c * c)
            di = (dc_own * g * i * (1.0 - i)).to(dgates.dtype.element_ty)
            df = (dc_own * c_before * f * (1.0 - f)).to(dgates.dtype.element_ty)
            dg = (dc_own * i * (1.0 - g * g)).to(dgates.dtype.element_ty)
            do = (dh_own * c * o * (1.0 - o)).to(dgates.dtype.element_ty)
            to = dgates + at_gate + unit
            tl.store(to, di, mask=inside[:, None])
            tl.store(to + H, df, mask=inside[:, None])
            tl.store(to + 2 * H, dg, mask=inside[:, None])
            tl.store(to + 3 * H, do, mask=inside[:, None])
            tl.store(dc + state + unit, dc_own * f, mask=inside[:, None])
            new = _product(di, tl.load(w), new, FAST)
            new = _product(df, tl.load(w + H * H), new, FAST)
            new = _product(dg, tl.load(w + 2 * H * H), new, FAST)
            new = _product(do, tl.load(w + 3 * H * H), new, FAST)
        tl.debug_barrier()  # everybody has read the old gradient
        tl.store(dh + state + k[None, :], new, mask=here)
        tl.debug_barrier()
