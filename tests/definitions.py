"""What the kernels are held against: the definitions, and inputs that are hard for a sort."""

import torch

from fspool.functional import dispatch

from .layouts import NAMES, lay_out
from .reference import relative_error

INF, NAN = float("inf"), float("nan")


def by_definition(function):
    """Call it as if no operator were registered."""
    operators = dict(dispatch._operators)
    dispatch._operators.clear()
    try:
        return function()
    finally:
        dispatch._operators.update(operators)


def assert_same(got, exact, name, tolerance):
    """|difference| against the largest value; zeros where zeros are right."""
    got, exact = got.detach(), exact.detach()
    if exact.numel() == 0 or not exact.any():
        assert got.shape == exact.shape and not got.any(), name
    else:
        assert relative_error(got, exact) <= tolerance, name


def make_x(shape, kind, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if kind == "ties":
        return (2 * x).round() / 2  # many equal values, 0.0 and -0.0 among them
    if kind == "equal":
        return torch.full(shape, -0.7)
    if kind == "infinite":
        return torch.where(x > 1, INF, torch.where(x < -1, -INF, x))
    if kind == "wild":
        return x * 10.0 ** (20 * torch.rand(shape, generator=torch.Generator().manual_seed(1)) - 10)
    return x


def layouts_of(x):
    """A padded x (B, N, D) in every layout; the sizes count up from 0."""
    batch, length, _ = x.shape
    sizes = torch.linspace(0, length, batch).round().long()
    sets = [row[:n] for row, n in zip(x, sizes, strict=True)]
    yield "full", x, {}
    for name in NAMES[:3]:
        data, keywords, _ = lay_out(name, sets, junk=NAN)
        yield name, data, keywords
