"""The definitions against the paper's formulas, one set at a time: the truth that kernels meet."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool.functional import fspool, fspool_vjp, fsunpool, relaxed_sort
from fspool.functional.piecewise import piecewise_linear

from .layouts import NAMES, lay_out
from .reference import permutation, pool_set, unpool_set, weight_function

pytestmark = pytest.mark.usefixtures("definition")
TEMPERATURES = (None, 0.7)


def make_sets(sizes, dim=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, dim, generator=generator, dtype=torch.float64) for n in sizes]


def make_weight(dim=3, knots=4, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(dim, knots, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("layout", NAMES)
@pytest.mark.parametrize("sizes", [(1,), (2, 5), (0, 1, 2, 7), (4, 4), (0, 0)])
def test_pool_and_unpool_are_the_formulas(layout, sizes, temperature):
    sets, weight, other = make_sets(sizes), make_weight(), make_weight(seed=2)
    x, keywords, gather = lay_out(layout, sets, extra=2, junk=float("nan"))
    y, order = fspool(x, weight, temperature=temperature, return_order=True, **keywords)
    expected = torch.stack([pool_set(s, weight, temperature) for s in sets])
    torch.testing.assert_close(y, expected)

    z = torch.randn_like(y)
    out = fsunpool(z, other, order)
    for got, s, zi in zip(gather(out), sets, z, strict=True):
        torch.testing.assert_close(got, unpool_set(zi, other, s, temperature))
    if layout in ("mask", "sizes"):  # zeros in the padding
        torch.testing.assert_close(out.abs().sum(), sum(o.abs().sum() for o in gather(out)))


@pytest.mark.parametrize("layout", NAMES)
def test_relaxed_sort_is_the_formula(layout):
    sets = make_sets((0, 1, 2, 7))
    x, keywords, _ = lay_out(layout, sets, extra=1, junk=float("inf"))
    out, order = relaxed_sort(x, temperature=0.7, return_order=True, **keywords)
    if layout == "nested":
        rows = list(out.unbind())
    elif layout == "offsets":
        rows = out.split([len(s) for s in sets])
    else:  # by rank, elements come first whatever the mask was
        rows = [row[: len(s)] for row, s in zip(out, sets, strict=True)]
        assert all((row[len(s) :] == 0).all() for row, s in zip(out, sets, strict=True))
    for got, s in zip(rows, sets, strict=True):
        columns = [permutation(s[:, d], 0.7) @ s[:, d] for d in range(s.shape[1])] if len(s) else []
        expected = torch.stack(columns, 1) if len(s) else torch.zeros(0, 3, dtype=torch.float64)
        torch.testing.assert_close(got, expected)


@given(n=st.integers(1, 40), knots=st.integers(2, 12), seed=st.integers(0, 99))
def test_weight_function(n, knots, seed):
    weight = make_weight(2, knots, seed)
    got = piecewise_linear(weight[None], torch.arange(n)[None, :, None], torch.tensor(n))
    expected = [[weight_function(w, j / max(n - 1, 1)) for w in weight] for j in range(n)]
    torch.testing.assert_close(got[0], torch.tensor(expected, dtype=torch.float64))


def test_as_many_knots_as_elements_gives_the_fixed_size_form_exactly():
    x, weight = torch.randn(5, 13, 4), torch.randn(4, 13)
    ranks = torch.arange(13)[None, :, None]
    assert torch.equal(piecewise_linear(weight[None], ranks, torch.tensor(13))[0], weight.T)
    fixed = (x.sort(1, descending=True).values * weight.T).sum(1)
    torch.testing.assert_close(fspool(x, weight), fixed)


@pytest.mark.parametrize(
    "knots, reduce",
    [
        ((2.5, 2.5, 2.5), lambda x: 2.5 * x.sum(1)),
        ((1.0, 0.0, 0.0, 0.0, 0.0), lambda x: x.amax(1)),
        ((0.0, 0.0, 0.0, 0.0, 1.0), lambda x: x.amin(1)),
        ((0.0, 0.0, 1.0, 0.0, 0.0), lambda x: x.median(1).values),
    ],
    ids=["sum", "max", "min", "median"],
)
def test_special_weights(knots, reduce):
    x = torch.randn(6, 5, 3)
    torch.testing.assert_close(fspool(x, torch.tensor(knots).expand(3, -1)), reduce(x))


def test_one_element_takes_the_first_knot_also_when_padded():
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])
    alone = fspool(torch.tensor([[[-2.0]]]), weight)
    padded = fspool(torch.tensor([[[-2.0], [9.0], [9.0]]]), weight, sizes=torch.tensor([1]))
    assert alone.item() == padded.item() == -2.0


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("layout", NAMES)
def test_gradients_to_second_order(layout, temperature):
    sets = make_sets((0, 1, 4), dim=2)
    weight, other = make_weight(2, 3).requires_grad_(), make_weight(2, 3, 5).requires_grad_()
    x, keywords, _ = lay_out(layout, sets, extra=1)
    offsets = keywords.get("offsets", x.offsets() if layout == "nested" else None)
    values = (x.values() if layout == "nested" else x).requires_grad_()

    def autoencode(values, weight, other):
        arguments = {"offsets": offsets} if offsets is not None else keywords
        y, order = fspool(values, weight, temperature=temperature, return_order=True, **arguments)
        return fsunpool(y.tanh(), other, order), fspool_vjp(y, weight, order)

    assert torch.autograd.gradcheck(autoencode, (values, weight, other))
    assert torch.autograd.gradgradcheck(autoencode, (values, weight, other))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("layout", ["mask", "offsets"])
def test_vjp_is_the_gradient(layout, temperature):
    x, keywords, _ = lay_out(layout, make_sets((0, 1, 2, 6)), extra=1)
    x, weight = x.requires_grad_(), make_weight()
    y, order = fspool(x, weight, temperature=temperature, return_order=True, **keywords)
    g = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, g)
    torch.testing.assert_close(fspool_vjp(g, weight, order), expected)


def test_relaxed_becomes_hard_as_the_temperature_falls():
    x, weight = torch.randn(2, 9, 4, dtype=torch.float64), make_weight(4)
    hard = fspool(x, weight)
    errors = [(fspool(x, weight, temperature=t) - hard).abs().max() for t in (1.0, 1e-1, 1e-4)]
    assert errors[0] > errors[1] > errors[2]
    torch.testing.assert_close(fspool(x, weight, temperature=1e-4), hard)


def test_scaling_the_features_is_scaling_the_temperature():
    x, weight = torch.randn(2, 9, 4, dtype=torch.float64), make_weight(4)
    sharp = fspool(5 * x, weight, temperature=1.0)
    torch.testing.assert_close(sharp, 5 * fspool(x, weight, temperature=0.2))


def test_hard_unpool_of_the_sorted_values_gives_back_the_set():
    x = torch.randn(3, 6, 4)
    _, order = fspool(x, torch.randn(4, 5), return_order=True)
    assert torch.equal(order.unsort(order.sort(x)), x)
    assert torch.equal(order.sort(x), x.sort(1, descending=True).values)


def test_minus_infinity_is_an_element_and_not_padding():
    x = torch.tensor([[[7.0], [float("-inf")], [9.0], [1.0]]], requires_grad=True)
    mask = torch.tensor([[False, True, False, True]])
    weight = torch.tensor([[2.0, 3.0]])
    y, order = fspool(x, weight, mask=mask, return_order=True)
    assert y.item() == float("-inf")
    assert order.indices.flatten().tolist() == [3, 1, -1, -1]
    (gradient,) = torch.autograd.grad(y, x)
    assert gradient.flatten().tolist() == [0.0, 3.0, 0.0, 2.0]


def test_nan_stays_in_its_feature_of_its_set():
    x = torch.randn(2, 4, 3)
    x[0, 1, 2] = float("nan")
    for temperature in TEMPERATURES:
        y = fspool(x, torch.randn(3, 4), temperature=temperature)
        assert y.isnan().tolist() == [[False, False, True], [False, False, False]]
