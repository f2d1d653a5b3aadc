"""The LSTM on CUDA, in one of two ways.

In bfloat16 on a large GPU, all steps are one kernel, and all of them backwards another. What bounds
a step there is how long the weights take to be read: 512 KiB of them at a width of 256, more than a
multiprocessor can keep. So programs hold a part each in their shared memory, of all gates of some
units, and as many programs as there are parts go through the steps of some sequences together.
Forwards, each gives its part of the hidden state to the others; backwards, what its gates add to
the gradient of the whole. They wait for each other in every step, and are launched so that all of
them run at once (a cooperative launch, which CUDA refuses where they could not).

In float32, or where a width does not fit, a step is a product of matrices and a small kernel
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
from .counts import cdiv

HELD = 128 << 10  # bytes of weights that a program holds
WIDTHS = (32, 64, 128, 256)
TILES = (16, 32, 64)  # sequences of a program: the first with which all programs run at once
WARPS = 8
LEAST = 200 << 10  # bytes of shared memory that a program can have, on a large GPU
INTERPRETED = triton.knobs.runtime.interpret
MANY = 132  # multiprocessors of a large GPU
APART = 32  # from one counter to the next, so that each has a line of the cache for itself
ANY = ["batch", "steps", "vocabulary", "tile", "begin", "end"]  # not to be compiled for


def lstm(x: Tensor, weight: Tensor, words: Tensor | None, start: Tensor | None, kept: bool):
    """Last hidden and cell states (G, B, H), and what is kept; see ``..lstm``."""
    groups, batch, steps = (x if words is None else words).shape[:3]
    width = weight.shape[-1]
    x, weight = x.contiguous(), weight.contiguous()
    words, start = (None if t is None else t.contiguous() for t in (words, start))
    hidden, cells, gates = _memory(x, weight, shapes(groups, steps, batch, width), kept)
    if groups and batch and steps:
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
    if weight.dtype != torch.bfloat16 or weight.shape[-1] not in WIDTHS:
        return False
    if not weight.is_cuda:
        return True
    return torch.cuda.get_device_properties(weight.device).shared_memory_per_block_optin >= LEAST


def _room(weight: Tensor) -> int:
    """Programs that run at once: one on a multiprocessor."""
    if not weight.is_cuda:
        return MANY
    return torch.cuda.get_device_properties(weight.device).multi_processor_count


# --------------------------------------------------------------------------------------------------
# All steps in one kernel


def _fused(x, weight, words, start, hidden, cells, gates, steps: int) -> None:
    kept = gates.shape[1] == steps and hidden.shape[1] == steps + 1
    memory = x, weight, words, start, hidden, cells, gates
    for grid, counts, options in _launches(weight, hidden.shape[2], steps):
        _forward[grid](*memory, *counts, x.shape[1], KEPT=kept, **options)


def _fused_back(dh, dc, weight, start, cells, gates, dgates) -> None:
    groups, steps, batch, _ = gates.shape
    width = weight.shape[-1]
    sums = dh.new_empty(groups * batch, 2, parts(width), width)
    memory = dh, dc, weight, start, cells, gates, dgates, sums
    for grid, counts, options in reversed(_launches(weight, batch, steps)):
        _backward[grid](*memory, *counts, **options)


def parts(width: int) -> int:
    """Programs that share the weights of a replica."""
    return max(1, 8 * width * width // HELD)


def _launches(weight: Tensor, batch: int, steps: int) -> list:
    """Grids, counts and options of all launches.

    There is one of them, or several where programs are more than can run at once. The interpreter
    runs programs one after the other, so that none may wait: there a launch is one step.
    """
    groups, _, width = weight.shape
    share = parts(width)
    room = max(1, _room(weight) // share)
    rows = next((t for t in TILES if groups * cdiv(batch, t) <= room), TILES[-1])
    tiles = groups * cdiv(batch, rows)
    met = torch.zeros(tiles, APART, dtype=torch.int32, device=weight.device)
    options = {"H": width, "ROWS": rows, "PARTS": share, "APART": APART}
    options |= {
        "FAST": not INTERPRETED,
        "num_warps": WARPS,
        "num_stages": 1,
        "launch_cooperative_grid": share > 1,
    }
    each = cdiv(tiles, cdiv(tiles, room)) if share > 1 else tiles
    once = 1 if INTERPRETED and share > 1 else steps
    found = []
    for begin in range(0, steps, once):
        for tile in range(0, tiles, each):
            grid = (share * min(each, tiles - tile),)
            found.append((grid, (met, batch, steps, tile, begin, begin + once), options))
    return found


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
def _place(tile, batch, ROWS: tl.constexpr, PARTS: tl.constexpr):
    """Where a program is: its part, tile, replica and first sequence."""
    tile += tl.program_id(0) // PARTS
    across = tl.cdiv(batch, ROWS)
    replica = (tile // across).to(tl.int64)
    return tl.program_id(0) % PARTS, tile, replica, tile % across * ROWS


@triton.jit
def _begin(start, replica, row, batch, steps, ROWS: tl.constexpr):
    """The first step of every sequence, and of any of them; where there is none, after the last."""
    row += tl.arange(0, ROWS)
    if start is not None:
        own = tl.load(start + replica * batch + row, mask=row < batch, other=0).to(tl.int32)
        own = tl.where(row < batch, tl.maximum(own, 0), steps)
    else:
        own = tl.where(row < batch, 0, steps)
    return own, tl.minimum(tl.min(own), steps)


@triton.jit
def _at(t, row, batch, width: tl.constexpr):
    """From the beginning of memory (T, B, width) to the first sequence of a program."""
    return (t * batch + row).to(tl.int64) * width


@triton.jit
def _arrive(met, PARTS: tl.constexpr):
    """What all threads of this program have written is there for those who wait."""
    tl.debug_barrier()
    if PARTS > 1:
        tl.atomic_add(met, 1, sem="release")


@triton.jit
def _wait(met, times, PARTS: tl.constexpr):
    """Until all programs of these sequences have arrived so many times."""
    if PARTS > 1:
        while tl.atomic_add(met, 0, sem="acquire") < times * PARTS:
            pass


@triton.jit(do_not_specialize=ANY)
def _forward(
    x,
    weight,
    words,
    start,
    hidden,
    cells,
    gates,
    met,
    batch,
    steps,
    tile,
    begin,
    end,
    vocabulary,
    KEPT: tl.constexpr,
    APART: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    FAST: tl.constexpr,
):
    """Tiles are (units, sequences): what is the same for all steps is the left side of a product.

    Products have the rows of four gates in such an order that each thread gets all gates of a unit:
    a thread has rows that are 8 apart, and rows in both halves.
    """
    U: tl.constexpr = H // PARTS
    part, tile, replica, row = _place(tile, batch, ROWS, PARTS)
    own, first = _begin(start, replica, row, batch, steps, ROWS)
    met += tile * APART
    line = tl.arange(0, 4 * U)
    gate = line // (2 * U) * 2 + line // 8 % 2
    line = gate * H + part * U + line // 16 % (U // 8) * 8 + line % 8
    k = tl.arange(0, H)
    w = tl.load(weight + replica * (4 * H * H) + line[:, None] * H + k[None, :])
    slots = steps + 1 if KEPT else 2
    sequence = tl.arange(0, ROWS)
    unit = part * U + tl.arange(0, U)[:, None]
    own_state = sequence[None, :] * H + unit
    own_gates = sequence[None, :] * (4 * H) + unit
    whole_state = sequence[None, :] * H + k[:, None]
    hidden += replica * slots * batch * H
    cells += replica * slots * batch * H
    gates += replica * steps * batch * (4 * H)
    nothing = tl.zeros((U, ROWS), tl.float32)
    inside = row + sequence < batch
    here = inside[None, :] & (unit < H)
    for t in range(begin, tl.minimum(first, end)):
        to = _at(t + 1 if KEPT else (t + 1) % 2, row, batch, H)
        tl.store(hidden + to + own_state, nothing.to(hidden.dtype.element_ty), mask=here)
        tl.store(cells + to + own_state, nothing, mask=here)
    begin = tl.maximum(first, begin)
    c = cells + _at(begin if KEPT else begin % 2, row, batch, H) + own_state
    c = tl.load(c, mask=here & (begin > first), other=0.0)
    for t in range(begin, end):
        read = (replica * batch + row + sequence) * steps + t
        if words is not None:
            read = tl.load(words + read, mask=inside, other=0).to(tl.int64)
            read += replica * vocabulary
        begun = (t >= own)[None, :]
        given = x + read[None, :] * (4 * H) + line[:, None]
        given = tl.load(given, mask=begun & (line < 4 * H)[:, None], other=0.0)
        if t > begin:
            _wait(met, t - begin, PARTS)
        h = hidden + _at(t if KEPT else t % 2, row, batch, H) + whole_state
        there = inside[None, :] & (k < H)[:, None] & (t > first)
        h = tl.load(h, mask=there, other=0.0, cache_modifier=".cg")
        a = tl.reshape(_product(w, h, given, FAST), (2, U // 8, 2, 8, ROWS))
        one, other = tl.split(tl.permute(a, (1, 3, 4, 0, 2)))
        i, g = tl.split(one)
        f, o = tl.split(other)
        i = _sigmoid(tl.reshape(i, (U, ROWS)), FAST)
        f = _sigmoid(tl.reshape(f, (U, ROWS)), FAST)
        g = _tanh(tl.reshape(g, (U, ROWS)), FAST)
        o = _sigmoid(tl.reshape(o, (U, ROWS)), FAST)
        c = tl.where(begun, f * c + i * g, 0.0)
        new = tl.where(begun, o * _tanh(c, FAST), 0.0)
        to = _at(t + 1 if KEPT else (t + 1) % 2, row, batch, H)
        tl.store(hidden + to + own_state, new.to(hidden.dtype.element_ty), mask=here)
        _arrive(met, PARTS)
        if KEPT:  # which nobody waits for
            tl.store(cells + to + own_state, c, mask=here)
            to = gates + _at(t, row, batch, 4 * H) + own_gates
            begun = begun & (unit < H)
            tl.store(to, i.to(gates.dtype.element_ty), mask=begun)
            tl.store(to + H, f.to(gates.dtype.element_ty), mask=begun)
            tl.store(to + 2 * H, g.to(gates.dtype.element_ty), mask=begun)
            tl.store(to + 3 * H, o.to(gates.dtype.element_ty), mask=begun)
    if not KEPT:
        tl.store(cells + _at(end % 2, row, batch, H) + own_state, c, mask=here)


@triton.jit(do_not_specialize=ANY)
def _backward(
    dh,
    dc,
    weight,
    start,
    cells,
    gates,
    dgates,
    sums,
    met,
    batch,
    steps,
    tile,
    begin,
    end,
    APART: tl.constexpr,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    FAST: tl.constexpr,
):
    """dh and dc hold the gradients to the state; dc is written over."""
    U: tl.constexpr = H // PARTS
    part, tile, replica, row = _place(tile, batch, ROWS, PARTS)
    own, first = _begin(start, replica, row, batch, steps, ROWS)
    met += tile * APART
    line = tl.arange(0, 4 * U)
    line = line // U * H + part * U + line % U
    k = tl.arange(0, H)[:, None]
    w = tl.load(weight + replica * (4 * H * H) + line[None, :] * H + k)
    sequence = tl.arange(0, ROWS)[None, :]
    unit = part * U + tl.arange(0, U)[:, None]
    own_state = sequence * H + unit
    own_gates = sequence * (4 * H) + unit
    dh += (replica * batch + row) * H
    dc += (replica * batch + row) * H + own_state
    sums += (replica * batch + row) * (2 * PARTS * H) + sequence * (2 * PARTS * H)
    cells += replica * (steps + 1) * batch * H
    gates += replica * steps * batch * (4 * H)
    dgates += replica * steps * batch * (4 * H)
    nothing = tl.zeros((U, ROWS), dgates.dtype.element_ty)
    inside = row + sequence < batch
    here = inside & (unit < H)
    for t in range(begin, tl.minimum(first, end)):
        to = dgates + _at(t, row, batch, 4 * H) + own_gates
        for q in tl.static_range(4):
            tl.store(to + q * H, nothing, mask=here)
    dc_own = tl.load(dc, mask=here, other=0.0)
    for done in range(0, end - tl.maximum(first, begin)):
        t = end - 1 - done
        begun = (t >= own)[None, :] & here
        a = gates + _at(t, row, batch, 4 * H) + own_gates
        i = tl.load(a, mask=begun, other=0.0).to(tl.float32)
        f = tl.load(a + H, mask=begun, other=0.0).to(tl.float32)
        g = tl.load(a + 2 * H, mask=begun, other=0.0).to(tl.float32)
        o = tl.load(a + 3 * H, mask=begun, other=0.0).to(tl.float32)
        c_before = cells + _at(t, row, batch, H) + own_state
        c_before = tl.load(c_before, mask=begun, other=0.0)
        c = cells + _at(t + 1, row, batch, H) + own_state
        c = _tanh(tl.load(c, mask=begun, other=0.0), FAST)
        dh_own = tl.load(dh + own_state, mask=begun & (t == steps - 1), other=0.0)
        if done > 0:
            _wait(met, done, PARTS)
        added = begun & (t < steps - 1)
        for q in tl.static_range(PARTS):
            a = sums + ((t + 1) % 2 * PARTS + q) * H + unit
            dh_own += tl.load(a, mask=added, other=0.0, cache_modifier=".cg")
        dc_own = tl.where(begun, dc_own, 0.0) + dh_own * o * (1.0 - c * c)
        di = (dc_own * g * i * (1.0 - i)).to(dgates.dtype.element_ty)
        df = (dc_own * c_before * f * (1.0 - f)).to(dgates.dtype.element_ty)
        dg = (dc_own * i * (1.0 - g * g)).to(dgates.dtype.element_ty)
        do = (dh_own * c * o * (1.0 - o)).to(dgates.dtype.element_ty)
        dc_own *= f
        d = tl.permute(tl.join(tl.join(di, dg), tl.join(df, do)), (2, 3, 0, 1))
        added = _product(w, tl.reshape(d, (4 * U, ROWS)), None, FAST)
        tl.store(sums + (t % 2 * PARTS + part) * H + k, added, mask=inside & (k < H))
        _arrive(met, PARTS)
        to = dgates + _at(t, row, batch, 4 * H) + own_gates  # which nobody waits for
        tl.store(to, di, mask=here)
        tl.store(to + H, df, mask=here)
        tl.store(to + 2 * H, dg, mask=here)
        tl.store(to + 3 * H, do, mask=here)
    tl.store(dc, dc_own, mask=here)
