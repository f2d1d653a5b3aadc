"""Inside PyTorch: compile, export, ONNX, transforms, determinism, and the package's own manners."""

import copy
import doctest
import importlib
import io
import pkgutil

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import fspool
from fspool.functional import fspool as pool_function
from fspool.functional import fspool_vjp, fsunpool


class AutoEncoder(nn.Module):
    def __init__(self, temperature=None):
        super().__init__()
        self.encode, self.decode = nn.Linear(2, 6), nn.Linear(6, 2)
        self.pool = fspool.FSPool(6, knots=4, temperature=temperature)
        self.unpool = fspool.FSUnpool(6, knots=4)

    def forward(self, x, sizes=None):
        y, order = self.pool(self.encode(x), sizes=sizes, return_order=True)
        return self.decode(self.unpool(y, order))


def gradients(model, output):
    return torch.autograd.grad(output.square().sum(), list(model.parameters()))


def assert_all_close(got, expected):
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


temperatures = pytest.mark.parametrize("temperature", [None, 0.5])


def compile(function, temperature=None):
    """Generated code where making it is quick; the relaxed definition is traced and derived."""
    backend = "inductor" if temperature is None else "aot_eager"
    return torch.compile(function, fullgraph=True, backend=backend)


@temperatures
def test_compiled_auto_encoder_has_the_gradients_of_eager_for_every_parameter(temperature):
    model = AutoEncoder(temperature)
    compiled = compile(model, temperature)
    x, sizes = torch.randn(3, 7, 2), torch.tensor([7, 1, 4])
    for keywords in ({}, {"sizes": sizes}):
        expected, got = model(x, **keywords), compiled(x, **keywords)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert_all_close(gradients(model, got), gradients(model, expected))


@pytest.mark.usefixtures("walking")
def test_compiled_with_the_banded_operators_too():
    test_compiled_auto_encoder_has_the_gradients_of_eager_for_every_parameter(0.5)


def test_compiled_code_calls_the_registered_operators():
    seen = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    weight = torch.randn(3, 4)
    pool = torch.compile(lambda x: pool_function(x, weight), fullgraph=True, backend=backend)
    pool(torch.randn(2, 5, 3))
    assert "fspool.pool.default" in seen


def test_an_order_leaves_a_compiled_region_and_is_used_outside():
    pool, unpool, x = fspool.FSPool(4), fspool.FSUnpool(4), torch.randn(2, 5, 4)
    y, order = torch.compile(pool, fullgraph=True)(x, return_order=True)
    expected, eager_order = pool(x, return_order=True)
    torch.testing.assert_close(unpool(y, order), unpool(expected, eager_order))


@temperatures
def test_recompilations_stay_bounded_when_sizes_vary(temperature):
    counter = CompileCounter()
    pool = fspool.FSPool(4, knots=5, temperature=temperature)
    compiled = torch.compile(pool, fullgraph=True, backend=counter)
    for n in range(2, 60):
        x = torch.randn(3, n, 4)
        torch.testing.assert_close(compiled(x), pool(x))
    assert counter.frame_count <= 3


@temperatures
def test_a_promised_length_may_vary(temperature):
    counter = CompileCounter()
    pool = fspool.FSPool(4, knots=5, temperature=temperature)
    compiled = torch.compile(pool, fullgraph=True, backend=counter)
    for n in (7, 8, 9, 10, np.int64(30)):
        x, offsets = torch.randn(int(n) + 2, 4), torch.tensor([0, 2, int(n) + 2])
        expected = pool(x, offsets=offsets)
        torch.testing.assert_close(compiled(x, offsets=offsets, longest=n), expected)
    assert counter.frame_count <= 3


def test_modules_without_values():
    """As tools make them that only want shapes, or count what a model would take."""
    with FakeTensorMode():
        pool = fspool.FSPool(3, knots=4, temperature=1.0)
        pool.reset_parameters()
        assert pool(torch.randn(2, 5, 3)).shape == (2, 3)
    assert "temperature=1" in repr(pool)


def test_a_new_temperature_does_not_recompile():
    counter = CompileCounter()
    pool = fspool.FSPool(4, temperature=1.0)
    decay = fspool.nn.TemperatureDecay(pool, steps=5)
    compiled, x = torch.compile(pool, fullgraph=True, backend=counter), torch.randn(2, 6, 4)
    results = []
    for _ in range(5):
        torch.testing.assert_close(compiled(x), pool(x))
        results.append(compiled(x))
        decay.step()
    assert counter.frame_count == 1
    assert not torch.allclose(results[0], results[-1])


@temperatures
def test_gradient_steps_inside_a_compiled_model(temperature):
    """As in deep set prediction: the pool's gradient is part of the forward pass."""
    weight = torch.randn(3, 4, requires_grad=True)
    target, start = torch.randn(2, 3), torch.randn(2, 5, 3, requires_grad=True)

    def descend(x, weight):
        for _ in range(2):
            y, order = pool_function(x, weight, temperature=temperature, return_order=True)
            x = x - 0.1 * fspool_vjp(2 * (y - target), weight, order)
        return x

    def reference(x, weight):
        for _ in range(2):
            y = pool_function(x, weight, temperature=temperature)
            loss = (y - target).square().sum()
            x = x - 0.1 * torch.autograd.grad(loss, x, create_graph=True)[0]
        return x

    expected = reference(start, weight)
    truth = torch.autograd.grad(expected.square().sum(), (start, weight))
    for function in (descend, compile(descend, temperature)):
        got = function(start, weight)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert_all_close(torch.autograd.grad(got.square().sum(), (start, weight)), truth)


@temperatures
def test_func_grad_inside_compile_is_right(temperature):
    weight = torch.randn(3, 4, requires_grad=True)
    x = torch.randn(2, 5, 3, requires_grad=True)

    def function(x, weight):
        def inner(x):
            return pool_function(x, weight, temperature=temperature).square().sum()

        return (torch.func.grad(inner)(x) * x).sum()

    expected = torch.autograd.grad(function(x, weight), (x, weight))
    got = torch.autograd.grad(compile(function, temperature)(x, weight), (x, weight))
    assert_all_close(got, expected)


def test_func_transforms_of_the_auto_encoder():
    model = AutoEncoder(0.5).double()
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    expected = gradients(model, model(x))
    assert_all_close([g.sum(0) for g in each.values()], expected)


@temperatures
@pytest.mark.parametrize("count", [0, 2])
def test_vmap_over_any_number_of_batches(temperature, count):
    pool = fspool.FSPool(3, knots=4, temperature=temperature)
    x = torch.randn(count, 4, 5, 3)
    y = torch.vmap(pool)(x)
    assert y.shape == (count, 4, 3)
    assert_all_close(list(y), [pool(each) for each in x])


@temperatures
@pytest.mark.parametrize("packed", [False, True])
def test_export_runs_without_the_package(temperature, packed):
    pool = fspool.FSPool(3, knots=4, temperature=temperature)
    x = torch.randn(9, 3) if packed else torch.randn(3, 5, 3)
    keywords = {"offsets": torch.tensor([0, 2, 2, 9])} if packed else {}
    program = torch.export.export(pool, (x,), keywords)
    torch.testing.assert_close(program.module()(x, **keywords), pool(x, **keywords))
    assert not any("fspool" in str(node.target) for node in program.graph.nodes)


class Encoder(nn.Module):
    """Vectors and orders, for a decoder that is exported apart."""

    def __init__(self, how, temperature):
        super().__init__()
        self.how, self.pool = how, fspool.FSPool(3, knots=4, temperature=temperature)

    def forward(self, x, rows=None):
        keywords = {} if rows is None else {self.how: rows}
        return self.pool(x, return_order=True, **keywords)


def saved(program):
    """As it comes back from a file, by torch's reader of weights alone."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file).module()


@temperatures
@pytest.mark.parametrize("how", ["full", "sizes", "mask", "offsets"])
def test_encoder_and_decoder_exported_apart_and_saved(temperature, how, monkeypatch):
    """For any number of sets: the order goes from one to the other."""
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    encoder, decoder = Encoder(how, temperature), fspool.FSUnpool(3, knots=4)
    given = {
        "full": [(torch.randn(count, 6, 3),) for count in (3, 5)],
        "sizes": [(torch.randn(len(s), 6, 3), torch.tensor(s)) for s in ([6, 1, 3], [2, 0, 6, 6])],
        "mask": [(torch.randn(count, 6, 3), torch.rand(count, 6) > 0.4) for count in (3, 5)],
        "offsets": [
            (torch.randn(s[-1], 3), torch.tensor(s)) for s in ([0, 2, 2, 9], [0, 3, 4, 4, 8])
        ],
    }[how]
    changes = torch.export.Dim.AUTO
    shapes = tuple({0: changes} for _ in given[0])
    exported = saved(torch.export.export(encoder, given[0], dynamic_shapes=shapes))
    y, order = encoder(*given[0])
    apart = saved(torch.export.export(decoder, (y.detach(), order.detach())))
    torch.testing.assert_close(apart(y, order.detach()), decoder(y, order))
    y, order = exported(*given[1])
    exact, known = encoder(*given[1])
    torch.testing.assert_close(y, exact)
    torch.testing.assert_close(decoder(y, order), decoder(exact, known))
    assert repr(order) == repr(known)


@temperatures
@pytest.mark.parametrize("how", ["full", "sizes", "mask", "offsets"])
def test_onnx(temperature, how, tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = fspool.FSPool(3, knots=4, temperature=temperature)
            self.unpool = fspool.FSUnpool(3, knots=4)

        def forward(self, x, rows=None):
            keywords = {} if rows is None else {how: rows}
            y, order = self.pool(x, return_order=True, **keywords)
            return y, self.unpool(y, order)

    model, x = Model().eval(), torch.randn(9, 3) if how == "offsets" else torch.randn(3, 6, 3)
    rows = {
        "full": None,
        "sizes": torch.tensor([6, 1, 3]),
        "mask": torch.rand(3, 6) > 0.4,
        "offsets": torch.tensor([0, 2, 2, 9]),
    }[how]
    inputs = (x,) if rows is None else (x, rows)
    path = tmp_path / "model.onnx"
    torch.onnx.export(model, inputs, path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    feed = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True)}
    with torch.no_grad():
        expected = model(*inputs)
    for got, truth in zip(session.run(None, feed), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(got), truth, rtol=1e-4, atol=1e-5)


@temperatures
def test_the_same_seed_gives_the_same_bits_under_deterministic_algorithms(temperature):
    def train():
        torch.manual_seed(5)
        model = AutoEncoder(temperature)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            x = torch.randn(4, 9, 2)
            optimizer.zero_grad()
            (model(x, sizes=torch.tensor([9, 0, 1, 5])) - x).square().sum().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    torch.use_deterministic_algorithms(True)
    try:
        one, other = train(), train()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@temperatures
def test_auto_encoder_is_equivariant(temperature):
    model, x = AutoEncoder(temperature).double(), torch.randn(3, 8, 2, dtype=torch.float64)
    order = torch.randperm(8)
    torch.testing.assert_close(model(x[:, order]), model(x)[:, order])


def test_a_decoder_that_uses_some_of_the_permutations():
    x, features = torch.randn(2, 5, 6), [4, 1]
    _, order = fspool.FSPool(6, temperature=0.5)(x, return_order=True)
    unpool, z = fspool.FSUnpool(2), torch.randn(2, 2)
    _, own = fspool.FSPool(2, temperature=0.5)(x[..., features], return_order=True)
    torch.testing.assert_close(unpool(z, order.select(features)), unpool(z, own))


def test_temperature_decay_and_hard_evaluation():
    model = nn.Sequential(fspool.FSPool(3, temperature=1.0, hard_eval=True), nn.Identity())
    decay = fspool.nn.TemperatureDecay(model, start=1.0, end=0.01, steps=4)
    seen = [float(model[0].temperature)]
    for _ in range(6):
        decay.step()
        seen.append(float(model[0].temperature))
    expected = [0.01 ** (min(t, 4) / 4) for t in range(7)]
    assert seen == pytest.approx(expected)

    resumed = fspool.nn.TemperatureDecay(copy.deepcopy(model), start=1.0, end=0.01, steps=4)
    decay.count = 2
    resumed.load_state_dict(decay.state_dict())
    assert float(resumed.pools[0].temperature) == pytest.approx(0.1)

    x, pool = torch.randn(2, 6, 3), model[0]
    soft, hard = pool.train()(x), pool.eval()(x)
    torch.testing.assert_close(hard, pool_function(x, pool.weight))
    assert not torch.equal(soft, hard)


def test_initial_weights():
    assert (fspool.FSPool(8, init="ones").weight == 1).all()
    weight = fspool.FSUnpool(500, knots=20).weight
    assert abs(weight.mean()) < 0.05 and abs(weight.std() - 1) < 0.05
    assert fspool.FSPool(3, dtype=torch.float64).weight.dtype == torch.float64


def test_repr():
    assert repr(fspool.FSPool(3)) == "FSPool(dim=3, knots=20)"
    assert repr(fspool.FSPool(3, 5, temperature=0.5)) == "FSPool(dim=3, knots=5, temperature=0.5)"
    assert repr(fspool.FSUnpool(3)) == "FSUnpool(dim=3, knots=20)"


def test_module_moves_with_to_and_keeps_its_temperature():
    pool = fspool.FSPool(3, temperature=0.25).double()
    assert pool.temperature.item() == 0.25 and pool.temperature.dtype == torch.float64
    assert set(pool.state_dict()) == {"weight"}
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    torch.testing.assert_close(pool(x), pool_function(x, pool.weight, temperature=0.25))


def test_half_modules_keep_their_dtype():
    x = torch.randn(2, 4, 3).bfloat16()
    pool, unpool = fspool.FSPool(3).bfloat16(), fspool.FSUnpool(3).bfloat16()
    y, order = pool(x, return_order=True)
    assert y.dtype == unpool(y, order).dtype == torch.bfloat16
    assert fsunpool(y, unpool.weight.float(), order).dtype == torch.bfloat16


def test_examples_in_docstrings_run():
    count = 0
    for info in pkgutil.walk_packages(fspool.__path__, "fspool."):
        if info.name.startswith("fspool.integrations."):  # each needs a library of its own
            continue
        module = importlib.import_module(info.name)
        result = doctest.testmod(module, extraglobs={"torch": torch, "fspool": fspool})
        assert result.failed == 0, info.name
        count += result.attempted
    assert count >= 15


@temperatures
def test_forward_mode_derivatives(temperature):
    x, weight, direction = torch.randn(2, 5, 3), torch.randn(3, 4), torch.randn(2, 5, 3)

    def autoencode(x):
        y, order = pool_function(x, weight, temperature=temperature, return_order=True)
        return fsunpool(y, weight, order)

    with forward_ad.dual_level():
        dual = autoencode(forward_ad.make_dual(x, direction))
        tangent = forward_ad.unpack_dual(dual).tangent
    _, expected = torch.func.jvp(autoencode, (x,), (direction,))
    torch.testing.assert_close(tangent, expected)


@pytest.mark.parametrize("n", [5, 400])
def test_an_order_keeps_its_temperature_when_the_schedule_goes_on(n):
    pool, x = fspool.FSPool(16, temperature=1.0), torch.randn(1, n, 16)
    decay = fspool.nn.TemperatureDecay(pool, end=0.01, steps=1)
    _, order = pool(x, return_order=True)
    before = order.unsort(x)
    decay.step()
    assert torch.equal(order.unsort(x), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_modules_keep_their_temperature(dtype):
    """float16 takes 1e-8 for 0."""
    pool = fspool.FSPool(3, temperature=1e-8).to(dtype)
    assert float(pool.temperature) == pytest.approx(1e-8)
    assert pool(torch.randn(2, 4, 3, dtype=dtype)).dtype == dtype
    decay = fspool.nn.TemperatureDecay(pool, end=1e-9, steps=1)
    decay.step()
    assert float(pool.temperature) == pytest.approx(1e-9)


def test_a_temperature_without_a_value_is_refused():
    with torch.device("meta"), pytest.raises(ValueError, match="is on meta.*pass a number"):
        fspool.FSPool(3, temperature=torch.tensor(0.5))


def test_a_temperature_that_was_given_later_stays():
    pool = fspool.FSPool(3)
    pool.temperature = torch.tensor(0.5)
    pool.reset_parameters()
    assert repr(pool) == "FSPool(dim=3, knots=20, temperature=0.5)"


def test_deferred_initialisation():
    with torch.device("meta"):
        pool = fspool.FSPool(3, temperature=0.25)
    assert repr(pool) == "FSPool(dim=3, knots=20, temperature=0.25)"
    pool = pool.to_empty(device="cpu")
    pool.reset_parameters()
    assert pool.temperature.item() == 0.25 and pool.weight.isfinite().all()


@pytest.mark.parametrize("how", ["assigned", "made empty"])
def test_a_pool_without_values_gets_its_temperature(how):
    with torch.device("meta"):
        pool = fspool.FSPool(3, 4, temperature=0.5)
    made = fspool.FSPool(3, 4, temperature=0.5)
    if how == "made empty":
        pool.to_empty(device="cpu")
    pool.load_state_dict(made.state_dict(), assign=how == "assigned")
    x = torch.randn(2, 5, 3)
    assert float(pool.temperature) == 0.5 and torch.equal(pool(x), made(x))


def test_a_pool_made_empty_keeps_its_temperature():
    pool = fspool.FSPool(3, 4, temperature=0.5)
    pool.temperature.fill_(0.125)
    assert float(pool.to_empty(device="cpu").temperature) == 0.125
    assert float(pool.double().temperature) == 0.125


def test_hard_and_relaxed_pools_load_each_others_weights():
    hard, relaxed = fspool.FSPool(3), fspool.FSPool(3, temperature=0.25)
    hard.load_state_dict(relaxed.state_dict())
    relaxed.load_state_dict(hard.state_dict())
    assert torch.equal(hard.weight, relaxed.weight)
