"""The set auto-encoder and its baselines: shapes, symmetries, initial weights, many as one."""

import math

import pytest
import torch

from fspool.checks import UserError
from fspool.lab.replicas import stack
from fspool.models import AutoEncoder, ListDecoder, SetDecoder, SetEncoder, set_autoencoder
from fspool.models.autoencoder import POOLS
from fspool.models.linear import Linear, ManyRows, mlp, spread_biases

HIDDEN, LATENT, POINTS = 6, 3, 5
MODELS = {
    "relaxed": {},
    "hard": {"temperature": None},
    "one permutation": {"features": 1},
    "no latent": {"use_latent": False},
    **{f"list of {pool}": {"pool": pool, "decoder": "list"} for pool in POOLS},
}
models = pytest.mark.parametrize("kind", MODELS)
temperatures = pytest.mark.parametrize("temperature", [None, 1.0])


def make(pool="fspool", decoder="set", temperature=1.0, features=None, use_latent=True):
    encoder = SetEncoder(2, HIDDEN, LATENT, pool=pool, knots=4, temperature=temperature)
    if decoder == "list":
        decoder = ListDecoder(LATENT, HIDDEN, 2, POINTS)
    else:
        decoder = SetDecoder(LATENT, HIDDEN, 2, knots=4, features=features)
    model = AutoEncoder(encoder, decoder, use_latent=use_latent)
    spread_biases(model)  # with zeros some of what is claimed would be true of nothing
    return model.double()


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


# --------------------------------------------------------------------------------------------------
# Shapes and symmetries


@models
def test_the_output_has_the_shape_of_the_input(kind):
    model, x = make(**MODELS[kind]), draw(4, POINTS, 2)
    assert model(x).shape == x.shape and model(x).dtype == x.dtype
    z, order = model.encoder(x)
    assert z.shape == (4, LATENT) and (order is None) == (MODELS[kind].get("pool", "f")[0] != "f")


@temperatures
def test_sets_of_any_size_and_layout(temperature):
    model = make(temperature=temperature)
    x, sizes = draw(3, POINTS, 2), torch.tensor([POINTS, 1, 3])
    full = torch.arange(POINTS) < sizes[:, None]
    padded = model(x, sizes=sizes)
    packed = model(x[full], offsets=torch.tensor([0, 5, 6, 9]))
    assert packed.shape == (9, 2)
    torch.testing.assert_close(padded[full], packed)
    for row, size in enumerate(sizes):
        alone = model(x[row : row + 1, :size])[0]
        torch.testing.assert_close(padded[row, :size], alone)


@pytest.mark.parametrize("pool", POOLS)
@temperatures
def test_the_encoder_does_not_see_the_order(pool, temperature):
    encoder = make(pool=pool, temperature=temperature).encoder
    x = draw(4, POINTS, 2)
    z, _ = encoder(x)
    assert z.std(0).min() > 0  # it does see the set
    torch.testing.assert_close(encoder(x[:, torch.randperm(POINTS)])[0], z)


@temperatures
def test_the_set_auto_encoder_answers_in_the_order_of_the_input(temperature):
    model, x, order = make(temperature=temperature), draw(4, POINTS, 2), torch.randperm(POINTS)
    y = model(x)
    assert not torch.allclose(y[:, order], y)
    torch.testing.assert_close(model(x[:, order]), y[:, order])


@pytest.mark.parametrize("pool", POOLS)
def test_the_list_has_an_order_of_its_own(pool):
    model, x = make(pool=pool, decoder="list"), draw(4, POINTS, 2)
    torch.testing.assert_close(model(x[:, torch.randperm(POINTS)]), model(x))


def test_a_decoder_of_few_features_uses_the_first_permutations_only():
    model, x = make(temperature=None, features=2), draw(4, POINTS, 2)
    z, order = model.encoder(x)
    for features, same in (([0, 1], True), ([1, 0], False), ([2, 3], False)):
        changed = order.select(features + [2, 3])
        assert torch.equal(model.decoder(z, changed), model.decoder(z, order)) == same


def test_without_the_latent_vector_only_the_permutations_reach_the_decoder():
    model, x = make(use_latent=False, temperature=None), draw(4, POINTS, 2)
    y = model(x)
    model.encoder.vector[-1].weight.data.mul_(-3)
    assert torch.equal(model(x), y) and y.std(0).max() > 0
    model = make(use_latent=False, decoder="list")
    assert (model(x) == model(x[:1])).all()  # and a list gets nothing at all


# --------------------------------------------------------------------------------------------------
# Many as one


@models
def test_a_stack_of_models_is_each_of_them(kind):
    singles = [make(**MODELS[kind]) for _ in range(3)]
    model, x = stack(singles), draw(3, 4, POINTS, 2)
    y = model(x)
    assert y.shape == x.shape
    for own, ours, theirs in zip(singles, y, x, strict=True):
        torch.testing.assert_close(ours, own(theirs), rtol=1e-12, atol=1e-12)


@models
def test_a_run_gets_its_own_gradient_and_no_other(kind):
    singles = [make(**MODELS[kind]) for _ in range(2)]
    model, x = stack(singles), draw(2, 4, POINTS, 2)
    losses = model(x).square().mean((1, 2, 3))
    losses.sum().backward()
    for index, own in enumerate(singles):
        own(x[index]).square().mean().backward()
        for name, parameter in model.named_parameters():
            expected = own.get_parameter(name).grad
            torch.testing.assert_close(parameter.grad[index], expected, rtol=1e-9, atol=1e-12)


def test_stacking_copies():
    singles = [make() for _ in range(3)]
    before = [{name: value.clone() for name, value in m.state_dict().items()} for m in singles]
    model = stack(singles)
    for index, own in enumerate(before):
        got = {name: value[index] for name, value in model.state_dict().items()}
        assert got.keys() == own.keys() and all(torch.equal(got[k], own[k]) for k in own)
    for parameter in model.parameters():
        parameter.data.zero_()
    for single, own in zip(singles, before, strict=True):
        assert all(torch.equal(value, own[name]) for name, value in single.state_dict().items())


# --------------------------------------------------------------------------------------------------
# Parameters


BEFORE_LATENT = ("encoder.pool", "encoder.vector", "decoder.vector.0.weight")


@models
def test_the_gradient_reaches_every_parameter(kind):
    model = make(**MODELS[kind])
    model(draw(64, POINTS, 2)).sin().square().sum().backward()
    for name, parameter in model.named_parameters():
        cut = kind == "no latent" and name.startswith(BEFORE_LATENT)
        assert bool(parameter.grad.any()) != cut, name


def test_biases_start_at_zero_and_weights_as_glorot_has_them():
    model = mlp(20, 300, 40)
    for layer in (model[0], model[2]):
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        size = layer.weight.abs().max().item()
        assert 0.99 * bound < size <= bound and (layer.bias == 0).all()
        assert layer.weight.var().item() == pytest.approx(bound**2 / 3, rel=0.05)


@pytest.mark.parametrize("rows", [64, 10, 7])
def test_a_sum_over_rows_in_parts(rows):
    """What CUDA takes for many rows is the same layer, to second order."""
    inputs = [t.requires_grad_() for t in (draw(2, rows, 3), draw(2, 4, 3), draw(2, 4))]
    layer = Linear(3, 4)
    layer.weight, layer.bias = map(torch.nn.Parameter, inputs[1:])
    g = draw(2, rows, 4)
    got, expected = ManyRows.apply(*inputs), layer(inputs[0])
    torch.testing.assert_close(got, expected)
    owned = (inputs[0], layer.weight, layer.bias)
    for own, other in zip(
        torch.autograd.grad(got, inputs, g), torch.autograd.grad(expected, owned, g), strict=True
    ):
        torch.testing.assert_close(own, other)
    assert torch.autograd.gradgradcheck(ManyRows.apply, inputs)


def test_spread_biases_are_those_of_torch_and_leave_the_weights_alone():
    model = mlp(4, 2000, 1000)
    before = [layer.weight.clone() for layer in model if isinstance(layer, Linear)]
    spread_biases(model)
    layers = [layer for layer in model if isinstance(layer, Linear)]
    for layer, weight in zip(layers, before, strict=True):
        bound, size = layer.in_features**-0.5, layer.bias.abs().max().item()
        assert 0.98 * bound < size <= bound and torch.equal(layer.weight, weight)
        assert abs(layer.bias.mean().item()) < 0.1 * bound


def test_the_defaults_are_the_paper_s():
    model = set_autoencoder(channels=2)
    shapes = [tuple(parameter.shape) for parameter in model.encoder.parameters()]
    assert shapes == [(16, 2), (16,), (16, 16), (16,), (16, 20), (16, 16), (16,), (1, 16), (1,)]
    shapes = [tuple(parameter.shape) for parameter in model.decoder.parameters()]
    assert shapes == [(16, 1), (16,), (16, 16), (16,), (16, 20), (16, 16), (16,), (2, 16), (2,)]
    assert float(model.encoder.pool.temperature) == 1


@pytest.mark.parametrize("pool", [pool for pool in POOLS if pool != "fspool"])
def test_padding_among_the_elements(pool):
    """As the released code has it: the mean divides by the elements, but the sum is over all."""
    encoder = SetEncoder(2, HIDDEN, LATENT, pool=pool, pool_padding=True).double()
    spread_biases(encoder)
    x, sizes = draw(2, POINTS, 2), torch.tensor([3, 0])
    mask = torch.arange(POINTS) < sizes[:, None]
    rows = encoder.elements(x)
    pooled = {"sum": rows.sum(1), "max": rows.amax(1)}
    pooled["mean"] = pooled["sum"] / torch.tensor([[3.0], [1.0]])
    expected = encoder.vector(pooled[pool])
    torch.testing.assert_close(encoder(x, sizes=sizes)[0], expected)
    torch.testing.assert_close(encoder(x, mask=mask)[0], expected)
    full = encoder(x)[0]
    torch.testing.assert_close(encoder(x.flatten(0, 1), offsets=torch.tensor([0, 5, 10]))[0], full)


def test_a_pool_that_is_not_there():
    with pytest.raises(UserError, match="pool is 'men'; expected one of .* perhaps 'mean'"):
        SetEncoder(2, 4, 1, pool="men")
