"""The relaxed sort in O(n) memory, and as a stored matrix, against the definition."""

import pytest
import torch

import fspool
from fspool.functional import by_rank, dispatch, fspool_vjp, fsunpool, relaxed_sort
from fspool.functional import fspool as pool_function
from fspool.kernels.cpu import chunks
from fspool.kernels.cpu.relaxed_sort import walk

from .definitions import NAN, assert_same, by_definition, layouts_of, make_x
from .layouts import NAMES, lay_out
from .reference import relative_error


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
