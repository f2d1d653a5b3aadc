"""Packed sets of replicas that have offsets of their own: each replica is the single run."""

import pytest
import torch

import fspool
from fspool.functional import fspool as pool_function
from fspool.functional import fspool_vjp, fsunpool, relaxed_sort

from .cuda_graphs import replays_with_other_inputs
from .interpreter import DEVICE

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
NAN = float("nan")
ROWS, DIM = 13, 3
OFFSETS = torch.tensor([[0, 4, 4, 9], [0, 0, 0, 0], [0, 1, 11, 13], [0, 13, 13, 13]])
GROUPS = len(OFFSETS)
BOTH = pytest.mark.parametrize("by", ["operators", "definition"])
TEMPERATURES = pytest.mark.parametrize("temperature", [None, 0.7])


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype)


def rows_inside(offsets=OFFSETS, rows=ROWS):
    return torch.arange(rows) < offsets[:, -1:]


def example(junk=NAN, dtype=torch.float64):
    """x with ties, and junk in the rows of no set; weights."""
    x = draw(GROUPS, ROWS, DIM, dtype=dtype)
    x[..., 1] = x[..., 1].round()
    x[~rows_inside()] = junk
    return x, draw(GROUPS, DIM, 4, dtype=dtype), draw(GROUPS, DIM, 4, dtype=dtype)


def use(by, request):
    if by == "definition":
        request.getfixturevalue("definition")


def everything(x, weight, other, temperature, **keywords):
    """What an auto-encoder does, to second derivatives. Junk must not reach any of it."""
    x, weight, other = (t.detach().requires_grad_() for t in (x, weight, other))
    y, order = pool_function(x, weight, temperature=temperature, return_order=True, **keywords)
    out, pulled = fsunpool(y.sin(), other, order), fspool_vjp(y.cos(), weight, order)
    inputs = (x, weight, other)
    first = torch.autograd.grad((out + pulled).sin().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
    return y, out, pulled, *first, *second


def assert_each_is_alone(together, alone_of, by_row):
    """The rows of no set are zeros in what has rows; the others are those of the single run."""
    for g, end in enumerate(OFFSETS[:, -1].tolist()):
        for i, (a, b) in enumerate(zip(together, alone_of(g, end), strict=True)):
            own = a[g]
            if i in by_row:
                assert (own[end:] == 0).all(), i
                own = own[:end]
            torch.testing.assert_close(own, b, msg=lambda text, i=i: f"result {i}: {text}")


@BOTH
@TEMPERATURES
def test_values_and_derivatives_of_a_replica_are_those_of_the_single_run(by, temperature, request):
    use(by, request)
    x, weight, other = example()

    def alone_of(g, end):
        return everything(*(x[g, :end], weight[g], other[g], temperature), offsets=OFFSETS[g])

    together = everything(x, weight, other, temperature, offsets=OFFSETS)
    assert_each_is_alone(together, alone_of, by_row={1, 2, 3, 6})


@pytest.mark.usefixtures("walking")
def test_the_banded_relaxed_sort():
    test = test_values_and_derivatives_of_a_replica_are_those_of_the_single_run
    test("operators", 0.7, None)


@BOTH
@TEMPERATURES
def test_gradcheck(by, temperature, request):
    use(by, request)
    offsets = torch.tensor([[0, 3, 4], [0, 0, 1]])
    x, weight, other = draw(2, 5, 2), draw(2, 2, 3), draw(2, 2, 3)
    x, weight, other = (t.requires_grad_() for t in (x, weight, other))

    def function(x, weight, other):
        y, order = pool_function(
            x, weight, offsets=offsets, temperature=temperature, return_order=True
        )
        return fsunpool(y, other, order), fspool_vjp(y, weight, order)

    assert torch.autograd.gradcheck(function, (x, weight, other))
    assert torch.autograd.gradgradcheck(lambda *given: function(*given)[0], (x, weight, other))


@pytest.mark.parametrize("pool", [fspool.nn.SumPool(), fspool.nn.MeanPool(), fspool.nn.MaxPool()])
@pytest.mark.parametrize("junk", [NAN, float("inf"), 1e9])
def test_baselines(pool, junk):
    x = example(junk)[0]

    def first_and_second(x, offsets):
        x = x.detach().requires_grad_()
        y = pool(x, offsets=offsets)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return y, first, *torch.autograd.grad(first.square().sum(), x)

    def alone_of(g, end):
        return first_and_second(x[g, :end], OFFSETS[g])

    assert_each_is_alone(first_and_second(x, OFFSETS), alone_of, by_row={1, 2})


def test_modules():
    x, weight, other = example()
    pool, unpool = fspool.FSPool(DIM, 4), fspool.FSUnpool(DIM, 4)
    pool.weight, unpool.weight = torch.nn.Parameter(weight), torch.nn.Parameter(other)
    y, order = pool(x, offsets=OFFSETS, return_order=True)
    out = unpool(y, order)
    assert y.shape == (GROUPS, 3, DIM) and out.shape == x.shape and order.layout == "packed"
    assert torch.equal(out, fsunpool(y, other, order))


@BOTH
@TEMPERATURES
def test_orders(by, temperature, request):
    use(by, request)
    x, weight, _ = example()
    _, order = pool_function(x, weight, offsets=OFFSETS, temperature=temperature, return_order=True)
    assert torch.equal(order.sizes, OFFSETS.diff())
    v, matrix, length = draw(*x.shape), order.matrix(), int(OFFSETS.diff().max())
    assert matrix.shape == (GROUPS, 3, DIM, length, length)

    def results(order, x, v):
        return order.indices, order.ranks.long().view(x.shape), order.sort(x), order.unsort(v)

    for g, end in enumerate(OFFSETS[:, -1].tolist()):
        _, alone = pool_function(
            *(x[g, :end], weight[g]),
            offsets=OFFSETS[g],
            temperature=temperature,
            return_order=True,
        )
        expected = results(alone, x[g, :end], v[g, :end])
        for value, a, b in zip((-1, 0, 0, 0), results(order, x, v), expected, strict=True):
            torch.testing.assert_close(a[g, :end], b)
            assert (a[g, end:] == value).all()
        small = alone.matrix().shape[-1]
        torch.testing.assert_close(matrix[g][..., :small, :small], alone.matrix())
        assert not matrix[g][..., small:, :].any() and not matrix[g][..., small:].any()


@BOTH
def test_relaxed_sort(by, request):
    use(by, request)
    x = example()[0]
    out = relaxed_sort(x, temperature=0.7, offsets=OFFSETS)

    def alone_of(g, end):
        return [relaxed_sort(x[g, :end], temperature=0.7, offsets=OFFSETS[g])]

    assert_each_is_alone([out], alone_of, by_row={0})


@BOTH
def test_offsets_of_their_own_that_are_the_same_are_shared_offsets(by, request):
    use(by, request)
    offsets = torch.tensor([0, 5, 5, ROWS])
    x, weight, other = example(junk=1.0)
    shared = everything(x, weight, other, None, offsets=offsets)
    own = everything(x, weight, other, None, offsets=offsets.expand(GROUPS, -1))
    for a, b in zip(own, shared, strict=True):
        torch.testing.assert_close(a, b)


@BOTH
def test_no_sets_and_no_rows(by, request):
    use(by, request)
    for rows, batch, groups in ((5, 0, 2), (0, 2, 2), (0, 0, 2), (3, 1, 0)):
        x = draw(groups, rows, DIM).fill_(NAN).requires_grad_()
        weight = draw(groups, DIM, 4).requires_grad_()
        offsets = torch.zeros(groups, batch + 1, dtype=torch.long)
        y, order = pool_function(x, weight, offsets=offsets, return_order=True)
        assert y.shape == (groups, batch, DIM) and (y == 0).all()
        out = fsunpool(y, weight, order)
        assert out.shape == x.shape and (out == 0).all()
        for g in torch.autograd.grad(out.sum() + y.sum(), (x, weight)):
            assert (g == 0).all()
        for pool in (fspool.nn.SumPool(), fspool.nn.MeanPool(), fspool.nn.MaxPool()):
            assert (pool(x, offsets=offsets) == 0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_any_integers(dtype):
    x, weight, _ = example()
    got = pool_function(x, weight, offsets=OFFSETS.to(dtype))
    assert torch.equal(got, pool_function(x, weight, offsets=OFFSETS))


@pytest.mark.parametrize(
    "pool", [pool_function, lambda x, weight, offsets: fspool.nn.MaxPool()(x, offsets=offsets)]
)
def test_compiled(pool):
    x, weight, _ = (t.float().requires_grad_() for t in example())

    def step(function):
        y = function(x, weight, offsets=OFFSETS)
        return y, *torch.autograd.grad(y.square().sum(), (x, weight), allow_unused=True)

    compiled = torch.compile(pool, fullgraph=True)
    for a, b in zip(step(compiled), step(pool), strict=True):
        torch.testing.assert_close(a, b)


def test_vmap_over_replicas_that_have_replicas():
    x, weight, _ = (torch.stack((t, t.flip(0))) for t in example())
    offsets = torch.stack((OFFSETS, OFFSETS.flip(0)))

    def pool(x, weight, offsets):
        return pool_function(x, weight, offsets=offsets)

    got = torch.func.vmap(pool)(x, weight, offsets)
    assert torch.equal(
        got, torch.stack([pool(*each) for each in zip(x, weight, offsets, strict=True)])
    )
    same = torch.func.vmap(pool, (0, 0, None))(torch.stack((x[0], 2 * x[0])), weight, OFFSETS)
    assert torch.equal(same[1], pool(2 * x[0], weight[1], OFFSETS))


def test_gradients_by_torch_func():
    x, weight, _ = example()

    def loss(x):
        return pool_function(x, weight, offsets=OFFSETS).square().sum()

    given = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(given), given)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)


BAD = {
    "one replica too few": (OFFSETS[:3], "shape (3, 4)", "(B + 1,) or (4, B + 1)"),
    "three axes": (OFFSETS[None], "shape (1, 4, 4)", "(B + 1,) or (4, B + 1)"),
    "nothing": (OFFSETS[:, :0], "shape (4, 0)", "(B + 1,) or (4, B + 1)"),
    "start": (OFFSETS + 1, "offsets[0] starts at 1", "expected 0"),
    "fall": (OFFSETS[:, [0, 2, 1, 3]], "offsets[2] decreases from 11 to 1 at position 2"),
    "end": (OFFSETS + (OFFSETS == 13).long(), "offsets[2] ends at 14", "expected at most 13"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_offsets_that_do_not_fit(case):
    offsets, *words = case
    x, weight, _ = example()
    with pytest.raises(ValueError) as error:
        pool_function(x, weight, offsets=offsets)
    assert all(word in str(error.value) for word in words)


def test_offsets_of_replicas_need_replicas():
    with pytest.raises(ValueError, match=r"shape \(4, 4\); expected \(B \+ 1,\): where"):
        pool_function(draw(ROWS, DIM), draw(DIM, 4), offsets=OFFSETS)
    with pytest.raises(ValueError, match=r"offsets ends at 9; expected 13,"):  # shared: to the end
        pool_function(draw(2, ROWS, DIM), draw(2, DIM, 4), offsets=OFFSETS[0])


# --------------------------------------------------------------------------------------------------
# On a real GPU


def big():
    """G replicas of graphs like those of a benchmark, with room that not all of them use."""
    groups, batch, capacity = 20, 32, 1500
    sizes = torch.randint(0, 60, (groups, batch))
    sizes[3, 5] = 1450 - sizes[3, :5].sum()  # one that no tile holds
    sizes[3, 6:] = 1
    offsets = torch.nn.functional.pad(sizes.cumsum(1), (1, 0)).clamp(max=capacity)
    x = draw(groups, capacity, 16, dtype=torch.float32)
    x[~rows_inside(offsets, capacity)] = NAN
    weight = 0.02 * draw(groups, 16, 20, dtype=torch.float32)  # sums of a moderate size
    return x.to(DEVICE), weight.to(DEVICE), offsets.to(DEVICE)


@needs_gpu
def test_cuda_is_the_definition_in_float64():
    x, weight, offsets = big()
    single = everything(x, weight, weight, None, offsets=offsets)
    exact = everything(x.double(), weight.double(), weight.double(), None, offsets=offsets)
    for a, b in zip(single, exact, strict=True):
        assert (a.double() - b).abs().max() <= 1e-5 * b.abs().max()


@needs_gpu
def test_in_a_cuda_graph_with_offsets_that_change():
    x, weight, offsets = big()
    x, weight = x.nan_to_num().requires_grad_(), weight.requires_grad_()

    def step():
        y = pool_function(x, weight, offsets=offsets)
        return y.detach(), *torch.autograd.grad(y.square().sum(), (x, weight))

    replays_with_other_inputs(step, offsets)


@needs_gpu
def test_another_batch_or_room_compiles_no_kernel():
    from fspool.kernels.cuda import pool, pull

    def kernels():
        return sum(
            len(cache[0])
            for kernel in (pool._pool, pull._unpool, pull._sum_knots)
            for cache in kernel.device_caches.values()
        )

    def step(x, weight, offsets):
        x = x.contiguous().requires_grad_()
        y = pool_function(x, weight, offsets=offsets.contiguous())
        torch.autograd.grad(y.sum(), (x, weight))

    x, weight, offsets = big()
    weight.requires_grad_()
    few = torch.tensor([0, 700, 1500], device=DEVICE)  # all of them are looked at by every tile
    step(x, weight, offsets)
    step(x, weight, few)
    before = kernels()
    for batch in (15, 16, 31):
        for rows in (1400, 1499):
            step(x[:, :rows], weight, offsets[:, : batch + 1].clamp(max=rows))
    step(x, weight, few + torch.tensor([0, 50, 0], device=DEVICE))
    assert kernels() == before


@needs_gpu
@pytest.mark.parametrize("pool", [fspool.nn.SumPool(), fspool.nn.MeanPool()])
def test_baselines_on_cuda_are_always_the_same_bits(pool):
    sizes = torch.randint(0, 900, (3, 40))
    offsets = torch.nn.functional.pad(sizes.cumsum(-1), (1, 0)).cuda()
    x = torch.randn(3, int(offsets.max()) + 5, 33, device="cuda", requires_grad=True)
    y = pool(x, offsets=offsets)
    exact = pool(x.detach().double(), offsets=offsets)
    torch.testing.assert_close(y.double(), exact, rtol=1e-6, atol=1e-4)
    for _ in range(5):
        assert torch.equal(pool(x, offsets=offsets), y)
    g = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, g)
    wide = x.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(pool(wide, offsets=offsets), wide, g.double())
    torch.testing.assert_close(dx.double(), expected, rtol=1e-6, atol=1e-6)
