"""What holds for every registered operator: opcheck, vmap, gradients of what was mapped."""

from functools import partial

import pytest
import torch

from fspool.functional import dispatch
from fspool.functional import fspool as pool_function
from fspool.kernels import permutation as permutation_kernels
from fspool.kernels import pool as pool_kernels
from fspool.kernels import relaxed_sort as relaxed_kernels
from fspool.kernels.operator import SHARED


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
        if sets[2] is not None:
            yield "pool", (data, weight, *sets, True, True, 11)
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
    layers = random(2, 6, 4), random(2, 6), random(2, 3, 6), random(2, 3)
    for sizes in (None, torch.tensor([[5, 0, 2], [1, 5, 3]])):
        yield "perceptron", (x, *layers, sizes)
        yield "perceptron_pull", (random(2, 3, 5, 3), x, *layers[:3], sizes, sizes is None)
    norm = random(2, 5, 4), torch.tensor([3, 5]), *(random(2, 4) for _ in range(3))
    norm += (torch.rand(2, 4).double(),)
    _, mean, var, *_ = torch.ops.fspool.row_norm(*norm, 1e-5, 0.1, True)
    yield "row_norm", (*norm, 1e-5, 0.1, True)
    yield "row_norm_pull", (random(2, 5, 4), *norm[:3], mean, var, 1e-5, True)
    first = random(2, 6, 4), *(random(2, 6) for _ in range(4)), torch.rand(2, 6).double()
    second = random(2, 3, 6), *(random(2, 3) for _ in range(4)), torch.rand(2, 3).double()
    layers = *norm[:2], *first, *second, 1e-5, 0.1
    yield "normed_layers", layers
    out = torch.ops.fspool.normed_layers(*layers)
    given = *out[1:3], first[0], second[0], *first[2:4], second[2], *out[3:7], 1e-5
    yield "normed_layers_pull", (random(2, 5, 3), *norm[:2], *given, True)
    yield "normed_layers_pull", (random(2, 5, 3), *norm[:2], *given, False)


def test_opcheck_of_every_operator():
    checked = set()
    for name, arguments in operator_calls():
        differentiable = name not in ("ranks", "nearest", "assign") and not name.endswith("pull")
        differentiable |= name == "permutation_pull"
        differentiable &= (name, *arguments[-2:]) != ("pool", False, False)
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
        schema = operator._schema.arguments[: len(arguments)]  # the rest have their defaults
        own = [argument.name not in SHARED for argument in schema]
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
