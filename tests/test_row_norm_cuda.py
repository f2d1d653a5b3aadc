"""Batch normalisation on CUDA, and its operators, against their definition in float64.

Without a GPU the kernels run in Triton's interpreter; what needs a real one is skipped.
"""

import pytest
import torch

from fspool.functional import dispatch
from fspool.functional.row_norm import row_norm_definition
from fspool.lab.replicas import stack
from fspool.models.batch_norm import BatchNorm

from .cuda_graphs import capture
from .interpreter import DEVICE
from .reference import relative_error

pytest.importorskip("triton")  # Linux has it
from fspool.kernels.cuda import row_norm as kernels  # noqa: E402

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
NAN = float("nan")
EPS, MOMENTUM = 1e-5, 0.1


@pytest.fixture
def small_tiles(monkeypatch):
    """In the interpreter few rows make many parts, and parts of many tiles."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "TILE", 64)
        monkeypatch.setattr(kernels, "PARTS", 2)
        monkeypatch.setattr(kernels, "MOST", 4)
        monkeypatch.setattr(kernels, "PROGRAMS", 8)


def example(rows, length, dim, dtype=torch.float32, offset=0.0):
    """x, rows, weight, bias and running numbers; NaN in the rows that are not there."""
    groups = len(rows)
    x = (torch.randn(groups, length, dim) + offset).to(dtype)
    for g, n in enumerate(rows):
        x[g, n:] = NAN
    numbers = [torch.randn(groups, dim) for _ in range(3)]
    return x, torch.tensor(rows), *numbers, torch.rand(groups, dim) + 0.5


def truth(inputs, dy, relu):
    """Values and gradients by the definition, in float64 and without NaN to look out for."""
    x, rows, *numbers = (t.double() if t.is_floating_point() else t for t in inputs)
    x = x.nan_to_num().requires_grad_()
    weight, bias = (t.requires_grad_() for t in numbers[:2])
    out = row_norm_definition(x, rows, weight, bias, *numbers[2:], EPS, MOMENTUM, relu)
    back = torch.autograd.grad(out[0], (x, weight, bias), dy.nan_to_num().double())
    return *out, *back


def by_kernels(inputs, dy, relu):
    x, rows, weight, *rest = (t.to(DEVICE) for t in inputs)
    out = kernels.row_norm(x, rows, weight, *rest, EPS, MOMENTUM, relu)
    back = kernels.pull(dy.to(DEVICE), x, rows, weight, *out[1:3], EPS, relu)
    return [t.cpu() for t in (*out, *back)]


NAMES = "y mean var new_mean new_var dx dweight dbias".split()


def check(rows, length, dim, relu, dtype=torch.float32, tolerance=2e-6, offset=0.0):
    inputs = example(rows, length, dim, dtype, offset)
    dy = torch.randn(inputs[0].shape).to(dtype)
    dy[inputs[0].isnan()] = NAN
    got = by_kernels(inputs, dy, relu)
    for name, a, b in zip(NAMES, got, truth(inputs, dy, relu), strict=True):
        assert a.shape == b.shape and a.is_contiguous(), name
        by_row = name in ("y", "dx")
        assert a.dtype == (dtype if by_row else torch.float32), name
        error, largest = (a.double() - b).abs().max(), b.abs().max()
        assert error <= tolerance * largest, f"{name} is off by {error:.1e} of {largest:.1e}"
        if by_row:
            assert (a[inputs[0].isnan()] == 0).all(), name


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dim", [1, 5, 16, 64, 70])
def test_widths(dim, relu):
    check([9, 4], 11, dim, relu)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 90, 200])
def test_parts_and_tiles_of_them(length, relu):
    """Parts that are full, that have a few rows, and that have none."""
    check([length, length // 2, 1, 0], length, 4, relu)


@pytest.mark.usefixtures("small_tiles")
def test_the_rows_are_shared_out_as_meant():
    if DEVICE == "cpu":
        assert kernels.share_out(4, 200, 4) == (8, 2, 16, 4)  # programs, parts, rows, features
        assert kernels.share_out(1, 200, 4) == (4, 4, 16, 4)
    for groups, length, dim in ((1, 1, 1), (200, 1300, 64), (1, 50_000, 32), (3, 333, 70)):
        grid = kernels.share_out(groups, length, dim)
        assert (grid.parts - 1) * grid.rows < length, "a part without rows"
        assert grid.programs == groups * grid.parts * -(-dim // grid.features)


@pytest.mark.usefixtures("small_tiles")
def test_numbers_far_from_zero():
    """Sums of squares alone would lose all digits of the variance."""
    inputs, dy = example([150, 90], 150, 3, offset=1e4), torch.randn(2, 150, 3)
    got, exact = by_kernels(inputs, dy, False), truth(inputs, dy, False)
    assert relative_error(got[0], exact[0].detach()) < 1e-6  # y
    assert relative_error(got[2], exact[2].detach()) < 1e-6  # the variance


@pytest.mark.parametrize(
    "first, others, tolerance",
    [(1e4, 0.0, 3e-6), (0.0, 100.0, 3e-6), (-1e6, 1.0, 5e-5), (1e18, 0.0, 5e-5)],
)
def test_a_first_row_that_is_like_no_other(first, others, tolerance):
    """Sums around it would lose the digits of the others."""
    inputs, dy = example([3000, 1200], 3000, 3), torch.randn(2, 3000, 3)
    inputs[0].add_(others)[:, 0] = first
    got, exact = by_kernels(inputs, dy, False), truth(inputs, dy, False)
    assert relative_error(got[0], exact[0].detach()) < tolerance  # y
    assert relative_error(got[2], exact[2].detach()) < tolerance  # the variance


@pytest.mark.parametrize("relu", [False, True])
def test_no_rows_and_one_row(relu):
    inputs = example([0, 1, 6], 8, 5)
    dy = torch.randn(3, 8, 5)
    y, mean, var, new_mean, new_var, dx, dweight, dbias = by_kernels(inputs, dy, relu)
    *_, bias, old_mean, old_var = inputs
    assert (y[0] == 0).all() and (dx[0] == 0).all() and not dweight[0].any() and not dbias[0].any()
    assert torch.equal(new_mean[0], old_mean[0]) and torch.equal(new_var[0], old_var[0])
    torch.testing.assert_close(y[1, 0], bias[1])
    torch.testing.assert_close(new_var[1], 0.9 * old_var[1])
    assert (var[1] == 0).all() and (dx[1] == 0).all()
    alone = by_kernels([t[2:] for t in inputs], dy[2:], relu)
    together = (y, mean, var, new_mean, new_var, dx, dweight, dbias)
    for name, a, b in zip(NAMES, together, alone, strict=True):
        assert torch.equal(a[2:], b), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    check([30, 7], 33, 6, True, dtype, 2 * torch.finfo(dtype).eps)


def test_integers_and_strides():
    inputs, dy = example([9, 4], 11, 6), torch.randn(2, 11, 6)
    expected = by_kernels(inputs, dy, False)
    x, rows, *numbers = inputs
    spread = (x.mT.contiguous().mT, rows.int(), *(t.T.contiguous().T for t in numbers))
    assert not spread[0].is_contiguous() and not spread[2].is_contiguous()
    for a, b in zip(by_kernels(spread, dy.mT.contiguous().mT, False), expected, strict=True):
        assert torch.equal(a, b)


def test_one_mean_for_all_replicas():
    """vmap over a gradient gives what was kept without memory of its own for every replica."""
    x, rows, weight, bias, *running = (t.to(DEVICE) for t in example([5], 6, 3))
    _, mean, var, *_ = kernels.row_norm(x, rows, weight, bias, *running, EPS, MOMENTUM, True)
    shared = [t.expand(4, *t.shape[1:]) for t in (x, rows, weight, mean, var)]
    own, dy = [t.contiguous() for t in shared], torch.randn(4, 6, 3, device=DEVICE)
    got, expected = (kernels.pull(dy, *given, EPS, True) for given in (shared, own))
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


def test_a_number_that_is_none_stays_in_its_feature_of_its_replica():
    inputs = example([5, 5], 5, 3)
    inputs[0][1, 2, 1] = NAN
    for relu in (False, True):
        got = by_kernels(inputs, torch.ones(2, 5, 3), relu)
        for name, a in zip(NAMES[:-1], got, strict=False):  # the bias only knows dy
            assert a[1, ..., 1].isnan().any(), name
            a[1, ..., 1] = 0
            assert a.isfinite().all(), name


def test_wrong_rows_stay_inside_the_memory():
    x, _, *rest = example([4, 4], 4, 3)
    dy = torch.randn(2, 4, 3)
    wrong = by_kernels((x, torch.tensor([99, -3]), *rest), dy, False)
    right = by_kernels((x, torch.tensor([4, 0]), *rest), dy, False)
    for a, b in zip(wrong, right, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0)])
def test_nothing(shape):
    groups, length, dim = shape
    inputs = example([0] * groups, length, dim)
    inputs = inputs[0], inputs[1].long(), *inputs[2:]
    got = by_kernels(inputs, torch.zeros(shape), True)
    assert [t.shape for t in got] == [shape, *[(groups, dim)] * 4, shape, *[(groups, dim)] * 2]
    assert torch.equal(got[3], inputs[4]) and torch.equal(got[4], inputs[5])


# --------------------------------------------------------------------------------------------------
# The operators


def double_example():
    inputs = example([4, 0, 6], 7, 3)
    x, rows, *numbers = (t.double() if t.is_floating_point() else t for t in inputs)
    return x.nan_to_num(), rows, *numbers


@pytest.mark.parametrize("relu", [False, True])
def test_derivatives_of_the_operator(relu):
    x, rows, weight, bias, *running = double_example()
    inputs = [t.requires_grad_() for t in (x, weight, bias)]

    def function(x, weight, bias):
        rest = (*running, EPS, MOMENTUM, relu)
        return torch.ops.fspool.row_norm(x, rows, weight, bias, *rest)[0]

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_layer_by_the_operators(compiled):
    layers = [stack([BatchNorm(3, relu=True) for _ in range(3)]) for _ in range(2)]
    x, rows, weight, bias, *_ = double_example()
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    x, g = x.float().requires_grad_(), torch.randn(x.shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_operators", {})
        expected = step(layers[0], x, rows, g)
    layer = torch.compile(layers[1], fullgraph=True) if compiled else layers[1]
    for name, a, b in zip(STEP, step(layer, x, rows, g), expected, strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


def test_what_nobody_asks_for_has_no_gradient():
    x, rows, weight, *rest = double_example()
    out = torch.ops.fspool.row_norm(
        x.requires_grad_(), rows, weight.requires_grad_(), *rest, EPS, MOMENTUM, False
    )
    assert [t.requires_grad for t in out] == [True, False, False, False, False]


# --------------------------------------------------------------------------------------------------
# The layer, on a real GPU


def big(groups=20, length=1300, dim=64, relu=True):
    layer = stack([BatchNorm(dim, relu=relu) for _ in range(groups)]).to(DEVICE)
    rows = torch.randint(length // 2, length + 1, (groups,))
    rows[0], rows[1] = 0, 1
    inputs = example(rows.tolist(), length, dim)
    with torch.no_grad():
        layer.weight.copy_(inputs[2])
        layer.bias.copy_(inputs[3])
    return layer, inputs[0].to(DEVICE), inputs[1].to(DEVICE)


STEP = "y dx dweight dbias running_mean running_var".split()


def step(layer, x, rows, g):
    y = layer(x, rows)
    gradients = torch.autograd.grad(y, (x, layer.weight, layer.bias), g.to(y.dtype))
    return y.detach(), *gradients, layer.running_mean.clone(), layer.running_var.clone()


@needs_gpu
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dim", [16, 32, 64, 100])
@pytest.mark.parametrize("groups, length", [(2, 50), (20, 1300), (3, 40_000)])
def test_the_layer_on_cuda(groups, length, dim, relu):
    layer, x, rows = big(groups, length, dim, relu)
    g = torch.randn_like(x)
    exact = stack([BatchNorm(dim, relu=relu) for _ in range(groups)]).to(DEVICE).double()
    exact.load_state_dict(layer.state_dict())
    got = step(layer, x.requires_grad_(), rows, g)
    expected = step(exact, x.detach().double().requires_grad_(), rows, g)
    for a, b in zip(got, expected, strict=True):
        assert (a.double() - b).abs().max() <= 1e-5 * b.abs().max()


@needs_gpu
def test_same_bits_every_time():
    layer, x, rows = big()
    g, before = torch.randn_like(x), {k: v.clone() for k, v in layer.state_dict().items()}
    first = step(layer, x.requires_grad_(), rows, g)
    layer.load_state_dict(before)
    for a, b in zip(first, step(layer, x, rows, g), strict=True):
        assert torch.equal(a, b)


@needs_gpu
def test_in_a_cuda_graph_with_rows_that_change():
    layer, x, rows = big()
    x, g = x.nan_to_num().requires_grad_(), torch.randn_like(x)
    graph, captured = capture(lambda: step(layer, x, rows, g))
    rows.copy_(rows.flip(0))
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    graph.replay()
    got = [t.clone() for t in captured]
    layer.load_state_dict(before)
    for a, b in zip(got, step(layer, x, rows, g), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(layer.running_var, before["running_var"])


@needs_gpu
def test_compiled_on_cuda():
    layer, x, rows = big()
    x, g = x.nan_to_num().requires_grad_(), torch.randn_like(x)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    expected = step(layer, x, rows, g)
    layer.load_state_dict(before)
    compiled = torch.compile(layer, fullgraph=True)
    y = compiled(x, rows)
    gradients = torch.autograd.grad(y, (x, layer.weight, layer.bias), g)
    for a, b in zip((y, *gradients, layer.running_mean, layer.running_var), expected, strict=True):
        torch.testing.assert_close(a, b)


@needs_gpu
def test_another_batch_or_room_compiles_no_kernel():
    def compiled():
        each = (kernels._moments, kernels.normalise, kernels.sum_up, kernels._pull)
        return sum(len(cache[0]) for k in each for cache in k.device_caches.values())

    def run(groups, length):
        layer, x, rows = big(groups, length, 32)
        step(layer, x.requires_grad_(), rows, torch.ones_like(x))

    run(3, 100)
    before = compiled()
    for groups, length in ((2, 96), (4, 33), (16, 1024), (2, 40_000)):
        run(groups, length)
    assert compiled() == before
