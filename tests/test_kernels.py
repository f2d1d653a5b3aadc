"""The registered operators against the definitions: values, orders and gradients, ties included."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspool
from fspool.functional import by_rank, dispatch, fspool_vjp, fsunpool, relaxed_sort
from fspool.functional import fspool as pool_function
from fspool.kernels import permutation as permutation_kernels
from fspool.kernels import pool as pool_kernels
from fspool.kernels import relaxed_sort as relaxed_kernels
from fspool.kernels.cpu import chamfer as cpu_chamfer
from fspool.kernels.cpu import chunks, small_sets
from fspool.kernels.cpu.relaxed_sort import walk
from fspool.kernels.operator import SHARED
from fspool.losses.chamfer import nearest_definition

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


@pytest.fixture(params=["small sets sorted", "small sets compared"])
def small(request, monkeypatch):
    """Small sets are compared row by row where there are many: here where there are few, too."""
    if request.param.endswith("compared"):
        monkeypatch.setattr(small_sets, "COLUMNS", 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["random", "ties", "equal", "infinite", "wild"])
@pytest.mark.parametrize("n", [1, 2, 3, 16, 24, 33, 300])
def test_ranks_are_those_of_the_definition(n, kind, dtype):
    for name, x, keywords in layouts_of(make_x((6, n, 3), kind).to(dtype)):
        weight = torch.randn(3, 4)

        def ranks(x=x, weight=weight, keywords=keywords):
            return pool_function(x, weight, return_order=True, **keywords)[1].ranks.long()

        assert torch.equal(ranks(), by_definition(ranks)), name


@pytest.mark.usefixtures("small")
def test_nan_sorts_before_everything_and_ties_go_by_position():
    x = torch.tensor([1.0, NAN, INF, 1.0, -NAN, -0.0, 0.0, -INF])[None, :, None]
    for dtype in (torch.float32, torch.float64):
        _, order = pool_function(x.to(dtype), torch.ones(1, 2), return_order=True)
        assert order.indices.flatten().tolist() == [1, 4, 2, 0, 3, 5, 6, 7]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", ["random", "ties", "equal"])
@pytest.mark.parametrize("n", [1, 2, 10, 64, 700])
def test_values_and_gradients_are_those_of_the_definition(n, kind):
    base = make_x((5, n, 4), kind)
    for name, x, keywords in layouts_of(base):
        weight, other = torch.randn(4, 7), torch.randn(4, 7)

        def everything(x=x, keywords=keywords, weight=weight, other=other):
            data, w, u = (t.double().requires_grad_() for t in (x, weight, other))
            y, order = pool_function(data, w, return_order=True, **keywords)
            out = fsunpool(y.sin(), u, order)
            loss = (out * torch.arange(4)).cos().sum()
            gradients = torch.autograd.grad(loss, (data, w, u), create_graph=True)
            second = sum(g.square().sum() for g in gradients)
            names = ("y", "unpooled", "dx", "dw", "du", "d2x", "d2w", "d2u")
            seconds = torch.autograd.grad(second, (data, w, u))
            return dict(zip(names, (y, out, *gradients, *seconds), strict=True))

        exact = by_definition(everything)
        for key, value in everything().items():
            assert_same(value, exact[key], f"{name} {key}", 1e-10)

        def single(dtype, x=x, keywords=keywords, weight=weight):
            data, w = x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
            y = pool_function(data, w, **keywords)
            return y, *torch.autograd.grad(y, (data, w), torch.ones_like(y))

        exact = by_definition(lambda f=single: f(torch.float64))
        for key, got, truth in zip("y dx dw".split(), single(torch.float32), exact, strict=True):
            assert_same(got, truth, f"{name} {key}", 1e-6)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("n", [1, 5, 20, 128, 1000, 4097])
@pytest.mark.parametrize("kind", ["random", "ties"])
def test_hard_pool_in_float32_is_right_to_a_millionth(n, kind):
    x, weight = make_x((3, n, 8), kind), torch.randn(8, 20)
    exact = by_definition(lambda: pool_function(x.double(), weight.double()))
    for gradient in (False, True):  # without a gradient nothing is ranked
        y = pool_function(x.clone().requires_grad_(gradient), weight)
        assert relative_error(y.detach(), exact) < 1e-6


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("layout", NAMES[:3])
def test_pooling_without_gradients_sorts_the_same(layout):
    sets = [
        make_x((n, 3), kind) for n, kind in ((0, "ties"), (7, "ties"), (7, "infinite"), (1, ""))
    ]
    x, keywords, _ = lay_out(layout, sets, junk=NAN)
    weight = torch.randn(3, 5)
    with_order, _ = pool_function(x, weight, return_order=True, **keywords)
    torch.testing.assert_close(pool_function(x, weight, **keywords), with_order, equal_nan=True)


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    groups=st.integers(1, 3),
    dim=st.integers(1, 5),
    limit=st.sampled_from([1, 7, 64, chunks.LIMIT]),
    columns=st.sampled_from([1, small_sets.COLUMNS]),
    layout=st.sampled_from(["mask", "sizes", "offsets"]),
    temperature=st.sampled_from([None, 1.0]),
    seed=st.integers(0, 99),
)
def test_a_replica_is_the_single_run_and_chunks_leave_no_trace(
    sizes, groups, dim, limit, columns, layout, temperature, seed
):
    generator = torch.Generator().manual_seed(seed)
    runs = []
    for _ in range(groups):
        sets = [torch.randn(n, dim, generator=generator) for n in sizes]
        runs.append(lay_out(layout, sets)[:2])
    x = torch.stack([run[0] for run in runs]).requires_grad_()
    keywords = {key: torch.stack([run[1][key] for run in runs]) for key in runs[0][1]}
    if layout == "offsets":
        keywords = runs[0][1]  # shared by all replicas
    weight = torch.randn(groups, dim, 4, generator=generator, requires_grad=True)

    def autoencode(x, weight, keywords):
        y, order = pool_function(x, weight, temperature=temperature, return_order=True, **keywords)
        out = fsunpool(y, weight, order)
        return y, out, *torch.autograd.grad(out.square().sum(), (x, weight))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "LIMIT", limit)
        patch.setattr(chunks, "REMEMBERED", 0)
        patch.setattr(small_sets, "COLUMNS", columns)
        together = autoencode(x, weight, keywords)
    for g in range(groups):
        own = keywords if layout == "offsets" else {k: v[g] for k, v in keywords.items()}
        alone = autoencode(x[g].detach().requires_grad_(), weight[g].detach().requires_grad_(), own)
        for a, b in zip(together, alone, strict=True):
            torch.testing.assert_close(a[g], b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [16, 128, 342])
def test_a_stored_permutation_is_right_to_a_millionth(n):
    x, v = torch.randn(4, n, 4) + 0.5, torch.randn(4, n, 4)
    y, order = relaxed_sort(x, temperature=1.0, return_order=True)
    assert order.p is not None
    exact, exact_order = by_definition(
        lambda: relaxed_sort(x.double(), temperature=1.0, return_order=True)
    )
    assert relative_error(y, exact) < 1e-6
    assert (
        relative_error(order.unsort(v), by_definition(lambda: exact_order.unsort(v.double())))
        < 1e-6
    )


@pytest.mark.parametrize("shift", [0, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.01, 0.001])
def test_float32_is_enough_in_every_layout_and_transform(temperature, shift):
    """Logits are differences of numbers a million times as large. In gradients, differences of x
    are divided by the temperature, and their rounding with them."""
    weight = torch.randn(2, 3, 5)

    def gradient(x, knots, keywords, vjp):
        def auto_encoder(x):
            y, order = pool_function(
                x, knots[0], temperature=temperature, return_order=True, **keywords
            )
            return fsunpool(y, knots[1], order)

        y = auto_encoder(x)
        if vjp:
            out, pull = torch.func.vjp(auto_encoder, x)
            return y, pull(torch.ones_like(out))[0]
        x = x.detach().requires_grad_()
        return y, torch.autograd.grad(auto_encoder(x).sum(), x)[0]

    for name, x, keywords in layouts_of(make_x((3, 150, 3), "plain") + shift):
        clean = x.double().nan_to_num(shift)
        for vjp in (False, True):
            got = gradient(x, weight, keywords, vjp)
            exact = gradient(clean, weight.double(), keywords, vjp)
            assert_same(got[0], exact[0], name, 1e-6)
            if not shift:
                assert_same(got[1], exact[1], f"{name}, {vjp=}", 4e-6 / temperature)


def test_what_is_kept_of_the_weight_function_does_not_grow_with_the_sets():
    pool = fspool.FSPool(1)
    tracemalloc.start()
    for n in range(30_000, 30_040):
        pool(torch.ones(1, n, 1)).sum().backward()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 5e6  # the weights of all would be 19 MB


@pytest.mark.usefixtures("walking")
@pytest.mark.parametrize("n", [342, 1024])
def test_relaxed_sort_is_right_to_a_hundred_thousandth_alone_padded_and_packed(n):
    x, v = torch.randn(1, n, 4), torch.randn(1, n, 4)
    exact, exact_order = by_definition(
        lambda: relaxed_sort(x.double(), temperature=1.0, return_order=True)
    )
    exact_back = by_definition(lambda: exact_order.unsort(v.double()))
    alone, order = relaxed_sort(x, temperature=1.0, return_order=True)
    assert order.normaliser is not None  # the operator ran
    assert relative_error(alone, exact) < 1e-5
    assert relative_error(order.unsort(v), exact_back) < 1e-5

    junk = torch.full((1, n, 4), NAN)
    padded, order = relaxed_sort(
        torch.cat((x, junk), 1), sizes=torch.tensor([n]), return_order=True
    )
    assert torch.equal(padded[:, :n], alone) and (padded[:, n:] == 0).all()
    back = order.unsort(torch.cat((v, junk), 1))
    assert relative_error(back[:, :n], exact_back) < 1e-5 and (back[:, n:] == 0).all()

    packed = relaxed_sort(x[0], offsets=torch.tensor([0, n]))
    assert torch.equal(packed, alone[0])


@pytest.mark.parametrize("how", ["walking", "stored"])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("kind", ["random", "ties", "equal"])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 40, 130])
def test_relaxed_gradients_are_those_of_the_definition(n, kind, temperature, how, request):
    if how == "walking":
        request.getfixturevalue("walking")
    for name, x, keywords in layouts_of(make_x((4, n, 3), kind).double()):
        weight, other = torch.randn(2, 3, 4, dtype=torch.float64)

        def everything(x=x, keywords=keywords, weight=weight, other=other):
            x, w, u = (t.clone().requires_grad_() for t in (x, weight, other))
            y, order = pool_function(x, w, temperature=temperature, return_order=True, **keywords)
            out = fsunpool(y.sin(), u, order)
            pulled = fspool_vjp(y.detach().cos(), w, order)
            first = torch.autograd.grad((out + pulled).sin().sum(), (x, w, u), create_graph=True)
            second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, w, u))
            return y, out, pulled, *first, *second

        names = "y unpooled pulled dx dw du d2x d2w d2u".split()
        for key, got, exact in zip(names, everything(), by_definition(everything), strict=True):
            assert_same(got, exact, f"{name} {key}", 1e-8)


@pytest.mark.parametrize("how", ["walking", "stored"])
@pytest.mark.parametrize(
    "kind, n, temperature, tolerance",
    [
        ("random", 342, 1e-3, 1e-4),
        ("far", 342, 1e-3, 2e-3),  # far from 0: x itself has few digits of its differences
        ("three", 342, 1.0, 1e-4),
        ("three", 342, 1e-3, 1e-5),
        ("equal", 300, 1e-3, 1e-5),
    ],
)
def test_relaxed_gradients_in_float32_keep_their_digits(
    kind, n, temperature, tolerance, how, request
):
    """At ties, far from 0, nearly hard: what should cancel there is multiplied by n / tau."""
    if how == "walking":
        request.getfixturevalue("walking")
    x = {
        "random": torch.randn(2, n, 4),
        "far": 10 + torch.randn(2, n, 4),
        "three": torch.tensor([0.1, 0.7, 1.3])[torch.randint(3, (2, n, 4))],
        "equal": torch.full((2, n, 4), 10.1),
    }[kind]
    weight = torch.randn(4, 5)

    def slope(x, weight):
        x = x.clone().requires_grad_()
        y = pool_function(x, weight, temperature=temperature)
        return torch.autograd.grad(y.square().sum(), x)[0]

    exact = by_definition(lambda: slope(x.double(), weight.double()))
    assert relative_error(slope(x, weight), exact) < tolerance


@pytest.mark.parametrize("how", ["walking", "stored", "definition"])
def test_only_differences_matter_to_a_relaxed_sort(how, request):
    """Times of one second, as seconds since 1970; and temperatures from which logits overflow."""
    if how == "walking":
        request.getfixturevalue("walking")

    def order(x, temperature):
        def make():
            return relaxed_sort(x, temperature=temperature, return_order=True)

        return by_definition(make) if how == "definition" else make()

    times = torch.randint(1 << 20, (1, 100, 1)).double() / (1 << 20)
    v = torch.randn(1, 100, 1, dtype=torch.float64)
    near, far = (order(x, 1e-3)[1].unsort(v) for x in (times, times + 1.7e9))
    torch.testing.assert_close(far, near, rtol=0, atol=1e-9)
    x = 1e10 * torch.randn(1, 5, 1, dtype=torch.float64)
    if how != "definition":
        assert torch.equal(order(x, 1e-305)[0], x.sort(1, descending=True).values)


def test_numpy_raises_nothing_whatever_it_was_told():
    """Infinite gradients are usual where losses are scaled."""
    weight = torch.tensor([[1.0, 0.0]]).expand(3, 2)
    with np.errstate(all="raise"):
        for sets in (4, 600):
            x = torch.randn(sets, 30, 3, requires_grad=True)
            (dx,) = torch.autograd.grad(pool_function(x, weight), x, torch.full((sets, 3), INF))
            assert dx.isinf().any()
            assert pool_function(1e-20 * x, 1e-25 * weight).isfinite().all()


@pytest.mark.usefixtures("walking")
@pytest.mark.parametrize("layout", NAMES[:3])
@pytest.mark.parametrize("kind", ["random", "ties", "equal"])
def test_relaxed_sets_that_share_a_block_are_what_each_is_alone(kind, layout):
    sizes = [31, 33, 0, 32, 1, 30, 2, 33, 29]
    sets = [make_x((n, 3), kind).double() for n in sizes]
    sets = [own - own.amin(0) if len(own) else own for own in sets]  # 0 must not tie with padding
    x, keywords, gather = lay_out(layout, sets, junk=NAN)
    weight = torch.randn(3, 5, dtype=torch.float64)

    def autoencode(x, **keywords):
        x, w = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y, order = pool_function(x, w, temperature=0.5, return_order=True, **keywords)
        out = fsunpool(y.sin(), w, order)
        return y, out, *torch.autograd.grad(out.cos().sum(), (x, w)), order

    y, out, dx, dw, order = autoencode(x, **keywords)
    layout_by_rank = by_rank.lengths_by_rank(order.sets)
    blocks = chunks.plan(order.values.shape, None, *layout_by_rank, 1 << 20, join=True)
    assert sum(block.sizes is not None for block in blocks) == 1  # most of them share one
    alone = [autoencode(own.unsqueeze(0)) for own in sets]
    for n, *pairs in zip(sizes, gather(out), gather(dx), y, alone, strict=True):
        *got, each = pairs
        exact = each[1][0], each[2][0], each[0][0]
        for name, a, b in zip(("unpooled", "dx", "y"), got, exact, strict=True):
            assert_same(a, b, f"{name} of {n}", 1e-10)
    assert_same(dw, sum(each[3] for each in alone), "dw", 1e-10)


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    dim=st.integers(1, 5),
    limit=st.sampled_from([1, 7, 64, None]),
    packed=st.booleans(),
    free=st.sampled_from([0, 20]),
)
def test_chunks_hold_every_element_once_and_little_padding(sizes, dim, limit, packed, free):
    lengths, length = torch.tensor(sizes, dtype=torch.int64), max(sizes, default=0) + 1
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    shape = (1, sum(sizes), dim) if packed else (1, len(sizes), length, dim)
    layout = (None, offsets) if packed else (lengths.unsqueeze(0), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "FREE", free)
        patch.setattr(chunks, "REMEMBERED", 0)
        blocks = chunks.plan(shape, None, *layout, limit, join=True)
    x = np.arange(1.0, 1 + np.prod(shape)).reshape(-1, dim)
    written, times = np.zeros_like(x), np.zeros_like(x)
    for block in blocks:
        own = lengths.numpy()[block.sets]
        assert block.shape[1] == block.size == own.max()
        waste = block.size * len(own) - own.sum()
        assert waste * chunks.WASTE <= block.size * len(own) or waste * dim <= free
        block.put(written, block.take(x))
        block.put(times, block.take(times) + 1)
    inside = np.arange(length) < lengths.numpy()[:, None]
    inside = np.ones(len(x), bool) if packed else inside.reshape(-1)
    assert (times == inside[:, None]).all()
    assert (written == np.where(inside[:, None], x, 0)).all()


def test_the_walk_visits_every_entry_that_counts():
    """Against the matrix itself: nothing above the rounding of the row is left out."""
    s = torch.randn(1, 200, 2, dtype=torch.float64).sort(1, descending=True).values
    one = torch.ones((), dtype=torch.float64)
    seen = torch.eye(200, dtype=torch.float64).expand(2, -1, -1).clone()
    for rows, columns, step, entries in walk(s, one):
        assert columns.start - rows.start == step
        index = torch.arange(rows.start, rows.stop)
        seen[:, index, index + step] = entries[0].T
    definition = fspool.functional.relaxed_sort.__globals__["permutation_definition"]
    p = definition(s, one)[0].movedim(-1, 0)
    torch.testing.assert_close(seen / seen.sum(-1, keepdim=True), p, rtol=0, atol=1e-12)
    assert (seen > 0).double().mean() < 0.7  # and it is a band


@pytest.mark.usefixtures("walking")
def test_the_relaxed_sort_of_nan_ends_and_stays_in_its_feature():
    x = torch.randn(2, 50, 3)
    x[1, 4, 2] = NAN
    for sizes in (None, torch.tensor([50, 48]), torch.tensor([47, 50])):
        y = pool_function(x, torch.ones(3, 2), sizes=sizes, temperature=1.0)
        assert y.isnan().tolist() == [[False, False, False], [False, False, True]]


@pytest.mark.usefixtures("walking")
@pytest.mark.parametrize("layout", NAMES[:3])
def test_derivatives_by_the_operators_that_only_devices_use(layout, monkeypatch):
    monkeypatch.setattr(by_rank, "on_device", dispatch.fastest)
    sets = [torch.randn(n, 2, dtype=torch.float64) for n in (4, 0, 3)]
    x, keywords, _ = lay_out(layout, sets, extra=1)
    weight, other = torch.randn(2, 2, 3, dtype=torch.float64)

    def function(x, weight, other):
        y, order = pool_function(x, weight, temperature=0.7, return_order=True, **keywords)
        return fsunpool(y, other, order), fspool_vjp(y, weight, order)

    inputs = [t.requires_grad_() for t in (x, weight, other)]
    expected = by_definition(lambda: function(*inputs))
    for got, truth in zip(function(*inputs), expected, strict=True):
        torch.testing.assert_close(got, truth)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(lambda *given: function(*given)[0], inputs)


@given(
    sizes=st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(1, 9)),
    channels=st.integers(1, 3),
    cost=st.sampled_from(["squared", "huber"]),
    masked=st.booleans(),
    piece=st.sampled_from([1, 8, 30, 1 << 16]),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
    seed=st.integers(0, 99),
)
def test_the_nearest_are_those_of_the_definition(sizes, channels, cost, masked, piece, dtype, seed):
    """Halves: many are equally near, of which the first is taken."""
    (sets, n, m), generator = sizes, torch.Generator().manual_seed(seed)
    a, b = (
        (torch.randn(sets, 1, k, channels, generator=generator) * 3).round().to(dtype) / 2
        for k in (n, m)
    )
    mask = torch.rand(sets, 1, m, generator=generator) < 0.7 if masked else None
    if masked:
        b = b.masked_fill(~mask.unsqueeze(-1), NAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_chamfer, "PIECE", piece)
        index = torch.ops.fspool.nearest(a, b, mask, cost)
    wide = torch.promote_types(dtype, torch.float32)
    exact = nearest_definition(a.to(wide), b.to(wide), mask, cost)
    assert torch.equal(index, exact)


def operator_calls():
    """Arguments for every operator, padded with sizes, mask and packed."""

    def random(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    x, weight = random(2, 3, 5, 4), random(2, 4, 3)
    lengths = torch.tensor([[5, 0, 2], [1, 5, 3]])
    mask = torch.rand(2, 3, 5) > 0.4
    packed, offsets = random(2, 15, 4), torch.tensor([0, 4, 4, 15])
    for data, sets in (
        (x, (None, None, None)),
        (x, (None, lengths, None)),
        (x, (mask, None, None)),
        (packed, (None, None, offsets)),
        (packed, (None, None, torch.tensor([[0, 4, 4, 13], [0, 4, 4, 15]]))),
    ):
        z = random(2, 3, 4)
        ranks = pool_kernels.ranks(data, *sets)
        kept = pool_kernels.pool(data, weight, *sets, False, True)[2]
        yield "pool", (data, weight, *sets, True, True)
        yield "pool", (data, weight, *sets, False, False)
        yield "ranks", (data, *sets)
        yield "pool_ranked", (data, weight, ranks, *sets)
        yield "unpool", (z, weight, ranks, *sets, data.shape[-2])
        yield "to_ranks", (data, ranks, *sets)
        yield "from_ranks", (data, ranks, *sets)
        yield "knots", (z, data, ranks, *sets, 3, torch.float64)
        yield "pull", (z, data, weight, ranks, kept, *sets)
        if sets[0] is None:
            yield "pool_ranked", (data, weight, None, *sets)
            yield "unpool", (z, weight, None, *sets, data.shape[-2])
            yield "knots", (z, data, None, *sets, 3, torch.float64)
            values = torch.ops.fspool.to_ranks(data, ranks, *sets)
            tail = (torch.tensor(0.5).double(), None, *sets[1:])
            projected, normaliser = relaxed_kernels.sort(values, data, *tail)
            tail = (torch.tensor(0.5).double(), normaliser, *sets[1:])
            if sets == (None, None, None):
                p = permutation_kernels.permutation(values, tail[0])
                yield "permutation", (values, tail[0])
                yield "permutation_pull", (values, tail[0], p, torch.randn_like(p))
            yield "relaxed_sort", (values, data, *tail)
            yield "relaxed_unsort", (values, data, *tail)
            yield "relaxed_slope", (values, projected, data, projected, *tail)
            yield "relaxed_pull", (values, projected, data, projected, *tail)
    a, b, mask = random(2, 3, 5, 2), random(2, 3, 5, 2), torch.rand(2, 3, 5) < 0.7
    yield "nearest", (a, b, None, "squared")
    yield "nearest", (a, b, mask, "huber")
    table, words = random(2, 6, 16), torch.randint(6, (2, 3, 5))
    start = torch.tensor([[0, 2, 5], [1, 0, 3]])
    yield "lstm", (table, random(2, 16, 4), words, start, True)
    yield "lstm", (random(2, 3, 5, 16), random(2, 16, 4), None, None, True)
    read = torch.ops.fspool.lstm(table, random(2, 16, 4), words, start, True)
    yield "lstm_pull", (random(2, 3, 4), random(2, 3, 4), random(2, 16, 4), start, *read[2:])
    yield "assign", (random(4, 3, 5),)
    lstm = random(2, 3, 4), random(2, 16, 4), random(2, 16)
    hidden, cells = torch.ops.fspool.recurrence(*lstm, 5)
    yield "recurrence", (*lstm, 5)
    yield "recurrence_pull", (random(2, 3, 5, 4), hidden, cells, *lstm)
    starts, sources = torch.tensor([[0, 1, 2, 2], [0, 2, 3, 4]]), torch.tensor([[1, 0], [1, 2]])
    sources = torch.cat((sources, torch.tensor([[9, -9], [0, 0]])), 1)  # 9 and -9: not used
    yield "neighbour_sum", (random(2, 3, 4), starts, sources, 0.5)
    norm = random(2, 5, 4), torch.tensor([3, 5]), *(random(2, 4) for _ in range(3))
    norm += (torch.rand(2, 4).double(),)
    _, mean, var, *_ = torch.ops.fspool.row_norm(*norm, 1e-5, 0.1, True)
    yield "row_norm", (*norm, 1e-5, 0.1, True)
    yield "row_norm_pull", (random(2, 5, 4), *norm[:3], mean, var, 1e-5, True)


def test_opcheck_of_every_operator():
    checked = set()
    for name, arguments in operator_calls():
        differentiable = name not in ("ranks", "nearest", "assign") and not name.endswith("pull")
        differentiable |= name == "permutation_pull"
        differentiable &= (name, arguments[-1]) != ("pool", False)
        if differentiable:
            arguments = [
                a.clone().requires_grad_()
                if isinstance(a, torch.Tensor) and a.is_floating_point() and a.ndim
                else a
                for a in arguments
            ]
        operator = getattr(torch.ops.fspool, name).default
        torch.library.opcheck(operator, tuple(arguments))
        checked.add(name)
    assert checked == {name for name, _ in dispatch._operators}


def test_vmap_of_every_operator_is_a_loop():
    for name, arguments in operator_calls():
        operator = getattr(torch.ops.fspool, name).default
        own = [argument.name not in SHARED for argument in operator._schema.arguments]
        dims = [
            0 if isinstance(a, torch.Tensor) and mapped else None
            for a, mapped in zip(arguments, own, strict=True)
        ]
        pairs = zip(arguments, dims, strict=True)
        stacked = [a if d is None else torch.stack((a, a)) for a, d in pairs]
        got = torch.func.vmap(operator, tuple(dims))(*stacked)
        expected = operator(*arguments)
        for a, b in zip(
            got if isinstance(got, tuple) else (got,),
            expected if isinstance(expected, tuple) else (expected,),
            strict=True,
        ):
            assert torch.equal(a, torch.stack((b, b))), name


def assert_vmap_is_a_loop(function, *arguments):
    got = torch.func.vmap(function)(*arguments)
    expected = [function(*each) for each in zip(*arguments, strict=True)]
    torch.testing.assert_close(got, torch.stack(expected))


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("layout", ["full", "mask", "sizes", "offsets"])
def test_gradients_of_what_was_mapped(layout, second):
    sets = {
        "mask": torch.tensor([[True, False, True, True], [False, False, True, False]]),
        "sizes": torch.tensor([3, 1]),
        "offsets": torch.tensor([0, 3, 8]),
    }
    options = {} if layout == "full" else {layout: sets[layout]}
    shape = (8, 3) if layout == "offsets" else (2, 4, 3)
    x = torch.randn(5, *shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)

    def gradients(y):
        loss = y.square().sum()
        got = torch.autograd.grad(loss, (x, weight), create_graph=second)
        if second:
            got += torch.autograd.grad(sum(g.square().sum() for g in got), (x, weight))
        return got

    pool = partial(pool_function, **options)
    loop = torch.stack([pool(*each) for each in zip(x, weight, strict=True)])
    mapped = torch.func.vmap(pool)(x, weight)
    torch.testing.assert_close(gradients(mapped), gradients(loop))


def test_a_pool_without_its_ranks_refuses_gradients():
    x, weight = torch.randn(1, 2, 4, 3), torch.randn(1, 3, 5, requires_grad=True)
    y = torch.ops.fspool.pool(x, weight, None, None, None, False, False)[0]
    with pytest.raises(RuntimeError, match="without its ranks; gradients need ranked=True"):
        y.sum().backward()


def test_vmap_over_offsets():
    x, offsets = torch.randn(2, 4, 3), torch.tensor([[0, 2, 4], [0, 1, 4]])
    weight = torch.randn(3, 4)
    assert_vmap_is_a_loop(lambda x, o: pool_function(x, weight, offsets=o), x, offsets)


@pytest.mark.usefixtures("walking")
def test_vmap_over_temperature():
    x, weight, tau = torch.randn(2, 3, 4, 3), torch.randn(3, 4), torch.tensor([0.5, 2.0])
    assert_vmap_is_a_loop(lambda x, t: pool_function(x, weight, temperature=t), x, tau)


def test_threads_leave_no_trace():
    x, weight = torch.randn(64, 50, 8), torch.randn(8, 5)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            data, w = x.clone().requires_grad_(), weight.clone().requires_grad_()
            y = pool_function(data, w, sizes=torch.arange(64) % 51)
            results.append((y, *torch.autograd.grad(y.sum(), (data, w))))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(results[0], results[1], strict=True):
        torch.testing.assert_close(one, other)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(results, results[1:], strict=False))


def _pool_in_a_child(queue):
    x = torch.ones(64, 50, 8)
    queue.put(pool_function(x, torch.ones(8, 5)).sum().item())


def test_works_in_a_forked_process_after_threads_were_used():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        pool_function(torch.randn(64, 50, 8), torch.randn(8, 5))  # starts the threads
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=_pool_in_a_child, args=(queue,))
        child.start()
        assert queue.get(timeout=60) == 64 * 50 * 8
        child.join(60)
        assert child.exitcode == 0
    finally:
        torch.set_num_threads(before)


def test_the_library_works_with_this_folder_deleted(tmp_path):
    source = Path(fspool.__file__).parent
    shutil.copytree(source, tmp_path / "fspool", ignore=shutil.ignore_patterns("kernels"))
    script = """
import torch, fspool
from fspool.functional import dispatch
assert not dispatch._operators
pool, unpool = fspool.FSPool(3, 4, temperature=1.0), fspool.FSUnpool(3, 4)
y, order = pool(torch.randn(2, 5, 3), sizes=torch.tensor([5, 2]), return_order=True)
unpool(y, order).sum().backward()
assert pool.weight.grad.abs().sum() > 0
print(fspool.__file__)
"""
    out = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert out.stdout.startswith(str(tmp_path))


def test_flushed_denormals_lose_no_rank():
    x, weight = torch.randn(1, 40, 2).relu(), torch.randn(2, 5)  # half of it zeros
    _, expected = pool_function(x, weight, return_order=True)
    assert torch.set_flush_denormal(True)
    try:
        _, order = pool_function(x, weight, return_order=True)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(order.ranks, expected.ranks)


def test_huge_arrays_are_not_kept():
    calls = []

    @chunks.keep_small
    def make(size):
        calls.append(size)
        return np.zeros(size, np.uint8)

    for size in (1, 1, chunks.KEEP + 1, chunks.KEEP + 1, 2, 3, 4, 5, 1):
        assert make(size).size == size
    assert calls == [1, chunks.KEEP + 1, chunks.KEEP + 1, 2, 3, 4, 5, 1]


def test_long_rows_of_a_power_of_two():
    x, weight = make_x((3, 70, 256), "ties"), torch.randn(256, 4)

    def function():
        y, order = pool_function(x, weight, return_order=True)
        return y, order.ranks.long(), pool_function(x, weight)

    for got, expected in zip(function(), by_definition(function), strict=True):
        torch.testing.assert_close(got, expected)


def test_kernels_can_be_switched_off():
    script = (
        "import fspool, torch; from fspool.functional import dispatch; "
        "assert dispatch.fastest('pool', torch.ones(1, 2, 3)) is None; "
        "print(fspool.FSPool(3, knots=2)(torch.ones(1, 2, 3)).shape)"
    )
    environment = os.environ | {"FSPOOL_KERNELS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "torch.Size([1, 3])\n"
    assert dispatch.fastest("pool", torch.ones(1, 2, 3)) is not None
