"""Sort every feature of every set with numpy: by packed keys where they fit, else by an argsort."""

from __future__ import annotations

import numpy as np

from .chunks import Chunk, keep_small, scratch


def rank_block(x: np.ndarray, chunk: Chunk, ranks: np.ndarray) -> np.ndarray:
    """Rank x (s, n, d) into the chunk of ``ranks``; return -x sorted, largest first, (s, d, n)."""
    packed = _sort_packed(x) if x.dtype == np.float32 and x.size < 1 << 26 else None
    positions, values = packed or _sort_stable(x)
    sets, size, dim = x.shape
    iota = _iota(size, sets * dim, ranks.dtype)
    if isinstance(chunk.rows, slice) and dim == ranks.shape[1]:
        ranks[chunk.rows].reshape(-1)[positions] = iota
    else:
        block = scratch("ranks", x.shape, ranks.dtype)
        block.reshape(-1)[positions] = iota
        chunk.put(ranks, block)
    return values


def sort_block(x: np.ndarray) -> np.ndarray:
    """The values alone, where nobody will ask for the ranks: half the bytes to sort."""
    sets, size, dim = x.shape
    keys = scratch("keys", (sets, dim, size), x.dtype)
    np.subtract(0, _by_feature(x), out=keys)
    keys.sort(-1)
    return keys


def _by_feature(x: np.ndarray) -> np.ndarray:
    """x (s, n, d) as (s, d, n), for reading.

    Rows whose length is a large power of two would all meet in the same few places of the cache, so
    those are first copied to longer rows.
    """
    sets, size, dim = x.shape
    if size >= 64 and x.strides[1] % 1024 == 0:
        rows = scratch("rows", (sets, size, dim + 8), x.dtype)[..., :dim]
        np.copyto(rows, x)
        x = rows
    return x.transpose(0, 2, 1)


def _sort_packed(x: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """One sort of float64 keys: minus the float32 value, its position in the 29 bits to spare.

    The position counts up in positive keys and down in negative ones, so that ties go by position.
    Read as a number, a key is the value to one part in 2^26 at the very worst. NaN and inf have no
    bits to spare: None.
    """
    sets, size, dim = x.shape
    keys = scratch("keys", (sets, dim, size), np.float64)
    # Not 0 - x: the key of a zero, of either sign, must not be denormal, which some flush to zero.
    np.subtract(np.finfo(np.float64).tiny, _by_feature(x), out=keys)
    bits = keys.view(np.int64)
    low = scratch("low", bits.shape, np.int64)
    mask = (1 << (x.size - 1).bit_length()) - 1
    np.right_shift(bits, 63, out=low)
    low ^= _positions(sets, size, dim)
    low &= mask
    bits |= low
    keys.sort(-1)
    if np.isnan(keys[..., -1]).any():  # what NaN and inf have become sorts last
        return None
    np.right_shift(bits, 63, out=low)
    low ^= bits
    low &= mask
    return low.reshape(-1), keys


def _sort_stable(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where value and position do not fit in one key: a stable argsort of integer keys."""
    x = np.ascontiguousarray(x.transpose(0, 2, 1), dtype=np.float64)
    bits = np.where(np.isnan(x), np.nan, x + 0.0).view(np.int64)  # one zero, one NaN
    keys = ~(bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF)))
    order = np.argsort(keys, axis=-1, kind="stable")
    sets, dim, size = x.shape
    positions = np.take_along_axis(_positions(sets, size, dim), order, -1)
    return positions.reshape(-1), -np.take_along_axis(x, order, -1)


@keep_small
def _iota(size: int, repeats: int, dtype: np.dtype) -> np.ndarray:
    return np.tile(np.arange(size, dtype=dtype), repeats)


@keep_small
def _positions(sets: int, size: int, dim: int) -> np.ndarray:
    """Position in a block (s, n, d), arranged as (s, d, n)."""
    positions = np.arange(sets * size * dim).reshape(sets, size, dim).transpose(0, 2, 1)
    return np.ascontiguousarray(positions)
