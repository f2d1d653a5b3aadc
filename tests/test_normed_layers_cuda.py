"""Two layers with their norms on CUDA, and their operators, against their definition in float64.

Without a GPU the kernels run in Triton's interpreter; what needs a real one is skipped.
"""

import pytest
import torch

from fspool.functional.normed_layers import Layer, normed_layers, normed_layers_definition

from .interpreter import DEVICE

pytest.importorskip("triton")  # Linux has it
from fspool.kernels.cpu import normed_layers as cpu  # noqa: E402
from fspool.kernels.cuda import normed_layers as kernels  # noqa: E402
from fspool.kernels.cuda import row_norm as norms  # noqa: E402

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
NAN = float("nan")
EPS, MOMENTUM = 1e-5, 0.1
OUT = "y linear_1 linear_2 mean_1 var_1 mean_2 var_2 new_1 new_var_1 new_2 new_var_2".split()
BACK = "dx dweight_1 dbias_1 dscale_1 dshift_1 dweight_2 dbias_2 dscale_2 dshift_2".split()
BY_ROW = ("y", "linear_1", "linear_2", "dx")
ASKED = (0, 2, 3, 4, 5, 8, 9, 10, 11)  # of the inputs, those that have a gradient


@pytest.fixture
def small_tiles(monkeypatch):
    """In the interpreter few rows make many parts, and parts of many tiles."""
    if DEVICE == "cpu":
        monkeypatch.setattr(norms, "TILE", 256)
        monkeypatch.setattr(norms, "PARTS", 2)
        monkeypatch.setattr(norms, "MOST", 4)
        monkeypatch.setattr(norms, "PROGRAMS", 8)
        monkeypatch.setattr(kernels, "TILES", {64: (16, 4)})
        monkeypatch.setattr(kernels, "MOST", 3)
        monkeypatch.setattr(kernels, "PROGRAMS", 6)


def layer(groups, columns, dim, dtype):
    numbers = [torch.randn(groups, dim, dtype=dtype) for _ in range(4)]
    numbers[0] += 1  # few units are off for all of a few rows: rounding counts where nothing varies
    weight = torch.randn(groups, dim, columns, dtype=dtype)
    return Layer(weight, *numbers, torch.rand(groups, dim, dtype=dtype) + 0.5)


def example(rows, length, widths, dtype=torch.float32):
    """x, rows and two layers; and a gradient. NaN in rows that are not there."""
    columns, hidden, out = widths
    groups = len(rows)
    x, dy = (torch.randn(groups, length, d, dtype=dtype) for d in (columns, out))
    for g, n in enumerate(rows):
        x[g, n:], dy[g, n:] = NAN, NAN
    both = layer(groups, columns, hidden, dtype), layer(groups, hidden, out, dtype)
    return (x, torch.tensor(rows), *both[0], *both[1]), dy


def given_of(inputs, out):
    """What the gradient is made of."""
    x, rows, weight_1, _, scale_1, shift_1, *_ = inputs
    weight_2, scale_2 = inputs[8], inputs[10]
    return x, rows, *out[1:3], weight_1, weight_2, scale_1, shift_1, scale_2, *out[3:7], EPS


def by_kernels(inputs, dy, wants_x=True):
    inputs = [t.to(DEVICE) for t in inputs]
    out = kernels.normed_layers(*inputs, EPS, MOMENTUM)
    return *out, *kernels.pull(dy.to(DEVICE), *given_of(inputs, out), wants_x)


def double(tensors):
    tensors = [t.detach().cpu() for t in tensors]
    return [t.double().nan_to_num() if t.is_floating_point() else t for t in tensors]


def exactly(inputs, dy, out):
    """In float64; the gradient by what came ``out`` forwards, since elsewhere a unit may be off
    that was on. And how large the terms are that sums over rows have, which cancel."""
    inputs, dy = double(inputs), dy.double().nan_to_num()
    layers = Layer(*inputs[2:8]), Layer(*inputs[8:])
    expected = normed_layers_definition(*inputs[:2], *layers[0], *layers[1], EPS, MOMENTUM)
    given = given_of(inputs, double(out))
    exact = *expected, *cpu.pull(dy, *given, True)
    return exact, terms_forwards(inputs[0], layers, expected) | terms(dy, *given)


def terms_forwards(x, layers, exact):
    """Of all that comes out, with the signs of nothing; a variance is a sum of squares."""
    found, values = {}, x.abs()
    for k, own, mean, var in zip("12", layers, exact[3:7:2], exact[4:8:2], strict=True):
        values = values @ own.weight.abs().mT + own.bias.abs().unsqueeze(1)
        found |= {f"linear_{k}": values, f"mean_{k}": values, f"var_{k}": values.square()}
        found |= {f"new_{k}": values, f"new_var_{k}": values.square()}
        root = (own.scale.abs() * (var + EPS).rsqrt()).unsqueeze(1)
        values = (values + mean.unsqueeze(1)) * root + own.shift.abs().unsqueeze(1)
    return found | {"y": values}


def terms(dy, x, rows, u_1, u_2, weight_1, weight_2, scale_1, shift_1, scale_2, *known):
    """Of the gradients likewise: what float32 rounds is a part of these."""
    mean_1, var_1, mean_2, var_2, eps = known
    count = rows.clamp(min=1).view(-1, 1, 1)

    def norm(u, mean, var):
        root = (var + eps).rsqrt().unsqueeze(1)
        return (u.relu() - mean.unsqueeze(1)).abs() * root, root

    def through(g, normed, root, scale):
        flat, slope = g.sum(1, True) / count, (g * normed).sum(1, True) / count
        return scale.abs().unsqueeze(1) * root * (g + flat + normed * slope)

    dy = dy.abs()
    (normed_1, root_1), (normed_2, root_2) = norm(u_1, mean_1, var_1), norm(u_2, mean_2, var_2)
    du_2 = through(dy, normed_2, root_2, scale_2)
    dz = du_2 @ weight_2.abs()
    du_1 = through(dz, normed_1, root_1, scale_1)
    z = normed_1 * scale_1.abs().unsqueeze(1) + shift_1.abs().unsqueeze(1)
    return {
        "dx": du_1 @ weight_1.abs(),
        "dweight_1": du_1.mT @ x.abs(),
        "dbias_1": du_1.sum(1),
        "dscale_1": (dz * normed_1).sum(1),
        "dshift_1": dz.sum(1),
        "dweight_2": du_2.mT @ z,
        "dbias_2": du_2.sum(1),
        "dscale_2": (dy * normed_2).sum(1),
        "dshift_2": dy.sum(1),
    }


def check(rows, length, widths, tolerance=1e-6):
    inputs, dy = example(rows, length, widths)
    got = by_kernels(inputs, dy)
    exact, sums = exactly(inputs, dy, got[: len(OUT)])
    for name, a, b in zip(OUT + BACK, got, exact, strict=True):
        assert a.shape == b.shape and a.dtype == torch.float32, name
        for g, n in enumerate(rows):  # numbers of one replica may be larger than those of others
            error = (a[g].cpu() - b[g]).abs().max()
            largest = sums[name][g].max()
            assert error <= tolerance * largest, f"{name} of {n} rows: {error:.1e} of {largest:.1e}"
            if name in BY_ROW:
                assert (a[g, n:] == 0).all(), name


WIDTHS = [(1, 1, 1), (3, 5, 7), (7, 16, 16), (37, 32, 32), (64, 64, 64), (16, 40, 3)]


@pytest.mark.parametrize("widths", WIDTHS)
def test_widths(widths):
    check([90, 40], 100, widths)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 90, 200])
def test_parts_and_tiles_of_them(length):
    """Parts that are full, that have a few rows, and that have none."""
    check([length, length // 2, 1, 0], length, (4, 16, 8))


@pytest.mark.usefixtures("small_tiles")
def test_the_rows_are_shared_out_as_meant():
    if DEVICE == "cpu":
        assert kernels.share_products(2, 200, 16) == (6, 3, 16, 0)  # programs, parts, rows
        assert kernels.share_products(6, 200, 16) == (6, 1, 16, 0)
    for groups, length in ((1, 1), (200, 4608), (1, 50_000), (3, 333)):
        grid = kernels.share_products(groups, length, 32)
        assert (grid.parts - 1) * grid.rows < length, "a part without rows"
        assert grid.programs == groups * grid.parts


def test_products_have_the_precision_of_those_of_torch():
    """Whichever way says so: the older one may not be asked after the newer one was used."""
    try:
        for precision, expected in (("high", "tf32"), ("medium", "tf32"), ("highest", "tf32x3")):
            torch.set_float32_matmul_precision(precision)
            assert kernels._precision() == expected
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert kernels._precision() == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.set_float32_matmul_precision("highest")
    assert kernels._precision() == "tf32x3"


def test_a_gradient_to_x_that_nobody_wants():
    inputs, dy = example([9, 4], 11, (3, 4, 5))
    wanted, unwanted = (by_kernels(inputs, dy, wants) for wants in (True, False))
    x = len(OUT)
    assert unwanted[x].shape == (2, 0)
    for a, b in zip(wanted[:x] + wanted[x + 1 :], unwanted[:x] + unwanted[x + 1 :], strict=True):
        assert torch.equal(a, b)


def test_no_rows_and_one_row():
    inputs, dy = example([0, 1, 6], 8, (3, 4, 5))
    got = dict(zip(OUT + BACK, by_kernels(inputs, dy), strict=True))
    inputs = [t.to(DEVICE) for t in inputs]
    assert all((got[name][0] == 0).all() for name in (*BY_ROW, *BACK))
    for new, old in zip(("new_1", "new_var_1", "new_2", "new_var_2"), (6, 7, 12, 13), strict=True):
        assert torch.equal(got[new][0], inputs[old][0])
    torch.testing.assert_close(got["y"][1, 0], inputs[11][1])  # the shift
    assert (got["var_2"][1] == 0).all() and (got["dx"][1] == 0).all()


def test_numbers_far_from_zero():
    """As exact as W x + b itself is, which float32 rounds: 1e3 has 6e-5 to a step."""
    inputs, dy = example([150, 90], 150, (3, 4, 4))
    inputs[3].fill_(1e3)
    out = by_kernels(inputs, dy)[: len(OUT)]
    exact, _ = exactly(inputs, dy, out)
    for place in (3, 4):  # mean and variance of the first norm
        error = (out[place].cpu() - exact[place]).abs().max()
        assert error <= 2e-4 * exact[place].abs().max()


def test_a_first_row_that_is_like_no_other():
    inputs, dy = example([1500, 700], 1500, (3, 4, 4))
    inputs[0][:, 0] = 1e3
    out = by_kernels(inputs, dy)[: len(OUT)]
    exact, _ = exactly(inputs, dy, out)
    for place in (4, 6):  # variances
        error = (out[place].cpu() - exact[place]).abs() / exact[place].clamp(min=1e-30)
        assert error.max() <= 1e-5


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # of numpy
def test_no_eps_where_all_units_vary():
    """Columns that only pad a tile have no variance."""
    inputs, dy = example([40, 30], 40, (5, 5, 7))
    inputs[3].abs_().add_(20)
    got = kernels.normed_layers(*(t.to(DEVICE) for t in inputs), 0.0, MOMENTUM)
    assert got[0][0, :40].isfinite().all() and got[0][1, :30].isfinite().all()


def test_strides_and_small_integers():
    inputs, dy = example([9, 4], 11, (6, 5, 4))
    strided = [t.mT.contiguous().mT if t.ndim > 1 else t.int() for t in inputs]
    turned = by_kernels(strided, dy.mT.contiguous().mT)
    for a, b in zip(turned, by_kernels(inputs, dy), strict=True):
        assert torch.equal(a, b)


def test_a_number_that_is_none_stays_in_its_replica():
    inputs, dy = example([5, 5], 5, (3, 4, 4))
    inputs[0][1, 2, 1] = NAN
    for name, a in zip(OUT + BACK, by_kernels(inputs, dy), strict=True):
        assert a[0].isfinite().all(), name
        assert a[1].isnan().any() or name == "dshift_2", name  # that only knows dy


def test_wrong_rows_stay_inside_the_memory():
    (x, _, *rest), dy = example([4, 4], 4, (3, 5, 5))
    wrong, right = (by_kernels((x, torch.tensor(rows), *rest), dy) for rows in ([99, -3], [4, 0]))
    for a, b in zip(wrong, right, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 4, 3), (2, 4, 0)])
def test_nothing(shape):
    groups, length, columns = shape
    inputs, dy = example([0] * groups, length, (columns, 4, 5))
    got = by_kernels([t.long() if i == 1 else t for i, t in enumerate(inputs)], dy)
    large, of_4, of_5 = [(groups, length, d) for d in (5, 4, 5)], (groups, 4), (groups, 5)
    gradients = [shape, (groups, 4, columns), *[of_4] * 3, (groups, 5, 4), *[of_5] * 3]
    numbers = [of_4, of_4, of_5, of_5]
    assert [tuple(t.shape) for t in got] == [*large, *numbers, *numbers, *gradients]


def test_what_is_not_there_has_zeros_even_where_memory_held_others():
    inputs, dy = example([30, 0, 9], 40, (8, 8, 8))
    poison = [torch.full((3, 40, 8), NAN, device=DEVICE) for _ in range(8)]
    del poison  # the next tensors of that shape may lie there
    got = dict(zip(OUT + BACK, by_kernels(inputs, dy), strict=True))
    for name in BY_ROW:
        for own, n in zip(got[name], inputs[1], strict=True):
            assert (own[n:] == 0).all(), name


# --------------------------------------------------------------------------------------------------
# The operators and the function


def double_example():
    inputs, dy = example([4, 0, 6], 7, (2, 3, 3), torch.float64)
    return [t.nan_to_num() if t.is_floating_point() else t for t in inputs], dy.nan_to_num()


def with_asked(inputs, asked):
    given = list(inputs)
    for place, tensor in zip(ASKED, asked, strict=True):
        given[place] = tensor
    return given


def test_the_cpu_form_is_the_definition():
    inputs, dy = double_example()
    out = torch.ops.fspool.normed_layers(*inputs, EPS, MOMENTUM)
    given = given_of(inputs, out)
    back = torch.ops.fspool.normed_layers_pull(dy, *given, True)
    asked = [inputs[place].clone().requires_grad_() for place in ASKED]
    own = with_asked(inputs, asked)
    exact = normed_layers_definition(*own, EPS, MOMENTUM)
    expected = *exact, *torch.autograd.grad(exact[0], asked, dy)
    for name, a, b in zip(OUT + BACK, (*out, *back), expected, strict=True):
        torch.testing.assert_close(a, b.detach(), msg=lambda text, name=name: f"{name}: {text}")
    assert torch.ops.fspool.normed_layers_pull(dy, *given, False)[0].shape == (3, 0)


def test_derivatives_of_the_operator():
    inputs, _ = double_example()

    def function(*asked):
        return torch.ops.fspool.normed_layers(*with_asked(inputs, asked), EPS, MOMENTUM)[0]

    asked = [inputs[place].requires_grad_() for place in ASKED]
    assert torch.autograd.gradcheck(function, asked)
    assert torch.autograd.gradgradcheck(function, asked)


def test_what_nobody_asks_for_has_no_gradient():
    inputs, _ = double_example()
    out = torch.ops.fspool.normed_layers(inputs[0].requires_grad_(), *inputs[1:], EPS, MOMENTUM)
    assert [t.requires_grad for t in out] == [True, *[False] * 10]


def test_the_function_is_the_layers_one_by_one():
    inputs, _ = double_example()
    layers = Layer(*inputs[2:8]), Layer(*inputs[8:])
    y, *running = normed_layers(*inputs[:2], *layers)
    exact = normed_layers_definition(*inputs[:2], *layers[0], *layers[1], EPS, MOMENTUM)
    torch.testing.assert_close((y, *running[0], *running[1]), (exact[0], *exact[7:]))


def test_the_function_looks_at_no_rows_that_are_not_there():
    inputs, dy = example([4, 0, 6], 7, (2, 3, 3), torch.float64)
    found = []
    for given in (inputs, double(inputs)):
        asked = [given[place].detach().requires_grad_() for place in ASKED]
        x, rows, *layers = with_asked(given, asked)
        y, *_ = normed_layers(x, rows, Layer(*layers[:6]), Layer(*layers[6:]))
        found.append((y, *torch.autograd.grad(y, asked, dy)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


@needs_gpu
@pytest.mark.parametrize("precision, tolerance", [("highest", 1e-6), ("high", 2**-9)])
@pytest.mark.parametrize("widths", [(7, 16, 16), (37, 32, 32), (32, 32, 32), (64, 64, 64)])
@pytest.mark.parametrize("groups, length", [(2, 50), (20, 1300), (3, 40_000)])
def test_the_layers_on_cuda(groups, length, widths, precision, tolerance):
    """TF32 cuts both factors of a product off after ten bits: 2^-10 of each is lost at most, in
    each of two layers."""
    rows = torch.randint(length // 2, length + 1, (groups,))
    rows[0] = 1
    inputs, dy = example(rows.tolist(), length, widths)
    torch.set_float32_matmul_precision(precision)
    try:
        got = by_kernels(inputs, dy)
    finally:
        torch.set_float32_matmul_precision("highest")
    exact, sums = exactly(inputs, dy, got[: len(OUT)])
    for name, a, b in zip(OUT + BACK, got, exact, strict=True):
        error = (a.cpu() - b).flatten(1).abs().amax(1)
        assert (error <= 2 * tolerance * sums[name].flatten(1).amax(1)).all(), name


@needs_gpu
def test_more_numbers_than_32_bits_count():
    """Of one replica: the last rows are other than all before."""
    if torch.cuda.mem_get_info()[0] < 80 << 30:
        pytest.skip("needs 80 GiB of memory")
    length, some, width = (1 << 25) + 5, 5, 64
    (_, _, *layers), _ = example([1], 1, (width, width, width))
    layers, rows = [t.to(DEVICE) for t in layers], torch.tensor([length], device=DEVICE)
    x, dy = (torch.zeros(1, length, width, device=DEVICE) for _ in range(2))
    for tensor in (x, dy):
        tensor[0, -some:] = torch.randn(some, width, device=DEVICE)
    inputs = x, rows, *layers
    out = kernels.normed_layers(*inputs, EPS, MOMENTUM)
    dx, *_ = kernels.pull(dy, *given_of(inputs, out), True)
    expected = x[0, -some:].double() @ layers[0][0].double().mT + layers[1][0]
    torch.testing.assert_close(out[1][0, -some:].double(), expected, atol=1e-4, rtol=1e-5)
    for name, rows_of in zip(BY_ROW, (*out[:3], dx), strict=True):
        first = rows_of[0, :1]
        assert all((part == first).all() for part in rows_of[0, :-some].split(1 << 20)), name
        assert (rows_of[0, -some:] != first).any(1).all(), name


@needs_gpu
def test_another_batch_or_room_compiles_no_kernel():
    def compiled():
        each = (kernels._multiply, kernels._pull, kernels.finish)
        return sum(len(cache[0]) for k in each for cache in k.device_caches.values())

    def run(groups, length):
        by_kernels(*example([length] * groups, length, (32, 32, 32)))

    run(3, 100)
    before = compiled()
    for groups, length in ((2, 96), (4, 33), (16, 1024), (2, 40_000)):
        run(groups, length)
    assert compiled() == before
