"""Two linear layers on CUDA, and their operators, against their definition in float64.

Without a GPU the kernels run in Triton's interpreter; what needs a real one is skipped.
"""

import pytest
import torch

from fspool.functional import perceptron as functional
from fspool.functional.perceptron import perceptron, perceptron_definition
from fspool.lab.replicas import stack
from fspool.models import SetEncoder, linear
from fspool.models.linear import Perceptron, mlp

from .cuda_graphs import replays_with_other_inputs
from .interpreter import DEVICE
from .reference import relative_error

pytest.importorskip("triton")  # Linux has it
from fspool.kernels.cuda import perceptron as kernels  # noqa: E402

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
NAN = float("nan")
NAMES = "y dx dfirst dfirst_bias dsecond dsecond_bias".split()


@pytest.fixture
def few_programs(monkeypatch):
    """In the interpreter few rows make programs of several tiles, and several programs."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels, "FORWARD", (16, 1))
        monkeypatch.setattr(kernels, "BACKWARD", (16, 1))
        monkeypatch.setattr(kernels, "PROGRAMS", 6)


def example(groups, sets, length, widths, sized, dtype=torch.float32):
    """x, weights and biases, sizes, and a gradient; NaN in what is not there."""
    columns, hidden, out = widths
    x = torch.randn(groups, sets, length, columns, dtype=dtype)
    dy = torch.randn(groups, sets, length, out, dtype=dtype)
    shapes = (hidden, columns), (hidden,), (out, hidden), (out,)
    weights = [torch.randn(groups, *shape, dtype=dtype) for shape in shapes]
    sizes = None
    if sized:
        sizes = torch.randint(length + 1, (groups, sets))
        sizes[0, 0], sizes[-1, -1] = 0, length
        outside = torch.arange(length) >= sizes.unsqueeze(-1)
        x[outside], dy[outside] = NAN, NAN
    return x, weights, sizes, dy


def by_kernels(x, weights, sizes, dy, wants_x=True):
    x, dy, *weights = (t.to(DEVICE) for t in (x, dy, *weights))
    sizes = None if sizes is None else sizes.to(DEVICE)
    y = kernels.perceptron(x, *weights, sizes)
    return y, *kernels.pull(dy, x, *weights[:3], sizes, wants_x)


def by_definition(x, weights, sizes, dy):
    inputs = [t.double().requires_grad_() for t in (x, *weights)]
    y = perceptron_definition(*inputs, sizes)
    outside = dy.isnan()
    gradients = torch.autograd.grad(y, inputs, dy.double().masked_fill(outside, 0))
    return y.detach(), *gradients


def assert_close(got, expected, tolerance=2e-6):
    for name, a, b in zip(NAMES, got, expected, strict=True):
        assert a.shape == b.shape, name
        assert relative_error(a.cpu(), b) < tolerance, name


WIDTHS = [(2, 32, 32), (3, 5, 10), (32, 32, 2), (16, 16, 1), (1, 64, 64), (64, 33, 17)]


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("groups, sets, length", [(2, 3, 45), (1, 1, 1), (3, 1, 8), (2, 5, 17)])
def test_values_and_gradients(few_programs, widths, sized, groups, sets, length):
    inputs = example(groups, sets, length, widths, sized)
    assert_close(by_kernels(*inputs), by_definition(*inputs))


@pytest.mark.parametrize("sized", [False, True])
def test_a_gradient_to_x_that_nobody_wants(few_programs, sized):
    inputs = example(2, 3, 40, (2, 8, 8), sized)
    y, dx, *rest = by_kernels(*inputs, wants_x=False)
    assert dx.shape == (2, 0)
    expected = by_definition(*inputs)
    assert_close((y, expected[1], *rest), expected)


def test_what_is_not_there_has_zeros_even_where_memory_held_others(few_programs):
    x, weights, sizes, dy = example(2, 4, 40, (2, 8, 8), True)
    poison = [torch.full((2, 4, 40, 8), NAN, device=DEVICE) for _ in range(4)]
    del poison  # the next tensors of that shape may lie there
    y, dx, *_ = by_kernels(x, weights, sizes, dy)
    outside = (torch.arange(40) >= sizes.unsqueeze(-1)).to(DEVICE)
    assert (y[outside] == 0).all() and (dx[outside] == 0).all()


def test_rows_with_strides(few_programs):
    x, weights, sizes, dy = example(2, 3, 20, (4, 8, 4), False)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    strided = [torch.stack((w, w), -1)[..., 0] for w in weights]
    for a, b in zip(
        by_kernels(turned, strided, sizes, dy), by_kernels(x, weights, sizes, dy), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")  # by the interpreter
def test_infinity_in_columns_that_are_there_alone():
    x, weights, _, dy = example(1, 1, 4, (2, 5, 3), False)
    x[0, 0, 1, 0], weights[0][...] = float("inf"), -1 - torch.rand(1, 5, 2)
    y, *_ = by_kernels(x, weights, None, dy)
    assert torch.equal(y[0, 0, 1].cpu(), weights[3][0])  # all hidden units are off


def test_a_number_that_is_none_stays_in_its_row():
    x, weights, sizes, dy = example(1, 2, 10, (2, 8, 3), False)
    x[0, 1, 4, 0] = NAN
    y = by_kernels(x, weights, sizes, dy)[0]
    assert y[0, 1, 4].isnan().all()
    y[0, 1, 4] = 0
    assert y.isfinite().all()


def test_wrong_sizes_stay_inside_the_memory():
    x, weights, _, dy = example(2, 2, 10, (2, 8, 3), False)
    wrong = by_kernels(x, weights, torch.tensor([[99, -3], [4, 1 << 40]]), dy)
    right = by_kernels(x, weights, torch.tensor([[10, 0], [4, 10]]), dy)
    for a, b in zip(wrong, right, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_nothing(shape):
    x, weights, _, dy = example(*shape, (2, 4, 3), False)
    got = by_kernels(x, weights, None, dy)
    assert [t.shape for t in got] == [t.shape for t in (dy, x, *weights)]
    assert all((t == 0).all() for t in got)


# --------------------------------------------------------------------------------------------------
# The operators, the function and the layer


@pytest.mark.parametrize("sized", [False, True])
def test_derivatives_of_the_operator(sized):
    x, weights, sizes, _ = example(2, 2, 4, (2, 3, 2), sized, torch.float64)
    inputs = [t.requires_grad_() for t in (x.nan_to_num(), *weights)]

    def function(*given):
        return torch.ops.fspool.perceptron(*given, sizes)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_the_function_is_a_product_a_replica():
    x, weights, sizes, _ = example(2, 3, 4, (2, 5, 3), True, torch.float64)
    x = x.unflatten(1, (3, 1))
    y = perceptron(x, *weights, sizes.unflatten(1, (3, 1)))
    assert y.shape == (2, 3, 1, 4, 3)
    for g in range(2):
        own = [w[g] for w in weights]
        for s in range(3):
            n = sizes[g, s]
            expected = (x[g, s, 0, :n] @ own[0].T + own[1]).relu() @ own[2].T + own[3]
            torch.testing.assert_close(y[g, s, 0, :n], expected)
            assert (y[g, s, 0, n:] == 0).all()


def test_sizes_of_another_shape():
    x, weights, _, _ = example(2, 3, 4, (2, 5, 3), False)
    with pytest.raises(ValueError, match=r"sizes has shape \(3,\); expected \(2, 3\) to fit x."):
        perceptron(x, *weights, torch.ones(3).int())


def test_the_layers_have_the_names_that_they_always_had():
    assert isinstance(mlp(2, 3, 4), Perceptron)
    names = [name for name, _ in mlp(2, 3, 4).named_parameters()]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    x = torch.randn(5, 2)
    layers = mlp(2, 3, 4)
    torch.testing.assert_close(layers(x), layers[2](layers[0](x).relu()))


@needs_gpu
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("widths", [(2, 32, 32), (32, 32, 2), (16, 64, 10)])
def test_the_layer_on_cuda(widths, sized):
    layer = stack([mlp(*widths) for _ in range(5)]).to(DEVICE)
    x, _, sizes, dy = example(5, 7, 342, widths, sized)
    x, dy = x.nan_to_num().to(DEVICE).requires_grad_(), dy.nan_to_num().to(DEVICE)
    sizes = None if sizes is None else sizes.to(DEVICE)
    y = layer(x, sizes)
    got = y, *torch.autograd.grad(y, (x, *layer.parameters()), dy)
    inputs = [t.detach().double().requires_grad_() for t in (x, *layer.parameters())]
    y = perceptron_definition(*inputs, sizes)
    expected = y, *torch.autograd.grad(y, inputs, dy.double())
    for name, a, b in zip(NAMES, got, expected, strict=True):
        assert relative_error(a.detach(), b.detach()) < 2e-6, name


@needs_gpu
def test_wide_layers_and_float64_have_no_kernel(monkeypatch):
    calls = []
    monkeypatch.setattr(kernels, "perceptron", lambda *inputs: calls.append(inputs))
    for layer, dtype in ((mlp(2, 65, 3), torch.float32), (mlp(2, 8, 3), torch.float64)):
        layer = stack([layer.to(dtype)]).to(DEVICE)
        assert layer(torch.randn(1, 4, 5, 2, device=DEVICE, dtype=dtype)).shape == (1, 4, 5, 3)
    assert not calls


@needs_gpu
def test_same_bits_every_time_and_in_a_cuda_graph():
    layer = stack([mlp(2, 32, 32) for _ in range(3)]).to(DEVICE)
    x, _, sizes, dy = (
        t.to(DEVICE) if isinstance(t, torch.Tensor) else t
        for t in example(3, 8, 342, (2, 32, 32), True)
    )
    x, dy = x.nan_to_num().requires_grad_(), dy.nan_to_num()

    def step():
        y = layer(x, sizes)
        return y.detach(), *torch.autograd.grad(y, (x, *layer.parameters()), dy)

    for a, b in zip(step(), step(), strict=True):
        assert torch.equal(a, b)
    replays_with_other_inputs(step, sizes)


@needs_gpu
def test_compiled_on_cuda():
    layer = stack([mlp(2, 32, 32) for _ in range(3)]).to(DEVICE)
    x = torch.randn(3, 8, 40, 2, device=DEVICE)
    compiled = torch.compile(layer, fullgraph=True)
    y, expected = compiled(x), layer(x)
    torch.testing.assert_close(y, expected)
    for a, b in zip(
        *(torch.autograd.grad(t.square().sum(), layer.parameters()) for t in (y, expected)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@needs_gpu
def test_another_batch_compiles_no_kernel():
    def compiled():
        each = (kernels._forward, kernels._backward, kernels.finish)
        return sum(len(cache[0]) for k in each for cache in k.device_caches.values())

    def run(sets, length):
        by_kernels(*example(2, sets, length, (2, 32, 32), True))

    run(3, 100)
    before = compiled()
    for sets, length in ((1, 333), (16, 64), (7, 1000)):
        run(sets, length)
    assert compiled() == before


@pytest.fixture
def by_operator(monkeypatch):
    """As on a GPU, the operators are called; here those of the CPU."""

    def on_device(name, x):
        return torch.ops.fspool.perceptron.default

    monkeypatch.setattr(functional, "on_device", on_device)
    calls = []
    original = functional.perceptron

    def counted(x, *rest):
        calls.append(rest[-1])
        return original(x, *rest)

    monkeypatch.setattr(linear, "perceptron", counted)
    return calls


LAYOUTS = {
    "full": {},
    "sizes": {"sizes": torch.tensor([[5, 0, 2], [1, 4, 3]])},
    "shared sizes": {"sizes": torch.tensor([5, 0, 2])},
    "mask": {"mask": torch.tensor([1, 0, 1, 1, 0]).bool().expand(2, 3, 5)},
    "packed": {"offsets": torch.tensor([0, 4, 4, 15])},
}


@pytest.mark.parametrize("pool", ["fspool", "sum", "mean", "max"])
@pytest.mark.parametrize("pool_padding", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_encoders_are_those_of_plain_layers(by_operator, pool, pool_padding, layout):
    made = [SetEncoder(2, 8, 3, pool=pool, knots=4, pool_padding=pool_padding) for _ in range(2)]
    encoder = stack(made)
    for bias in (encoder.elements[0].bias, encoder.elements[2].bias):
        torch.nn.init.normal_(bias)  # so that padding is not zero any more
    x = torch.randn(2, 15, 2) if "offsets" in layout else torch.randn(2, 3, 5, 2)
    y = encoder(x, **layout)[0]
    gradients = torch.autograd.grad(y.square().sum(), encoder.parameters())
    leaves_out = "sizes" in layout and not pool_padding
    assert len(by_operator) == 2 and (by_operator[0] is not None) == leaves_out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "has_kernel", lambda *_: False)
        expected = encoder(x, **layout)[0]
        own = torch.autograd.grad(expected.square().sum(), encoder.parameters())
    assert len(by_operator) == 2
    torch.testing.assert_close(y, expected)
    for a, b in zip(gradients, own, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_wrong_sizes_are_refused_before_any_kernel(by_operator):
    encoder = stack([SetEncoder(2, 8, 3) for _ in range(2)])
    with pytest.raises(ValueError, match=r"sizes has shape \(4,\)"):
        encoder(torch.randn(2, 3, 5, 2), sizes=torch.ones(4).long())
    assert not by_operator


def test_other_layers_are_no_perceptron(by_operator):
    layers = stack([mlp(2, 4, 3) for _ in range(2)])
    x = torch.randn(2, 5, 2)
    layers(x)
    assert len(by_operator) == 1
    layers[1] = torch.nn.GELU()
    torch.testing.assert_close(layers(x), layers[2](layers[1](layers[0](x))))
    assert layers[:2](x).shape == (2, 5, 4)
    layers.double()(x.double())
    wide = stack([mlp(2, 65, 3) for _ in range(2)])
    wide(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stack([mlp(2, 4, 3) for _ in range(2)])(x)
    assert len(by_operator) == 1


@pytest.mark.parametrize("shape, sizes", [((2, 4, 3), [4, 1]), ((0, 5, 4, 3), None)])
def test_few_axes_and_no_replicas(shape, sizes):
    x, groups = torch.randn(shape), shape[0]
    shapes = (5, 3), (5,), (2, 5), (2,)
    sizes = None if sizes is None else torch.tensor(sizes)
    y = perceptron(x, *(torch.randn(groups, *own) for own in shapes), sizes)
    assert y.shape == (*shape[:-1], 2)
    assert sizes is None or (y[1, 1:] == 0).all()
