"""The formulas of the paper for one set at a time, in float64 and with loops."""

import torch


def weight_function(weight, r):
    """f(r, w) = sum_i max(0, 1 - |r (k - 1) - i|) w_i for one feature's knots."""
    k = len(weight)
    return sum(max(0.0, 1 - abs(r * (k - 1) - i)) * weight[i] for i in range(k))


def permutation(s, temperature):
    """P of one feature, rows by rank; hard where the temperature is None."""
    n = len(s)
    if temperature is None:
        order = sorted(range(n), key=lambda j: -float(s[j]))  # stable: ties by position
        return torch.eye(n, dtype=torch.float64)[order]
    total = (s[:, None] - s[None, :]).abs().sum(1)
    rows = [((n + 1 - 2 * i) * s - total) / temperature for i in range(1, n + 1)]
    return torch.stack([row.softmax(0) for row in rows])


def relative_ranks(n):
    return [j / max(n - 1, 1) for j in range(n)]


def pool_set(x, weight, temperature=None):
    """x (n, D) -> (D,)."""
    n, dim = x.shape
    y = torch.zeros(dim, dtype=torch.float64)
    for d in range(dim if n else 0):
        s = permutation(x[:, d], temperature) @ x[:, d]
        y[d] = sum(weight_function(weight[d], r) * s[j] for j, r in enumerate(relative_ranks(n)))
    return y


def unpool_set(z, weight, x, temperature=None):
    """z (D,) -> (n, D), unsorted by the sort of x (n, D)."""
    n, dim = x.shape
    out = torch.zeros(n, dim, dtype=torch.float64)
    for d in range(dim if n else 0):
        v = [weight_function(weight[d], r) * z[d] for r in relative_ranks(n)]
        out[:, d] = permutation(x[:, d], temperature).T @ torch.stack(v)
    return out


def relative_error(y, exact):
    """max |y - y64| / max |y64|."""
    return float((y.double() - exact).abs().max() / exact.abs().max())
