"""A linear layer with its norm on CUDA, and its operators, against their definition in float64.

Without a GPU the kernels run in Triton's interpreter; what needs a real one is skipped.
"""

import pytest
import torch

from fspool.functional import linear_norm as functional
from fspool.functional.linear_norm import linear_norm_definition
from fspool.lab.replicas import stack
from fspool.models.batch_norm import BatchNorm
from fspool.models.linear import Linear

from .cuda_graphs import replays_with_other_inputs
from .interpreter import DEVICE
from .reference import relative_error

pytest.importorskip("triton")  # Linux has it
from fspool.kernels.cpu import linear_norm as cpu  # noqa: E402
from fspool.kernels.cuda import linear_norm as kernels  # noqa: E402
from fspool.kernels.cuda import row_norm as norms  # noqa: E402

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
NAN = float("nan")
EPS, MOMENTUM = 1e-5, 0.1
NAMES = "y linear mean var new_mean new_var dx dweight dbias dscale dshift".split()


@pytest.fixture
def small_tiles(monkeypatch):
    """In the interpreter few rows make many parts, and parts of many tiles."""
    if DEVICE == "cpu":
        monkeypatch.setattr(norms, "TILE", 256)
        monkeypatch.setattr(norms, "PARTS", 2)
        monkeypatch.setattr(norms, "MOST", 4)
        monkeypatch.setattr(norms, "PROGRAMS", 8)
        monkeypatch.setattr(kernels, "ROWS", 16)
        monkeypatch.setattr(kernels, "MOST", 3)
        monkeypatch.setattr(kernels, "PROGRAMS", 6)


def example(rows, length, columns, dim, dtype=torch.float32):
    """All that the operator takes but its numbers, and a gradient; NaN in rows not there."""
    groups = len(rows)
    x, dy = (torch.randn(groups, length, d, dtype=dtype) for d in (columns, dim))
    for g, n in enumerate(rows):
        x[g, n:], dy[g, n:] = NAN, NAN
    weight = torch.randn(groups, dim, columns, dtype=dtype)
    bias, *numbers = (torch.randn(groups, dim, dtype=dtype) for _ in range(4))
    bias += 1  # few units are off for all of a few rows: rounding counts where nothing varies
    var = torch.rand(groups, dim, dtype=dtype) + 0.5
    return (x, weight, bias, torch.tensor(rows), *numbers, var), dy


def by_kernels(inputs, dy, wants_x=True):
    x, weight, bias, rows, scale, *rest = (t.to(DEVICE) for t in inputs)
    out = kernels.linear_norm(x, weight, bias, rows, scale, *rest, EPS, MOMENTUM)
    given = out[1], x, rows, weight, scale, *out[2:4]
    return *out, *kernels.pull(dy.to(DEVICE), *given, EPS, wants_x)


def by_definition(inputs, dy):
    given = [t.detach().double().clone() if t.is_floating_point() else t for t in inputs]
    asked = [given[i].requires_grad_() for i in (0, 1, 2, 4, 5)]
    out = linear_norm_definition(*given, EPS, MOMENTUM)
    back = torch.autograd.grad(out[0], asked, dy.double().nan_to_num())
    return *(t.detach() for t in out), *(t.nan_to_num() for t in back)


def terms_of(inputs, dy):
    """How large the terms are that gradients are sums of: those cancel."""
    given = [t.double() if t.is_floating_point() else t for t in inputs]
    x = given[0].nan_to_num()
    out = linear_norm_definition(x, given[1].requires_grad_(), *given[2:], EPS, MOMENTUM)
    dy = dy.double().nan_to_num()
    terms = torch.autograd.grad(out[0], out[1], dy)[0].abs()
    y = (out[0].detach() - given[5].unsqueeze(1)) / given[4].unsqueeze(1)  # as the norm leaves it
    sums = {"dshift": dy.abs().sum(1), "dscale": (dy * y).abs().sum(1)}
    return sums | {"dweight": terms.mT @ x.abs(), "dbias": terms.sum(1)}


def check(rows, length, columns, dim, tolerance=1e-6):
    inputs, dy = example(rows, length, columns, dim)
    got, terms = by_kernels(inputs, dy), terms_of(inputs, dy)
    for name, a, b in zip(NAMES, got, by_definition(inputs, dy), strict=True):
        assert a.shape == b.shape and a.dtype == torch.float32, name
        scale = terms.get(name, b).abs().max()
        assert (a.cpu() - b).abs().max() <= tolerance * scale, name
        if name in ("y", "linear", "dx"):
            assert all((own[n:] == 0).all() for own, n in zip(a, rows, strict=True)), name
    return inputs, dy, got


@pytest.mark.parametrize("columns, dim", [(1, 1), (3, 5), (7, 16), (37, 32), (64, 64), (16, 3)])
def test_widths(columns, dim):
    check([90, 40], 100, columns, dim)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 90, 200])
def test_parts_and_tiles_of_them(length):
    """Parts that are full, that have a few rows, and that have none."""
    check([length, length // 2, 1, 0], length, 4, 16)


@pytest.mark.usefixtures("small_tiles")
def test_the_rows_are_shared_out_as_meant():
    if DEVICE == "cpu":
        assert kernels.share_products(2, 200)[1:4] == (3, 5, 16)  # parts, turns, rows
        assert kernels.share_products(6, 200)[1:4] == (1, 13, 16)
    for groups, length in ((1, 1), (200, 4608), (1, 50_000), (3, 333)):
        grid = kernels.share_products(groups, length)
        rows = grid.turns * grid.rows
        assert (grid.parts - 1) * rows < length <= grid.parts * rows
        assert grid.programs == groups * grid.parts


def test_a_gradient_to_x_that_nobody_wants():
    inputs, dy = example([9, 4], 11, 3, 4)
    wanted, unwanted = (by_kernels(inputs, dy, wants) for wants in (True, False))
    assert unwanted[6].shape == (2, 0)
    for a, b in zip(wanted[:6] + wanted[7:], unwanted[:6] + unwanted[7:], strict=True):
        assert torch.equal(a, b)


def test_no_rows_and_one_row():
    inputs, dy = example([0, 1, 6], 8, 3, 5)
    got = dict(zip(NAMES, by_kernels(inputs, dy), strict=True))
    *_, shift, old_mean, old_var = (t.to(DEVICE) for t in inputs)
    assert all((got[name][0] == 0).all() for name in NAMES if name[0] == "d" or name == "y")
    assert torch.equal(got["new_mean"][0], old_mean[0])
    assert torch.equal(got["new_var"][0], old_var[0])
    torch.testing.assert_close(got["y"][1, 0], shift[1])
    assert (got["var"][1] == 0).all() and (got["dx"][1] == 0).all()


def test_numbers_far_from_zero():
    """As exact as the sums themselves are, which float32 rounds."""
    inputs, dy = example([150, 90], 150, 3, 4)
    inputs[2].fill_(1e3)
    got, exact = by_kernels(inputs, dy), by_definition(inputs, dy)
    assert relative_error(got[3].cpu(), exact[3]) < 2e-4  # the variance: 1e3 has 6e-5 to a step


def test_strides_and_small_integers():
    inputs, dy = example([9, 4], 11, 6, 5)
    x, weight, bias, rows, *numbers = inputs
    spread = x.mT.contiguous().mT, weight.mT.contiguous().mT, bias.T.contiguous().T, rows.int()
    strided = *spread, *(t.T.contiguous().T for t in numbers)
    for a, b in zip(
        by_kernels(strided, dy.mT.contiguous().mT), by_kernels(inputs, dy), strict=True
    ):
        assert torch.equal(a, b)


def test_a_number_that_is_none_stays_in_its_replica():
    inputs, dy = example([5, 5], 5, 3, 4)
    inputs[0][1, 2, 1] = NAN
    for name, a in zip(NAMES[:-1], by_kernels(inputs, dy), strict=False):
        assert a[1].isnan().any() and a[0].isfinite().all(), name


def test_wrong_rows_stay_inside_the_memory():
    (x, weight, bias, _, *rest), dy = example([4, 4], 4, 3, 5)
    wrong, right = (
        by_kernels((x, weight, bias, torch.tensor(rows), *rest), dy) for rows in ([99, -3], [4, 0])
    )
    for a, b in zip(wrong, right, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0)])
def test_nothing(shape):
    groups, length, columns = shape
    inputs, dy = example([0] * groups, length, columns, 5)
    got = by_kernels((*inputs[:3], inputs[3].long(), *inputs[4:]), dy)
    large, small = (groups, length, 5), (groups, 5)
    shapes = [large, large, *[small] * 4, shape, (groups, 5, columns), *[small] * 3]
    assert [t.shape for t in got] == shapes


def test_what_is_not_there_has_zeros_even_where_memory_held_others():
    inputs, dy = example([30, 0, 9], 40, 8, 8)
    poison = [torch.full((3, 40, 8), NAN, device=DEVICE) for _ in range(6)]
    del poison  # the next tensors of that shape may lie there
    got = dict(zip(NAMES, by_kernels(inputs, dy), strict=True))
    for name in ("y", "linear", "dx"):
        for own, n in zip(got[name], inputs[3], strict=True):
            assert (own[n:] == 0).all(), name


# --------------------------------------------------------------------------------------------------
# The operators, the function and the layer


def double_example():
    inputs, dy = example([4, 0, 6], 7, 2, 3, torch.float64)
    return [t.nan_to_num() if t.is_floating_point() else t for t in inputs], dy.nan_to_num()


def test_the_cpu_form_is_the_definition():
    inputs, dy = double_example()
    out = torch.ops.fspool.linear_norm(*inputs, EPS, MOMENTUM)
    x, weight, _, rows, scale = inputs[:5]
    given = dy, out[1], x, rows, weight, scale, *out[2:4], EPS
    back = torch.ops.fspool.linear_norm_pull(*given, True)
    for name, a, b in zip(NAMES, (*out, *back), by_definition(inputs, dy), strict=True):
        torch.testing.assert_close(a.detach(), b, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.ops.fspool.linear_norm_pull(*given, False)[0].shape == (3, 0)


def test_derivatives_of_the_operator():
    inputs, _ = double_example()
    places = (0, 1, 2, 4, 5)

    def function(*asked):
        given = list(inputs)
        for place, tensor in zip(places, asked, strict=True):
            given[place] = tensor
        return torch.ops.fspool.linear_norm(*given, EPS, MOMENTUM)[0]

    asked = [inputs[i].requires_grad_() for i in places]
    assert torch.autograd.gradcheck(function, asked)
    assert torch.autograd.gradgradcheck(function, asked)


def test_what_nobody_asks_for_has_no_gradient():
    inputs, _ = double_example()
    out = torch.ops.fspool.linear_norm(inputs[0].requires_grad_(), *inputs[1:], EPS, MOMENTUM)
    assert [t.requires_grad for t in out] == [True, *[False] * 5]


def layers(groups, columns, dim):
    linear = stack([Linear(columns, dim) for _ in range(groups)])
    return linear, stack([BatchNorm(dim, relu=True) for _ in range(groups)])


def step(linear, norm, x, rows, dy):
    y = norm.after(linear, x, rows)
    back = torch.autograd.grad(y, (x, *linear.parameters(), norm.weight, norm.bias), dy)
    return y.detach(), *back, norm.running_mean.clone(), norm.running_var.clone()


@pytest.mark.parametrize("compiled", [False, True])
def test_the_layers_by_the_operator(monkeypatch, compiled):
    """As on a GPU, where the operator is called; here that of the CPU."""
    (x, _, _, rows, *_), dy = example([4, 0, 6], 7, 2, 3)
    x, dy = x.nan_to_num().requires_grad_(), dy.nan_to_num()
    linear, norm = layers(3, 2, 3)
    before = {k: v.clone() for k, v in norm.state_dict().items()}
    expected = step(linear, norm, x, rows, dy)
    norm.load_state_dict(before)
    monkeypatch.setattr(
        functional, "on_device", lambda name, x: getattr(torch.ops.fspool, name).default
    )
    function = torch.compile(norm.after, fullgraph=True) if compiled else norm.after
    monkeypatch.setattr(norm, "after", function)
    for a, b in zip(step(linear, norm, x, rows, dy), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_a_single_run_without_a_replica_axis():
    linear, norm = Linear(2, 3), BatchNorm(3, relu=True)
    x = torch.randn(1, 5, 2)
    y = norm.after(linear, x, torch.tensor([5]))
    values = linear(x[0]).relu()
    expected = (values - values.mean(0)) / (values.var(0, correction=0) + EPS).sqrt()
    torch.testing.assert_close(y[0], expected)


def test_affine_is_what_known_numbers_do():
    norm = stack([BatchNorm(3, relu=True) for _ in range(2)]).eval()
    for tensor in (*norm.parameters(), norm.running_mean):
        torch.nn.init.normal_(tensor)
    x, rows = torch.randn(2, 4, 3), torch.tensor([4, 4])
    scale, shift = (t.unsqueeze(1) for t in norm.affine())
    torch.testing.assert_close(x.relu() * scale + shift, norm(x, rows))


@needs_gpu
@pytest.mark.parametrize("precision, tolerance", [("highest", 1e-6), ("high", 2**-9)])
@pytest.mark.parametrize("columns, dim", [(7, 16), (37, 32), (32, 32), (64, 64)])
@pytest.mark.parametrize("groups, length", [(2, 50), (20, 1300), (3, 40_000)])
def test_the_layers_on_cuda(groups, length, columns, dim, precision, tolerance):
    """The gradient by what came out forwards: rounded elsewhere, a unit may be off that was on.

    TF32 cuts both factors of a product off after ten bits: 2^-10 of each is lost at most.
    """
    rows = torch.randint(length // 2, length + 1, (groups,))
    rows[0] = 1
    inputs, dy = example(rows.tolist(), length, columns, dim)
    torch.set_float32_matmul_precision(precision)
    try:
        got = by_kernels(inputs, dy)
    finally:
        torch.set_float32_matmul_precision("highest")
    exact = [t.double() if t.is_floating_point() else t for t in inputs]
    out = linear_norm_definition(*exact, EPS, MOMENTUM)
    x, weight, _, rows, scale = exact[:5]
    linear, mean, var = (t.cpu().double() for t in got[1:4])
    back = cpu.pull(dy.double(), linear, x.nan_to_num(), rows, weight, scale, mean, var, EPS, True)
    for name, a, b in zip(NAMES, got, (*out, *back), strict=True):
        large = b.norm() if name not in ("dweight", "dbias") else b.norm() + back[0].norm()
        assert (a.cpu() - b).norm() <= tolerance * large, name


@needs_gpu
def test_wide_layers_and_float64_have_no_kernel(monkeypatch):
    def refuse(*_):
        raise AssertionError("the kernel was called")

    monkeypatch.setattr(kernels, "linear_norm", refuse)
    for columns, dtype in ((65, torch.float32), (8, torch.float64)):
        linear, norm = (layer.to(DEVICE, dtype) for layer in layers(2, columns, 3))
        x = torch.randn(2, 5, columns, device=DEVICE, dtype=dtype)
        assert norm.after(linear, x, torch.tensor([5, 3], device=DEVICE)).shape == (2, 5, 3)


@needs_gpu
def test_same_bits_every_time_and_in_a_cuda_graph():
    linear, norm = (layer.to(DEVICE) for layer in layers(20, 32, 32))
    rows = torch.randint(600, 1301, (20,))
    (x, *_), dy = example(rows.tolist(), 1300, 32, 32)
    x, dy, rows = (
        x.nan_to_num().to(DEVICE).requires_grad_(),
        dy.nan_to_num().to(DEVICE),
        rows.to(DEVICE),
    )
    before = {k: v.clone() for k, v in norm.state_dict().items()}

    def again():
        with torch.no_grad():
            for name, value in norm.state_dict().items():
                value.copy_(before[name])
        return step(linear, norm, x, rows, dy)

    for a, b in zip(again(), again(), strict=True):
        assert torch.equal(a, b)
    replays_with_other_inputs(again, rows)


@needs_gpu
def test_another_batch_or_room_compiles_no_kernel():
    def compiled():
        each = (kernels._multiply, kernels._pull, kernels._finish)
        return sum(len(cache[0]) for k in each for cache in k.device_caches.values())

    def run(groups, length):
        by_kernels(*example([length] * groups, length, 32, 32))

    run(3, 100)
    before = compiled()
    for groups, length in ((2, 96), (4, 33), (16, 1024), (2, 40_000)):
        run(groups, length)
    assert compiled() == before
