"""Device functions: sort and rank the columns of a tile that lies in registers.

A tile is (BN, BD): BN = R * C rows, padded to a power of two, of BD features. Groups of R rows are
sorted inside a thread, by Batcher's network; a bitonic one merges the groups.
Exchanges over less than R rows happen inside a thread (split and join), wider ones between the
lanes of a warp (gather): no shared memory, few instructions, and little for the compiler to do.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-2147483648)  # below the key of any number: padding


@triton.jit
def key_of(x, row):
    """Integers in the order of the numbers x, NaN above all.

    Those of 16 bits hold the row too, so that no two are equal and smaller rows come first.
    """
    if x.dtype.primitive_bitwidth == 16:
        bits = (x.to(tl.float32) + 0.0).to(x.dtype).to(tl.int16, bitcast=True).to(tl.int32)
        key = bits ^ ((bits >> 15) & 0x7FFF)
        key = (tl.where(x != x, 0x7FFF, key) << 16) | (0xFFFF - row)
    else:
        bits = (x + 0.0).to(tl.int32, bitcast=True)  # -0.0 becomes 0.0
        key = tl.where(x != x, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    return key


@triton.jit
def value_of(key, dtype: tl.constexpr):
    """The numbers whose keys these are."""
    if dtype.primitive_bitwidth == 16:
        bits = key >> 16
        x = (bits ^ ((bits >> 15) & 0x7FFF)).to(tl.int16).to(dtype, bitcast=True)
    else:
        x = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return x


@triton.jit
def _exchange(x, J: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """Rows at distance 2^J: the larger one first."""
    S: tl.constexpr = 1 << J
    A: tl.constexpr = BN // (2 * S)
    a, b = tl.split(tl.permute(tl.reshape(x, (A, 2, S * BD)), (0, 2, 1)))
    first, second = tl.maximum(a, b), tl.minimum(a, b)
    return tl.reshape(tl.permute(tl.join(first, second), (0, 2, 1)), (BN, BD))


@triton.jit
def _turned(x, level, R: tl.constexpr, C: tl.constexpr, BD: tl.constexpr):
    """Every other group of R * 2^level rows with its order reversed: ~ of an integer."""
    c = tl.arange(0, C)[:, None]
    return tl.reshape(tl.reshape(x, (C, R * BD)) ^ -((c >> level) & 1), (R * C, BD))


@triton.jit
def merge_tile(x, level, LOGR: tl.constexpr, R: tl.constexpr, C: tl.constexpr, BD: tl.constexpr):
    """Bitonic groups of R * 2^level rows into descending order."""
    c = tl.arange(0, C)[:, None]
    x = tl.reshape(x, (C, R * BD))
    s = (1 << level) >> 1
    while s > 0:
        other = tl.gather(x, (c ^ s) + tl.zeros((C, R * BD), tl.int32), 0)
        x = tl.where((c & s) == 0, tl.maximum(x, other), tl.minimum(x, other))
        s >>= 1
    x = tl.reshape(x, (R * C, BD))
    for i in tl.static_range(LOGR):
        x = _exchange(x, LOGR - 1 - i, R * C, BD)
    return x


@triton.jit
def _rows(x, C: tl.constexpr, R: tl.constexpr, BD: tl.constexpr):
    """The rows of every group, x (C, R * BD), as R tensors (C, BD)."""
    if R == 1:
        rows = (x,)
    else:
        a, b = tl.split(tl.permute(tl.reshape(x, (C, 2, (R // 2) * BD)), (0, 2, 1)))
        rows = _rows(a, C, R // 2, BD) + _rows(b, C, R // 2, BD)
    return rows


@triton.jit
def _whole(rows, C: tl.constexpr, R: tl.constexpr, BD: tl.constexpr):
    """R tensors of one row as one, (C, R * BD)."""
    if R == 1:
        x = rows[0]
    else:
        H: tl.constexpr = R // 2
        a, b = _whole(rows[:H], C, H, BD), _whole(rows[H:], C, H, BD)
        x = tl.reshape(tl.permute(tl.join(a, b), (0, 2, 1)), (C, R * BD))
    return x


@triton.jit
def _exchange_rows(rows, P: tl.constexpr, SET: tl.constexpr, BY: tl.constexpr):
    """The larger of two rows first, of all ``BY`` apart whose bit P is set, or is not set."""
    out = ()
    for i in tl.static_range(len(rows)):
        if ((i >> P) % 2 == SET) & (i + BY < len(rows)):
            out = out + (tl.maximum(rows[i], rows[i + BY]),)
        elif (i >= BY) & (((i - BY) >> P) % 2 == SET):
            out = out + (tl.minimum(rows[i - BY], rows[i]),)
        else:
            out = out + (rows[i],)
    return out


@triton.jit
def _sort_rows(rows, LOGR: tl.constexpr):
    """Batcher's merge exchange, which makes fewer exchanges than a bitonic sort."""
    for k in tl.static_range(LOGR):
        rows = _exchange_rows(rows, LOGR - 1 - k, 0, 1 << (LOGR - 1 - k))
        for i in tl.static_range(k):
            rows = _exchange_rows(
                rows, LOGR - 1 - k, 1, (1 << (LOGR - 1 - i)) - (1 << (LOGR - 1 - k))
            )
    return rows


@triton.jit
def sort_tile(x, LOGR: tl.constexpr, LOGC: tl.constexpr, BD: tl.constexpr):
    """The columns of integers (BN, BD) in descending order."""
    R: tl.constexpr = 1 << LOGR
    C: tl.constexpr = 1 << LOGC
    x = _turned(x, 0, R, C, BD)
    rows = _sort_rows(_rows(tl.reshape(x, (C, R * BD)), C, R, BD), LOGR)
    x = tl.reshape(_whole(rows, C, R, BD), (R * C, BD))
    x = _turned(x, 0, R, C, BD)
    for level in range(1, LOGC + 1):
        x = _turned(x, level, R, C, BD)
        x = merge_tile(x, level, LOGR, R, C, BD)
        x = _turned(x, level, R, C, BD)
    return x


@triton.jit
def _exchange_columns(x, S: tl.constexpr, BN: tl.constexpr, W: tl.constexpr):
    """Columns at distance S: the larger numbers first."""
    A: tl.constexpr = W // (2 * S)
    a, b = tl.split(tl.permute(tl.reshape(x, (BN, A, 2, S)), (0, 1, 3, 2)))
    first, second = tl.maximum(a, b), tl.minimum(a, b)
    return tl.reshape(tl.permute(tl.join(first, second), (0, 1, 3, 2)), (BN, W))


@triton.jit
def sort_blocks(x, LOGR: tl.constexpr, LOGC: tl.constexpr, LOGQ: tl.constexpr, BD: tl.constexpr):
    """Columns of 2^LOGQ blocks of rows, which lie beside one another, in descending order: x is
    (BN, blocks * BD)."""
    BN: tl.constexpr = 1 << (LOGR + LOGC)
    W: tl.constexpr = BD << LOGQ
    q = (tl.arange(0, W) // BD)[None, :]
    x = sort_tile(x ^ -(q & 1), LOGR, LOGC, W) ^ -(q & 1)
    for level in tl.static_range(1, LOGQ + 1):
        turned = -((q >> level) & 1)
        x ^= turned
        for i in tl.static_range(level):
            x = _exchange_columns(x, BD << (level - 1 - i), BN, W)
        x = merge_tile(x, LOGC, LOGR, 1 << LOGR, 1 << LOGC, W) ^ turned
    return x


@triton.jit
def _count_larger(x, key, group, count, H: tl.constexpr, C: tl.constexpr, BD: tl.constexpr):
    """Add to count how many of x[group], x (C, H, BD), are larger than the key."""
    if H == 1:
        larger = tl.gather(tl.reshape(x, (C, BD)), group, 0) > key
        count = tl.where(larger, count + 1, count)
    else:
        a, b = tl.split(tl.permute(tl.reshape(x, (C, 2, (H // 2) * BD)), (0, 2, 1)))
        count = _count_larger(a, key, group, count, H // 2, C, BD)
        count = _count_larger(b, key, group, count, H // 2, C, BD)
    return count


@triton.jit
def count_larger(x, key, LOG: tl.constexpr, BD: tl.constexpr):
    """For every key how many in its column of sorted x (2^LOG, BD) are larger.

    A search among at most 32 groups, whose first elements one warp can hold, then a count in one.
    Up to 2^5 rows the key has to be one of them, so that not all are larger.
    """
    LOGC: tl.constexpr = min(LOG, 5)
    C: tl.constexpr = 1 << LOGC
    H: tl.constexpr = 1 << (LOG - LOGC)
    groups = tl.reshape(x, (C, H, BD))
    first = tl.max(groups, axis=1)
    group = tl.zeros(key.shape, tl.int32)
    for i in tl.static_range(LOGC):
        step = C >> (i + 1)
        probe = group + step - (1 if H == 1 else 0)  # groups of one are counted themselves
        group = tl.where(tl.gather(first, probe, 0) > key, group + step, group)
    if H == 1:
        return group
    return _count_larger(groups, key, group, group * H, H, C, BD)


@triton.jit
def one_group(rank, size, inside):
    """Let the equal elements of a column follow one another where they are all one group.

    That is the usual accident, or the zeros of a ReLU. A group of m at rank r leaves the sum of the
    ranks short of m (m - 1) / 2, and the sum of their squares short of a number that gives r.
    Returns the ranks, and 1 for columns that have more groups, whose ranks stay as they are. Rows
    that are no elements have rank -1.
    """
    ranks = tl.maximum(rank, 0)
    short = size * (size - 1) // 2 - tl.sum(ranks, axis=0)[None, :]
    squares = (size - 1) * size * (2 * size - 1) // 6 - tl.sum(ranks * ranks, axis=0)[None, :]
    m = ((1 + tl.sqrt((8 * short + 1).to(tl.float32))) * 0.5 + 0.5).to(tl.int32)
    r = (squares - (m - 1) * m * (2 * m - 1) // 6) // tl.maximum(2 * short, 1)
    group = (rank == r) & (short > 0)
    one = (tl.sum(group.to(tl.int32), axis=0)[None, :] == m) & (m * (m - 1) // 2 == short)
    group = (group & one).to(tl.int32)
    rank += group * (tl.cumsum(group, axis=0) - group)
    return rank, (inside & (short > 0) & (one == 0)).to(tl.int32)


@triton.jit
def _take_places(ranks):
    """Each element in turn takes the first free place from its rank on, of at most 32 in all."""
    ones = tl.full(ranks[0].shape, 0xFFFFFFFF, tl.uint32)
    free = ones
    out = ()
    for i in tl.static_range(len(ranks)):
        rank = ranks[i].to(tl.uint32)
        ahead = free >> rank
        first = ahead & ((ahead - 1) ^ ones)
        free ^= first << rank
        further = (first.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127  # its logarithm
        out = out + (ranks[i] + further,)
    return out


@triton.jit
def take_places(rank, LOGR: tl.constexpr, BD: tl.constexpr):
    """Equal elements all have the rank of their first one: let them follow one another by row.

    For columns of at most 32 rows that lie in one thread each; sooner than a sort.
    """
    R: tl.constexpr = 1 << LOGR
    ranks = _take_places(_rows(tl.reshape(rank, (1, R * BD)), 1, R, BD))
    return tl.reshape(_whole(ranks, 1, R, BD), (R, BD))


@triton.jit
def tie_key(rank, row, element, LOG: tl.constexpr):
    """Integers that sort elements of one set by rank, and those of equal rank by row."""
    return tl.where(element, -((rank << LOG) | row), LOWEST)


@triton.jit
def rank_again(rank, row, element, LOGR: tl.constexpr, LOGC: tl.constexpr, BD: tl.constexpr):
    """Equal elements all have the rank of their first one: let them follow one another by row."""
    key = tie_key(rank, row, element, LOGR + LOGC)
    return count_larger(sort_tile(key, LOGR, LOGC, BD), key, LOGR + LOGC, BD)
