"""The registered operators against the definitions: values, orders and gradients, ties included."""

import multiprocessing
import os
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspool
from fspool.functional import dispatch, fsunpool
from fspool.functional import fspool as pool_function
from fspool.kernels.cpu import chamfer as cpu_chamfer
from fspool.kernels.cpu import chunks, small_sets
from fspool.losses.chamfer import nearest_definition

from .definitions import INF, NAN, assert_same, by_definition, layouts_of, make_x
from .layouts import NAMES, lay_out
from .reference import relative_error


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


def test_what_is_kept_of_the_weight_function_does_not_grow_with_the_sets():
    pool = fspool.FSPool(1)
    tracemalloc.start()
    for n in range(30_000, 30_040):
        pool(torch.ones(1, n, 1)).sum().backward()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 5e6  # the weights of all would be 19 MB


def test_numpy_raises_nothing_whatever_it_was_told():
    """Infinite gradients are usual where losses are scaled."""
    weight = torch.tensor([[1.0, 0.0]]).expand(3, 2)
    with np.errstate(all="raise"):
        for sets in (4, 600):
            x = torch.randn(sets, 30, 3, requires_grad=True)
            (dx,) = torch.autograd.grad(pool_function(x, weight), x, torch.full((sets, 3), INF))
            assert dx.isinf().any()
            assert pool_function(1e-20 * x, 1e-25 * weight).isfinite().all()


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
