"""The Triton kernels of the relaxed sort against the float64 definition: in Triton's interpreter
where there is no GPU, and through the public functions where there is one."""

import importlib
from contextlib import contextmanager

import pytest
import torch

import fspool
from fspool.functional import by_rank, dispatch, fspool_vjp, fsunpool, relaxed_sort
from fspool.functional import fspool as pool_function
from fspool.functional.relaxed_sort import permutation_definition, slope_definition

from .interpreter import DEVICE
from .layouts import lay_out
from .reference import relative_error

pytest.importorskip("triton")  # Linux has it
from fspool.kernels.cuda import moves, pool  # noqa: E402
from fspool.kernels.cuda import relaxed_sort as kernels  # noqa: E402

INF, NAN = float("inf"), float("nan")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
SIZES = (0, 1, 2, 9, 10, 19) if DEVICE == "cpu" else (0, 1, 2, 31, 32, 33)
NAMES = ("result", "normaliser", "unsorted", "slope")

needs_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
# numpy, in which the interpreter computes, warns of infinities; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture
def large_tiles(monkeypatch):
    """The interpreter takes as long for a large tile as for a small one."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "TILE", 4096)


def sorted_set(n, dim, kind="random", dtype=torch.float64):
    s = torch.randn(n, dim, dtype=dtype)
    if kind == "ties":
        s = (2 * s).round() / 2
    if kind == "equal":
        s[:, 0] = -0.7
    return s.sort(0, descending=True).values


def make_sets(sizes, dim, kind="random", dtype=torch.float32):
    """For every set its sorted values, a and x: three lists."""
    values = [sorted_set(n, dim, kind, dtype) for n in sizes]
    a, x = ([torch.randn(n, dim, dtype=dtype) for n in sizes] for _ in range(2))
    return values, a, x


def run(values, a, x, temperature, lengths=None, offsets=None):
    """All three operators: P x, its normaliser, P^T a and the slope of a^T P x."""
    values, a, x, temperature, lengths, offsets = (
        None if t is None else t.to(DEVICE) for t in (values, a, x, temperature, lengths, offsets)
    )
    result, z = kernels.sort(values, x, temperature, None, lengths, offsets)
    back = kernels.unsort(values, a, temperature, z, lengths, offsets)
    slope = kernels.slope(values, a, x, result, temperature, z, lengths, offsets)
    both = kernels.pull(values, a, x, result, temperature, z, lengths, offsets)
    for one, other in zip(both, (slope, back), strict=True):
        finite = other[other.isfinite()].abs()
        slack = TOLERANCE[values.dtype] * float(finite.max() if len(finite) else 0)
        torch.testing.assert_close(one, other, rtol=0, atol=slack, equal_nan=True)
    return [t.cpu() for t in (result, z, back, slope)]


def define(values, a, x, temperature):
    """The same of one set (n, D), by the definition in float64."""
    values, a, x, temperature = (t.double() for t in (values, a, x, temperature))
    p = permutation_definition(values, temperature)
    count = torch.full((1, 1), len(values))
    return (
        (p * x.unsqueeze(-3)).sum(-2),
        1 / p.diagonal(0, -3, -2).mT,
        (p * a.unsqueeze(-2)).sum(-3),
        slope_definition(values, a, x, temperature, count),
    )


def define_all(sets, temperature):
    """The definition of many sets: for each of the four results a list."""
    each = [define(*one, temperature) for one in zip(*sets, strict=True)]
    return [list(results) for results in zip(*each, strict=True)]


def assert_near(got, exact, name, tolerance):
    """By the largest value of all sets together; exactly zero where that is zero."""
    exact = torch.cat([e.flatten() for e in exact])
    got = torch.cat([g.flatten() for g in got])
    assert got.shape == exact.shape, name
    if not exact.any():
        assert got.abs().max() < tolerance if len(got) else True, name
    else:
        assert relative_error(got, exact) <= tolerance, name


def padded(sets, length, junk):
    """Lists of (n, D) to (1, B, length, D) with junk behind the elements."""
    out = []
    for each in sets:
        x = each[0].new_full((1, len(each), length, each[0].shape[-1]), junk)
        for b, one in enumerate(each):
            x[0, b, : len(one)] = one
        out.append(x)
    return out


def packed(sets):
    sizes = torch.tensor([len(one) for one in sets[0]])
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    return [torch.cat(each).unsqueeze(0) for each in sets], offsets


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", ["random", "ties", "equal"])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_results_are_those_of_the_definition_padded_and_packed(temperature, kind, dtype):
    sets = make_sets(SIZES, 3, kind, dtype)
    tau = torch.tensor(temperature, dtype=dtype)
    exact = define_all(sets, tau)

    for junk, extra in ((NAN, 0), (INF, 2)):
        lengths = torch.tensor([SIZES])
        got = run(*padded(sets, max(SIZES) + extra, junk), tau, lengths=lengths)
        for name, mine, truth in zip(NAMES, got, exact, strict=True):
            elements = [mine[0, b, :n] for b, n in enumerate(SIZES)]
            assert_near(elements, truth, f"padded {name}", TOLERANCE[dtype])
            assert all(not mine[0, b, n:].any() for b, n in enumerate(SIZES)), name

    rows, offsets = packed(sets)
    for name, mine, truth in zip(NAMES, run(*rows, tau, offsets=offsets), exact, strict=True):
        assert_near([mine], truth, f"packed {name}", TOLERANCE[dtype])


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("n", [*SIZES, 200])
def test_full_sets(n, dtype):
    sets = make_sets((n, n), 2, "random", dtype)
    tau = torch.tensor(0.7, dtype=dtype)
    exact = define_all(sets, tau)
    got = run(*padded(sets, n, NAN), tau)
    for name, mine, truth in zip(NAMES, got, exact, strict=True):
        assert_near([mine], truth, name, TOLERANCE[dtype])


def test_tiles_whose_rows_all_reach_far(monkeypatch):
    """Nothing is masked there, until the end of a set is near."""
    monkeypatch.setattr(kernels, "TILE", 8)
    sets = make_sets((20,), 4)
    tau = torch.tensor(3.0)
    exact = define_all(sets, tau)
    got = run(*padded(sets, 22, NAN), tau, lengths=torch.tensor([[20]]))
    for name, mine, truth in zip(NAMES, got, exact, strict=True):
        assert_near([mine[0, 0, :20]], truth, name, TOLERANCE[torch.float32])


@pytest.mark.usefixtures("large_tiles")
def test_a_thousand_elements_in_float32():
    sets = make_sets((1024,), 2)
    tau = torch.tensor(1.0)
    got = run(*padded(sets, 1024, NAN), tau)
    for name, mine, truth in zip(NAMES, got, define_all(sets, tau), strict=True):
        assert_near([mine], truth, name, 1e-5)


@pytest.mark.parametrize("dim", [1, 5, 33])
def test_tiles_of_few_rows_and_features(dim, monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "TILE", 32 if dim < 32 else 256)
        monkeypatch.setattr(kernels, "SCAN", 4)
    sizes = (9, 0, 3)
    sets = make_sets(sizes, dim, "ties")
    tau = torch.tensor(1.0)
    exact = define_all(sets, tau)
    rows, offsets = packed(sets)
    got = run(*rows, tau, offsets=offsets.int())
    lengths = torch.tensor([sizes], dtype=torch.int32)
    other = run(*padded(sets, 10, NAN), tau, lengths=lengths)
    for name, a, b, truth in zip(NAMES, got, other, exact, strict=True):
        assert_near([a], truth, f"packed {name}", 1e-5)
        assert_near([b[0, i, :n] for i, n in enumerate(sizes)], truth, f"padded {name}", 1e-5)


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("layout", ["full", "lengths", "offsets"])
def test_replicas_of_any_strides(layout):
    """G = 2, tensors and lengths that are not contiguous, a temperature of another dtype."""
    sizes, tau = (4, 4) if layout == "full" else (4, 2), torch.tensor(0.5, dtype=torch.float16)
    runs = [make_sets(sizes, 3) for _ in range(2)]
    keywords = {}
    if layout == "offsets":
        keywords["offsets"] = packed(runs[0])[1].repeat_interleave(2)[::2]
        stacks = [packed(sets)[0] for sets in runs]
    else:
        stacks = [padded(sets, 4, NAN) for sets in runs]
        if layout == "lengths":
            keywords["lengths"] = torch.tensor(sizes).expand(2, 2)
    values, a, x = (torch.cat(pair) for pair in zip(*stacks, strict=True))
    a, x = a[..., :1].expand_as(a), x.mT.contiguous().mT
    got = run(values, a, x, tau, **keywords)
    for g, sets in enumerate(runs):
        one = (sets[0], [t[:, :1].expand_as(t) for t in sets[1]], sets[2])
        for name, mine, truth in zip(NAMES, got, define_all(one, tau), strict=True):
            if layout != "offsets":
                mine = [[m[:n] for m, n in zip(one, sizes, strict=True)] for one in mine]
            assert_near(list(mine[g]), truth, name, 1e-5)


@pytest.mark.usefixtures("large_tiles")
def test_replicas_with_offsets_of_their_own():
    """The second has fewer rows, and NaN after them."""
    tau, runs = torch.tensor(0.5), [make_sets(sizes, 3) for sizes in ((4, 2, 3), (1, 0, 5))]
    stacks, offsets = zip(*(packed(sets) for sets in runs), strict=True)
    pad = torch.nn.functional.pad
    fitted = [pad(t, (0, 0, 0, 3), value=NAN) for t in stacks[1]]
    together = [torch.cat(pair) for pair in zip(stacks[0], fitted, strict=True)]
    got = run(*together, tau, offsets=torch.stack(offsets))
    for g, sets in enumerate(runs):
        for name, mine, truth in zip(NAMES, got, define_all(sets, tau), strict=True):
            end = int(offsets[g][-1])
            assert_near([mine[g, :end]], truth, name, 1e-5)
            assert not mine[g, end:].any(), name


@pytest.mark.usefixtures("large_tiles")
def test_the_coldest_sort_is_the_ordinary_one_with_ties_averaged():
    values = torch.tensor([3.0, 2.0, 2.0, -1.0])[:, None]
    tau = torch.tensor(torch.finfo(torch.float32).tiny)
    x, a = torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None], torch.tensor([1.0, 3.0, 5.0, 7.0])[:, None]
    result, _, back, _ = run(*(t[None, None] for t in (values, a, x)), tau)
    assert result.flatten().tolist() == [1, 3, 3, 8]
    assert back.flatten().tolist() == [1, 4, 4, 7]


@pytest.mark.usefixtures("large_tiles")
def test_nan_ends_and_stays_in_its_feature_of_its_set():
    sets = make_sets((40, 40), 2)
    sets[0][1][0, 1] = NAN  # sorts first
    for got in run(*padded(sets, 40, 0.0), torch.tensor(1.0)):
        assert got.isfinite().all((0, 2)).tolist() == [[True, True], [True, False]]


@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("values", [[INF, INF, 0.0, -INF], [NAN, NAN, NAN, NAN]])
def test_infinite_and_all_nan_end(values):
    s = torch.tensor(values)[None, None, :, None]
    run(s, s, s, torch.tensor(1.0))


@pytest.mark.usefixtures("large_tiles")
def test_wrong_sizes_stay_in_bounds():
    x = torch.randn(1, 3, 4, 2)
    for lengths in ([[9, -3, 4]], [[2**40, 0, -(2**40)]]):
        result, *_ = run(x, x, x, torch.tensor(1.0), lengths=torch.tensor(lengths))
        assert result[0, 0].any() and not result[0, 1].any()
    x = torch.randn(1, 4, 2)
    for offsets in ([-5, 2, 99], [3, 1, 2], [50, 60, 70], [1, 1, 2]):
        run(x, x, x, torch.tensor(1.0), offsets=torch.tensor(offsets))


@pytest.mark.parametrize("shape", [(1, 0, 3, 2), (1, 2, 0, 2), (0, 2, 3, 2)])
def test_nothing_padded(shape):
    x = torch.zeros(shape)
    assert all(t.shape == shape for t in run(x, x, x, torch.tensor(1.0)))


@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]])
def test_nothing_packed(offsets):
    x = torch.zeros(1, 0, 2)
    got = run(x, x, x, torch.tensor(1.0), offsets=torch.tensor(offsets))
    assert all(t.shape == (1, 0, 2) for t in got)


# --------------------------------------------------------------------------------------------------
# The public functions


def autoencode(x, weight, other, temperature=1.0, **keywords):
    """Pool, unpool and pull, and all gradients."""
    x, weight, other = (t.detach().clone().requires_grad_() for t in (x, weight, other))
    y, order = pool_function(x, weight, temperature=temperature, return_order=True, **keywords)
    out = fsunpool(y, other, order)
    pulled = fspool_vjp(y.detach(), weight, order)
    gradients = torch.autograd.grad(out.square().sum(), (x, weight, other))
    names = "y out pulled dx dw du".split()
    tensors = (t.detach() for t in (y, out, pulled, *gradients))
    return dict(zip(names, tensors, strict=True))


def compare(got, exact, tolerance, prefix=""):
    for name, truth in exact.items():
        assert relative_error(got[name].cpu(), truth.cpu()) <= tolerance, f"{prefix} {name}"


def exactly(x, weight, other, **keywords):
    """:func:`autoencode` in float64 on the CPU."""
    keywords = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in keywords.items()}
    return autoencode(*(t.detach().cpu().double() for t in (x, weight, other)), **keywords)


@contextmanager
def like_cuda():
    """CPU tensors take the way of CUDA tensors, and the Triton kernels run in the interpreter."""
    functions = {
        "ranks": pool.ranks,
        "pool_ranked": pool.pool_ranked,
        "unpool": pool.unpool,
        "knots": pool.knots,
        "to_ranks": moves.to_ranks,
        "from_ranks": moves.from_ranks,
        "relaxed_sort": kernels.sort,
        "relaxed_unsort": kernels.unsort,
        "relaxed_slope": kernels.slope,
        "relaxed_pull": kernels.pull,
    }
    relaxed = importlib.import_module("fspool.functional.relaxed_sort")
    with (
        pytest.MonkeyPatch.context() as patch,
        torch.library._scoped_library("fspool", "IMPL") as library,
    ):
        patch.setattr(relaxed, "SMALL", -1)
        patch.setattr(by_rank, "on_device", dispatch.fastest)
        for name, function in functions.items():
            library.impl(name, function, "CPU", allow_override=True)
        yield


@pytest.mark.skipif(DEVICE == "cuda", reason="the tests below do it on the device itself")
@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
@pytest.mark.usefixtures("large_tiles")
@pytest.mark.parametrize("layout", ["full", "mask", "sizes", "offsets"])
def test_public_functions_in_the_interpreter(layout):
    sizes = (7, 7) if layout == "full" else (5, 0, 1, 33)
    sets = [torch.randn(n, 3) for n in sizes]
    x, keywords, _ = lay_out("sizes" if layout == "full" else layout, sets, junk=NAN)
    keywords = {} if layout == "full" else keywords
    weight, other = torch.randn(2, 3, 4)
    exact = exactly(x, weight, other, **keywords)
    with like_cuda():
        compare(autoencode(x, weight, other, **keywords), exact, 1e-5, layout)
        order = pool_function(x, weight, temperature=1.0, return_order=True, **keywords)[1]
        hard = pool_function(x, weight, return_order=True, **keywords)[1]
        got = [f(x.nan_to_num(7.0)) for o in (order, hard) for f in (o.sort, o.unsort)]
    expected = [f(x.nan_to_num(7.0)) for o in (order, hard) for f in (o.sort, o.unsort)]
    for one, truth in zip(got, expected, strict=True):
        torch.testing.assert_close(one, truth, rtol=1e-5, atol=1e-5)


@needs_cuda
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("n", [1, 2, 31, 342, 1023, 1024, 1025])
def test_public_functions_on_cuda(n, dtype):
    x = torch.randn(2, n, 5, dtype=dtype, device=DEVICE)
    weight, other = torch.randn(2, 5, 7, dtype=dtype, device=DEVICE)
    assert relaxed_sort(x, return_order=True)[1].normaliser is not None  # the kernel ran
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    compare(autoencode(x, weight, other), exactly(x, weight, other), tolerance)


@needs_cuda
@pytest.mark.parametrize("kind", ["equal", "relu"])
def test_dead_features_on_cuda(kind):
    x = torch.randn(2, 300, 4, device=DEVICE)
    x = x.relu() if kind == "relu" else x.fill_(0.3)
    weight, other = torch.randn(2, 4, 7, device=DEVICE)
    compare(autoencode(x, weight, other), exactly(x, weight, other), 1e-5)


@needs_cuda
@pytest.mark.parametrize("layout", ["mask", "sizes", "offsets", "nested"])
def test_layouts_on_cuda_are_the_loop_over_their_sets(layout):
    sets = [torch.randn(n, 3) for n in (33, 0, 1, 1025, 2, 128)]
    weight, other = torch.randn(2, 3, 7, device=DEVICE)
    x, keywords, gather = lay_out(layout, sets, junk=NAN)
    keywords = {k: v.to(DEVICE) for k, v in keywords.items()}
    y, order = pool_function(x.to(DEVICE), weight, temperature=1.0, return_order=True, **keywords)
    out = gather(fsunpool(y, other, order).cpu())
    for b, one in enumerate(sets):
        one = one[None].to(DEVICE)
        alone, own = pool_function(one, weight, temperature=1.0, return_order=True)
        back = fsunpool(alone, other, own)[0].cpu()
        torch.testing.assert_close(y[b], alone[0], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(out[b], back, rtol=1e-4, atol=1e-4)


@needs_cuda
def test_nothing_depends_on_chance_on_cuda():
    x = torch.randn(4, 500, 8, device=DEVICE)
    weight, other = torch.randn(2, 8, 7, device=DEVICE)
    first, second = (autoencode(x, weight, other) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in ("y", "out", "pulled", "dx"))


@needs_cuda
def test_memory_is_linear_on_cuda():
    x = torch.randn(1, 20_000, 2, device=DEVICE, requires_grad=True)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y, order = pool_function(x, torch.ones(2, 3, device=DEVICE), temperature=1.0, return_order=True)
    fsunpool(y, torch.ones(2, 3, device=DEVICE), order).square().sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 400 * x.nbytes  # n^2 would be 10,000


@needs_cuda
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_capture_in_a_cuda_graph(layout):
    """Other sizes, values and another temperature in the same graph."""
    total, temperature = 300, torch.tensor(1.0, device=DEVICE)
    weight, other = torch.randn(2, 4, 7, device=DEVICE)
    if layout == "packed":
        x, keywords = torch.randn(total, 4, device=DEVICE), {"offsets": [0, 10, 10, total]}
        later = {"offsets": [0, 150, 299, total]}
    else:
        x, keywords = torch.randn(3, 100, 4, device=DEVICE), {"sizes": [100, 0, 7]}
        later = {"sizes": [1, 99, 50]}
    keywords = {k: torch.tensor(v, device=DEVICE) for k, v in keywords.items()}

    def step():
        return autoencode(x, weight, other, temperature, **keywords)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()  # compiles
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    x.normal_()
    temperature.fill_(0.3)
    for name, value in later.items():
        keywords[name].copy_(torch.tensor(value))
    graph.replay()
    torch.cuda.synchronize()
    compare(got, exactly(x, weight, other, temperature=0.3, **keywords), 5e-5)


@needs_cuda
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_compile_on_cuda(layout):
    pool = fspool.FSPool(4, 7, temperature=1.0).to(DEVICE)
    unpool = fspool.FSUnpool(4, 7).to(DEVICE)
    x, keywords = torch.randn(3, 50, 4, device=DEVICE), {}
    if layout == "packed":
        x = x.flatten(0, 1)
        keywords["offsets"] = torch.tensor([0, 60, 60, 150], device=DEVICE)

    def step(x, keywords):
        y, order = pool(x, return_order=True, **keywords)
        return unpool(y, order)

    results = []
    for function in (step, torch.compile(step, fullgraph=True)):
        data = x.clone().requires_grad_()
        out = function(data, keywords)
        results.append((out, *torch.autograd.grad(out.square().sum(), data)))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-4)


@needs_cuda
@pytest.mark.parametrize("layout", ["full", "lengths", "offsets"])
def test_opcheck_on_cuda(layout):
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64, device=DEVICE)
    lengths = offsets = None
    if layout == "lengths":
        lengths = torch.tensor([[5, 0, 2], [1, 5, 3]], device=DEVICE)
    if layout == "offsets":
        x, offsets = x.flatten(1, 2), torch.tensor([0, 4, 4, 15], device=DEVICE)
    values = x.sort(-2, descending=True).values
    tau = torch.tensor(0.5, dtype=torch.float64, device=DEVICE)
    operators = torch.ops.fspool
    projected, z = operators.relaxed_sort(values, x, tau, None, lengths, offsets)
    tail = (tau, z, lengths, offsets)
    for operator, tensors in (
        (operators.relaxed_sort, (values, x)),
        (operators.relaxed_unsort, (values, x)),
        (operators.relaxed_slope, (values, x, x, projected)),
    ):
        tensors = [t.clone().requires_grad_() for t in tensors]
        torch.library.opcheck(operator.default, (*tensors, *tail))


@needs_cuda
@pytest.mark.parametrize("layout", ["sizes", "offsets"])
def test_second_derivatives_on_cuda(layout):
    sets = [torch.randn(n, 3, dtype=torch.float64) for n in (5, 0, 3)]
    x, keywords, _ = lay_out(layout, sets)
    weight = torch.randn(3, 4, dtype=torch.float64, device=DEVICE)
    keywords = {k: v.to(DEVICE) for k, v in keywords.items()}

    def function(x, weight):
        return pool_function(x, weight, temperature=0.7, **keywords)

    inputs = (x.to(DEVICE).requires_grad_(), weight.requires_grad_())
    assert torch.autograd.gradcheck(function, inputs, nondet_tol=1e-12)  # sums of packed sets
    assert torch.autograd.gradgradcheck(function, inputs, nondet_tol=1e-12)
