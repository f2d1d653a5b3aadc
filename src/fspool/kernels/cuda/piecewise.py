"""Device functions: the piecewise-linear weight of a rank."""

import triton
import triton.language as tl

FEW = tl.constexpr(8)  # knots up to which a thread has those of its features in registers
LOADED = tl.constexpr(64)  # knots that a tile of them has at most; more are looked up in memory


@triton.jit
def knot_of(rank, size, knots):
    """The knot left of a rank, and how far beyond it the rank lies, in 0..1.

    What is left over is counted in integers, so that a rank on a knot is on it. The half keeps the
    rounding of the other product away from the next knot.
    """
    span = tl.maximum(size - 1, 1)
    scale = 1.0 / span.to(tl.float32)
    left = (rank.to(tl.float32) * ((knots - 1) * scale) + 0.5 * scale).to(tl.int32)
    return left, (rank * (knots - 1) - left * span).to(tl.float32) * scale


@triton.jit
def load_weights(w_ptr, rank, size, d, inside, knots, stride_k, stride_d=1):
    """f(rank) for ranks that all features share, from the knots (k, D) of a replica."""
    left, beyond = knot_of(rank, size, knots)
    w_ptr += d * stride_d
    a = tl.load(w_ptr + left * stride_k, mask=inside, other=0.0)
    b = tl.load(w_ptr + tl.minimum(left + 1, knots - 1) * stride_k, mask=inside, other=0.0)
    return a + beyond * (b - a)


@triton.jit
def load_knots(w_ptr, d, knots, dim, stride_k, stride_d, KP: tl.constexpr):
    """The first KP knots of some features, for find_weights."""
    k = tl.arange(0, KP)[:, None]
    return tl.load(w_ptr + k * stride_k + d * stride_d, mask=(k < knots) & (d < dim), other=0.0)


@triton.jit
def find_weights(w, w_ptr, rank, size, d, inside, knots, stride_k, stride_d, KP: tl.constexpr):
    """f(rank) for ranks (BR, BD), from the knots w (KP, BD), or from memory if they are more.

    Anything for ranks beyond the size.
    """
    if KP > LOADED:
        inside &= (rank >= 0) & (rank < size)
        f = load_weights(w_ptr, rank, size, d, inside, knots, stride_k, stride_d)
    else:
        left, beyond = knot_of(rank, size, knots)
        a = tl.gather(w, tl.minimum(left, KP - 1), 0)
        b = tl.gather(w, tl.minimum(left + 1, KP - 1), 0)
        f = a + beyond * (b - a)
    return f


@triton.jit
def load_few(w_ptr, d, dim, stride_k, stride_d, K: tl.constexpr):
    """All K knots of some features, one by one, for select_weights."""
    w = ()
    for k in tl.static_range(K):
        w = w + (tl.load(w_ptr + k * stride_k + d * stride_d, mask=d < dim, other=0.0),)
    return w


@triton.jit
def select_weights(w, rank, size):
    """f(rank) for ranks (BR, BD), from few knots w, each (1, BD): nothing is looked up.

    What lies beyond a knot is counted in integers, so that a rank on a knot is on it. Anything for
    ranks beyond the size.
    """
    K: tl.constexpr = len(w)
    f = w[0] + tl.zeros(rank.shape, tl.float32)
    if K > 1:
        span = tl.maximum(size - 1, 1)
        scale = 1.0 / span.to(tl.float32)
        steps = rank * (K - 1)
        passed = rank * 0
        slope = (w[1] - w[0]) * scale
        for k in tl.static_range(1, K - 1):
            beyond = steps >= k * span
            f = tl.where(beyond, w[k], f)
            slope = tl.where(beyond, (w[k + 1] - w[k]) * scale, slope)
            passed = tl.where(beyond, k * span, passed)
        f += (steps - passed).to(tl.float32) * slope
        f = tl.where(steps == (K - 1) * span, w[K - 1], f)
    return f
