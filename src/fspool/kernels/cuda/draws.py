"""Batches of point sets: their random order and their noise, in one kernel a call.

For :mod:`fspool.data.point_sets`, whose definition this follows: for the same seed, step and
purpose the same sets in the same order, and the same noise up to rounding. A program makes a set.
It does not sort: the place of a point is the number of keys that are smaller.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .counts import cdiv

LANES = 64  # places that a program looks at together
KEYS = 32  # keys that each of them is compared with at once
SHIFT = 32  # of a key of 64 bits, to the head that is compared first


def draw_sets(
    sets: tuple[Tensor, Tensor, Tensor],
    images: Tensor,
    streams: Tensor,
    sigma: float,
    length: int,
    side: int,
    mask: bool,
    everywhere: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Input, target, sizes and labels of some images (steps, G, B).

    sets: points (T, 2) uint8, offsets int64, labels uint8. streams (steps, G, 2): of the order and
    of the noise; without noise (steps, G, 1), and the input is the target.
    """
    shape, noise = images.shape, streams.shape[-1] == 2
    target = torch.empty(*shape, length, 2 + mask, dtype=dtype, device=images.device)
    noisy = torch.empty_like(target) if noise else target
    sizes = torch.empty(shape, dtype=torch.long, device=images.device)
    labels = torch.empty_like(sizes)
    if images.numel() == 0:
        return noisy, target, sizes, labels
    room = cdiv(length, LANES) * LANES
    scratch = torch.empty(images.numel(), 2, room, dtype=torch.int32, device=images.device)
    with torch.cuda.device_of(images):
        _draw[(images.numel(),)](
            *(*(t.contiguous() for t in sets), images.contiguous(), streams.contiguous()),
            *(scratch, noisy, target, sizes, labels, shape[-1], sigma),
            *(length, side, noise, mask, everywhere, room, SHIFT, LANES, KEYS),
            num_warps=cdiv(LANES, 32),
        )
    return noisy, target, sizes, labels


@triton.jit
def _mix(x):
    x = x * 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _bits(stream, entry):
    """64 random bits for each entry; unsigned, so that shifts fill with zeros."""
    return _mix(stream + _mix(entry.to(tl.uint64) + 1))


@triton.jit
def _uniform(stream, entry):
    return (_bits(stream, entry) >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2**-53


@triton.jit
def _normal(stream, pair):
    """Two standard normal numbers."""
    radius = tl.sqrt(-2.0 * tl.log(1.0 - _uniform(stream, 2 * pair)))  # 1 - u is exact
    angle = 6.283185307179586 * _uniform(stream, 2 * pair + 1)
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _key(stream, entry):
    """They are compared as signed integers."""
    return _bits(stream, entry).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=["batch"])
def _draw(
    points_ptr,
    offsets_ptr,
    labels_ptr,
    images_ptr,
    streams_ptr,
    scratch_ptr,
    input_ptr,
    target_ptr,
    size_ptr,
    label_ptr,
    batch,
    sigma: tl.float64,
    LENGTH: tl.constexpr,
    SIDE: tl.constexpr,
    NOISE: tl.constexpr,
    MASK: tl.constexpr,
    EVERYWHERE: tl.constexpr,
    ROOM: tl.constexpr,
    TAIL: tl.constexpr,
    WIDTH: tl.constexpr,
    BK: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    run, entry = number // batch, number % batch * LENGTH
    image = tl.load(images_ptr + number)
    first = tl.load(offsets_ptr + image)
    size = tl.load(offsets_ptr + image + 1) - first
    tl.store(size_ptr + number, size)
    tl.store(label_ptr + number, tl.load(labels_ptr + image).to(tl.int64))

    n = tl.minimum(size, LENGTH).to(tl.int32)
    lane = tl.arange(0, WIDTH)
    streams_ptr += run * (2 if NOISE else 1)
    stream = tl.load(streams_ptr).to(tl.uint64, bitcast=True)
    heads_ptr = scratch_ptr + number * (2 * ROOM)
    places_ptr = heads_ptr + ROOM
    for start in range(0, n, WIDTH):
        place = start + lane
        head = (_key(stream, entry + place) >> TAIL).to(tl.int32)
        tl.store(heads_ptr + place, tl.where(place < n, head, 0x7FFFFFFF))
    tl.debug_barrier()
    total = tl.zeros((WIDTH,), tl.int32)
    for start in range(0, n, WIDTH):
        place = start + lane
        own = tl.load(heads_ptr + place)
        rank = tl.zeros((WIDTH,), tl.int32)
        for k in range(0, n, BK):
            head = tl.load(heads_ptr + k + tl.arange(0, BK))
            rank += tl.sum((head[:, None] < own[None, :]).to(tl.int32), axis=0)
        tl.store(places_ptr + rank, place, mask=place < n)
        total += tl.where(place < n, rank, 0)
    tl.debug_barrier()
    if tl.sum(total) != n * (n - 1) // 2:  # equal heads: the whole keys, and where they lie
        for start in range(0, n, WIDTH):
            place = start + lane
            own = _key(stream, entry + place)
            rank = tl.zeros((WIDTH,), tl.int32)
            for k in range(0, n):
                other = _key(stream, entry + k + 0 * lane)
                rank += ((other < own) | ((other == own) & (k < place))).to(tl.int32)
            tl.store(places_ptr + rank, place, mask=place < n)
        tl.debug_barrier()

    if NOISE:
        stream = tl.load(streams_ptr + 1).to(tl.uint64, bitcast=True)
    axis = tl.arange(0, 2)[None, :]
    channels: tl.constexpr = 3 if MASK else 2
    end = LENGTH if EVERYWHERE else n
    for start in range(0, end, WIDTH):
        place = start + lane
        inside = place < n
        row = first + tl.load(places_ptr + place, mask=inside, other=0)
        point = tl.load(points_ptr + row[:, None] * 2 + axis, mask=inside[:, None], other=0)
        target = (point.to(tl.float64) / SIDE).to(target_ptr.dtype.element_ty)  # as if in dtype
        at = (number * LENGTH + place) * channels
        there = place < LENGTH
        tl.store(target_ptr + at[:, None] + axis, target, mask=there[:, None])
        if MASK:
            one = inside.to(target_ptr.dtype.element_ty)
            tl.store(target_ptr + at + 2, one, mask=there)
        if NOISE:
            halves: tl.constexpr = 2 if MASK and EVERYWHERE else 1  # pairs of numbers a place
            pair = (entry + place) * halves
            x, y = _normal(stream, pair)
            noise = (sigma * tl.join(x, y)).to(target_ptr.dtype.element_ty)
            if not EVERYWHERE:
                noise = tl.where(inside[:, None], noise, 0.0)
            tl.store(input_ptr + at[:, None] + axis, target + noise, mask=there[:, None])
            if MASK:
                if EVERYWHERE:
                    x, y = _normal(stream, pair + 1)
                    one += (sigma * x).to(target_ptr.dtype.element_ty)
                tl.store(input_ptr + at + 2, one, mask=there)
    zero = tl.zeros((WIDTH,), target_ptr.dtype.element_ty)
    rest = number * (LENGTH * channels) + lane
    for start in range(tl.cdiv(end, WIDTH) * WIDTH * channels, LENGTH * channels, WIDTH):
        there = start + lane < LENGTH * channels
        tl.store(target_ptr + rest + start, zero, mask=there)
        if NOISE:
            tl.store(input_ptr + rest + start, zero, mask=there)
