"""The kernels of the relaxed sort: the walk along the band of P, as in ``../cpu/relaxed_sort.py``.

Every program takes a few rows and features and walks outwards from their diagonal, to one side and
then to the other, until no entry of its tile counts any more. Rows of P serve P x; columns of P
serve P^T v and the slope, by a recurrence of their own, so that every program adds up what it alone
writes.

Tensors are seen as rows, ``(-1, D)``: a row knows its set by division, or by a search in the
offsets, so no grid depends on the sizes and nothing waits for the device.

The slope adds up the errors of P x over the ranks. So a row adds up differences from its own x,
which are small, and what a few steps gave goes to sums in float64, which costs next to nothing.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
STEEPEST = tl.constexpr(1e28)  # multiples of it stay finite, so that they leave a gap of 0 at 0


# --------------------------------------------------------------------------------------------------
# Where a program is


@triton.jit
def set_bounds(number, length, batch, apart, lengths, offsets):
    """First row of a set and the row after its last; inside the tensor whatever the sizes say."""
    if offsets is not None:
        first = (number // batch) * length
        place = offsets + number // batch * apart + number % batch
        start = tl.minimum(tl.maximum(tl.load(place).to(tl.int64), 0), length)
        stop = tl.minimum(tl.load(place + 1).to(tl.int64), length)
        start, stop = first + start, first + stop
    else:
        start = number * length
        stop = start + length
        if lengths is not None:
            stop = start + tl.minimum(tl.load(lengths + number).to(tl.int64), length)
    return start, stop


@triton.jit
def set_of_row(row, length, batch, searches, apart, offsets):
    """The number of a row's set, counted over all replicas."""
    number = row // length
    if offsets is not None:  # how many sets end at or before the row, by bisection
        inner = row - number * length
        offsets += number * apart
        low = tl.zeros_like(row)
        high = low + batch
        for _ in range(searches):
            middle = (low + high) // 2
            unsure = low < high
            ends = unsure & (tl.load(offsets + 1 + middle, mask=unsure, other=0) <= inner)
            low = tl.where(ends, middle + 1, low)
            high = tl.where(unsure & (ends == 0), middle, high)
        number = number * batch + tl.minimum(low, batch - 1)
    return number


@triton.jit
def locate(
    rows,
    length,
    batch,
    searches,
    apart,
    lengths,
    offsets,
    D: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """The tile of a program: where its entries lie, which are there at all, and how many rows of
    the set there are from each row on, forwards and backwards: 0 in padding, and beyond D."""
    blocks = tl.cdiv(D, BD)
    program = tl.program_id(0)
    row = (program // blocks).to(tl.int64) * BR + tl.arange(0, BR)
    feature = (program % blocks) * BD + tl.arange(0, BD)
    number = set_of_row(tl.minimum(row, rows - 1), length, batch, searches, apart, offsets)
    start, stop = set_bounds(number, length, batch, apart, lengths, offsets)
    element = (row < rows) & (row >= start) & (row < stop)
    ahead = tl.where(element, stop - row, 0).to(tl.int32)
    behind = tl.where(element, row - start + 1, 0).to(tl.int32)
    at = row[:, None] * D + feature[None, :]
    there = (row < rows)[:, None] & (feature < D)[None, :]
    ahead, behind = ahead[:, None], behind[:, None]
    if D % BD != 0:
        ahead, behind = tl.where(there, ahead, 0), tl.where(there, behind, 0)
    return at, there, ahead, behind


@triton.jit
def faintest(ahead, behind, dtype: tl.constexpr):
    """The logit to the base 2 below which n entries together do not change a sum of 1."""
    digits: tl.constexpr = 52 if dtype == tl.float64 else 23
    size = tl.maximum(ahead + behind - 1, 1).to(tl.float32)
    return (-digits - tl.log2(size)).to(dtype)


@triton.jit
def steepness(temperature, dtype: tl.constexpr):
    """What turns gaps into logits to the base 2."""
    scale = LOG2E / tl.load(temperature).to(dtype)
    return tl.where(scale > STEEPEST, STEEPEST, scale)  # NaN stays


@triton.jit
def goes_on(m, most, logit, lowest):
    """Has a row of the tile more entries on this side, and does one still count? NaN does."""
    counts = (logit < lowest) == 0
    return (m + 1 < most) & (tl.max(counts.to(tl.int32)) > 0)


# --------------------------------------------------------------------------------------------------
# Walks. SIGN is 1 towards smaller values, which come later, and -1 towards larger ones. A row
# reaches ``reach`` rows there, itself included. Where all rows reach far enough nothing is masked.


@triton.jit
def load_away(ptr, m, reach, i, AWAY: tl.constexpr, MASKED: tl.constexpr):
    """What lies m + i rows away, each AWAY places long."""
    ptr += (m * AWAY).to(tl.int64)
    ptr += i * AWAY  # a constant: part of the instruction
    if MASKED:
        value = tl.load(ptr, mask=m + i < reach, other=0.0)
    else:
        value = tl.load(ptr)
    return value


@triton.jit
def step_on(logit, change, m, reach, MASKED: tl.constexpr):
    logit += change
    return tl.where(m < reach, logit, float("-inf")) if MASKED else logit


@triton.jit
def row_steps(
    values,
    x,
    own,
    seen,
    logit,
    m,
    reach,
    scale,
    D: tl.constexpr,
    SIGN: tl.constexpr,
    STEPS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Some entries of every row: their sum, and with x; ``seen`` is the value of the last one.

    The m-th gap from the diagonal takes 2m - 1 times its width off the logit.
    """
    entries = tl.zeros_like(logit)
    parts = tl.zeros_like(logit)
    for i in tl.static_range(1, STEPS + 1):
        value = load_away(values, m, reach, i, SIGN * D, MASKED)
        other = load_away(x, m, reach, i, SIGN * D, MASKED)
        odd = (2 * (m + i) - 1).to(logit.dtype) * scale
        logit = step_on(logit, (value - seen) * (SIGN * odd), m + i, reach, MASKED)
        entry = tl.exp2(logit)
        entries += entry
        parts += entry * (other - own)
        seen = value
    return seen, logit, entries, parts


@triton.jit
def walk_row(
    values,
    x,
    first,
    own,
    reach,
    scale,
    lowest,
    D: tl.constexpr,
    SIGN: tl.constexpr,
    STEPS: tl.constexpr,
):
    """The entries of every row on one side of the diagonal, without and with x."""
    entries = tl.zeros(own.shape, tl.float64)
    parts = tl.zeros(own.shape, tl.float64)
    logit = tl.zeros_like(own)
    seen = first
    most, least = tl.max(reach), tl.min(reach)
    m = tl.zeros((), tl.int32)
    alive = most > 1
    while alive:
        if m + STEPS < least:
            seen, logit, some, part = row_steps(
                values, x, own, seen, logit, m, reach, scale, D, SIGN, STEPS, False
            )
        else:
            seen, logit, some, part = row_steps(
                values, x, own, seen, logit, m, reach, scale, D, SIGN, STEPS, True
            )
        entries += some
        parts += part
        m += STEPS
        alive = goes_on(m, most, logit, lowest)
    return entries, parts


@triton.jit(do_not_specialize=["rows", "length", "batch", "searches", "apart"])
def sort_kernel(
    values,
    x,
    temperature,
    result,
    normaliser,
    rows,
    length,
    batch,
    searches,
    apart,
    lengths,
    offsets,
    D: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
    STEPS: tl.constexpr,
):
    """P x and the sums of the unnormalised rows of P."""
    at, there, ahead, behind = locate(
        rows, length, batch, searches, apart, lengths, offsets, D, BR, BD
    )
    dtype: tl.constexpr = values.dtype.element_ty
    scale = steepness(temperature, dtype)
    lowest = faintest(ahead, behind, dtype)
    inside = ahead > 0
    first = tl.load(values + at, mask=inside, other=0.0)
    own = tl.load(x + at, mask=inside, other=0.0)
    values += at
    x += at
    later, parts = walk_row(values, x, first, own, ahead, scale, lowest, D, 1, STEPS)
    earlier, others = walk_row(values, x, first, own, behind, scale, lowest, D, -1, STEPS)
    norm = 1.0 + later + earlier
    total = tl.where(ahead > 0, own + (parts + others) / norm, 0.0)
    norm = tl.where(ahead > 0, norm, 0.0)
    tl.store(result + at, total.to(dtype), mask=there)
    tl.store(normaliser + at, norm.to(dtype), mask=there)


@triton.jit
def column_steps(
    values,
    a,
    projected,
    own,
    target,
    seen,
    logit,
    m,
    reach,
    scale,
    D: tl.constexpr,
    SIGN: tl.constexpr,
    STEPS: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Some entries of every column with a, the gradients to their logits, and their moments;
    ``seen`` is the difference between the values of row and column at the last one.

    In column j, going on from row r to row q takes |s_r - s_j| + |s_q - s_j| off the logit: no
    large terms cancel here either.
    """
    parts = tl.zeros_like(logit)
    pulls = tl.zeros_like(logit)
    bends = tl.zeros_like(logit)
    for i in tl.static_range(1, STEPS + 1):
        gap = load_away(values, m, reach, i, SIGN * D, MASKED) - own
        logit = step_on(logit, (gap + seen) * (SIGN * scale), m + i, reach, MASKED)
        pull = tl.exp2(logit) * load_away(a, m, reach, i, SIGN * D, MASKED)
        parts += pull
        if projected is not None:
            pull *= target - load_away(projected, m, reach, i, SIGN * D, MASKED)
            pulls += pull
            bends += pull * (-SIGN * (m + i)).to(logit.dtype)
        seen = gap
    return seen, logit, parts, pulls, bends


@triton.jit
def walk_column(
    values,
    a,
    projected,
    own,
    target,
    reach,
    scale,
    lowest,
    D: tl.constexpr,
    SIGN: tl.constexpr,
    STEPS: tl.constexpr,
):
    """The sums of :func:`column_steps` over one side of the diagonal."""
    parts = tl.zeros(own.shape, tl.float64)
    pulls = tl.zeros(own.shape, tl.float64)
    bends = tl.zeros(own.shape, tl.float64)
    logit = tl.zeros_like(own)
    seen = tl.zeros_like(own)
    most, least = tl.max(reach), tl.min(reach)
    m = tl.zeros((), tl.int32)
    alive = most > 1
    while alive:
        if m + STEPS < least:
            seen, logit, part, pull, bend = column_steps(
                values,
                a,
                projected,
                own,
                target,
                seen,
                logit,
                m,
                reach,
                scale,
                D,
                SIGN,
                STEPS,
                False,
            )
        else:
            seen, logit, part, pull, bend = column_steps(
                values,
                a,
                projected,
                own,
                target,
                seen,
                logit,
                m,
                reach,
                scale,
                D,
                SIGN,
                STEPS,
                True,
            )
        parts += part
        if projected is not None:
            pulls += pull
            bends += bend
        m += STEPS
        alive = goes_on(m, most, logit, lowest)
    return parts, pulls, bends


@triton.jit(do_not_specialize=["rows", "length", "batch", "searches", "apart"])
def columns_kernel(
    values,
    a,
    x,
    projected,
    temperature,
    result,
    sums,
    moments,
    rows,
    length,
    batch,
    searches,
    apart,
    lengths,
    offsets,
    D: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
    STEPS: tl.constexpr,
):
    """The result, where asked for, is P^T a, with a divided by the normaliser before. With x and
    projected = P x given, for the slope: the column sums of the gradient to the logits,
    a_r (x_j - projected_r) P_rj, and their moments, with j - r.
    """
    at, there, ahead, behind = locate(
        rows, length, batch, searches, apart, lengths, offsets, D, BR, BD
    )
    dtype: tl.constexpr = values.dtype.element_ty
    scale = steepness(temperature, dtype)
    lowest = faintest(ahead, behind, dtype)
    inside = ahead > 0
    own = tl.load(values + at, mask=inside, other=0.0)
    pull = tl.load(a + at, mask=inside, other=0.0)
    total = pull.to(tl.float64)
    target = own
    if projected is not None:
        target = tl.load(x + at, mask=inside, other=0.0)
        pull *= target - tl.load(projected + at, mask=inside, other=0.0)
        projected += at
    values += at
    a += at
    parts, pulls, bends = walk_column(
        values, a, projected, own, target, ahead, scale, lowest, D, 1, STEPS
    )
    more, others, turns = walk_column(
        values, a, projected, own, target, behind, scale, lowest, D, -1, STEPS
    )
    if result is not None:
        total = tl.where(ahead > 0, total + parts + more, 0.0)
        tl.store(result + at, total.to(dtype), mask=there)
    if projected is not None:
        tl.store(sums + at, pull.to(tl.float64) + pulls + others, mask=there)
        tl.store(moments + at, bends + turns, mask=there)


# --------------------------------------------------------------------------------------------------
# The rest of the slope


@triton.jit(do_not_specialize=["length", "batch", "apart"])
def running_kernel(
    sums, running, length, batch, apart, lengths, offsets, D, BR: tl.constexpr, BD: tl.constexpr
):
    """Running sums over every set: one program for a set and a few features."""
    blocks = tl.cdiv(D, BD)
    program = tl.program_id(0)
    feature = (program % blocks) * BD + tl.arange(0, BD)
    start, stop = set_bounds(
        (program // blocks).to(tl.int64), length, batch, apart, lengths, offsets
    )
    carry = tl.zeros((BD,), tl.float64)
    for first in range(start, stop, BR):
        row = first + tl.arange(0, BR)
        at = row[:, None] * D + feature[None, :]
        inside = (row < stop)[:, None] & (feature < D)[None, :]
        part = tl.load(sums + at, mask=inside, other=0.0)
        tl.store(running + at, tl.cumsum(part, 0) + carry[None, :], mask=inside)
        carry += tl.sum(part, 0)


@triton.jit(do_not_specialize=["rows", "length", "batch", "searches", "apart"])
def slope_kernel(
    values,
    sums,
    moments,
    running,
    temperature,
    result,
    rows,
    length,
    batch,
    searches,
    apart,
    lengths,
    offsets,
    D: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Put the slope together, with the sums over all larger and all smaller values: skip ties."""
    at, there, ahead, behind = locate(
        rows, length, batch, searches, apart, lengths, offsets, D, BR, BD
    )
    values += at
    own = tl.load(values, mask=ahead > 0, other=0.0)
    below = tl.broadcast_to(ahead > 0, (BR, BD))  # does the run of equal values go on?
    above = below
    after = tl.zeros((BR, BD), tl.int32)  # how many equal values follow, and precede
    before = tl.zeros((BR, BD), tl.int32)
    m = tl.zeros((), tl.int32)
    alive = length > 1
    while alive:
        for _ in tl.static_range(STEPS):
            m += 1
            away = m.to(tl.int64) * D
            inside = m < ahead
            below &= inside & (tl.load(values + away, mask=inside, other=0.0) == own)
            after += below.to(tl.int32)
            inside = m < behind
            above &= inside & (tl.load(values - away, mask=inside, other=0.0) == own)
            before += above.to(tl.int32)
        alive = tl.max((below | above).to(tl.int32)) > 0

    inside = ahead > 0
    running += at
    larger = tl.load(
        running - (before.to(tl.int64) + 1) * D, mask=inside & (before + 1 < behind), other=0.0
    )
    through = tl.load(running + after.to(tl.int64) * D, mask=inside, other=0.0)
    everything = tl.load(running + (ahead.to(tl.int64) - 1) * D, mask=inside, other=0.0)
    column = tl.load(sums + at, mask=inside, other=0.0)
    moment = tl.load(moments + at, mask=inside, other=0.0)
    slope = 2 * moment + (after - before) * column + (larger - (everything - through))
    slope /= tl.load(temperature).to(tl.float64)
    slope = tl.where(inside, slope, 0.0).to(result.dtype.element_ty)
    tl.store(result + at, slope, mask=there)
