"""Batch normalisation of replicas: each one is nn.BatchNorm1d over the rows that it has."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from fspool.lab.replicas import stack
from fspool.models.batch_norm import BatchNorm
from fspool.models.shared_norm import shared_norm

NAN = float("nan")
ROWS = [7, 2, 30]


def example(rows=ROWS, dim=5, room=4, dtype=torch.float64):
    """Rows of different sizes and scales; NaN in those that are not there."""
    x = torch.randn(len(rows), max(rows) + room, dim, dtype=dtype)
    x = x * torch.tensor([1.0, 1e-3, 100.0, 1.0, 1.0])[:dim] + torch.arange(dim)
    for g, n in enumerate(rows):
        x[g, n:] = NAN
    return x, torch.tensor(rows)


def layers(count, dim=5, **options):
    """Layers with numbers of their own, of ours and of torch."""
    ours = [BatchNorm(dim, **options).double() for _ in range(count)]
    options.pop("relu", None)
    theirs = [nn.BatchNorm1d(dim, **options).double() for _ in range(count)]
    for a, b in zip(ours, theirs, strict=True):
        with torch.no_grad():
            for name in ("weight", "bias", "running_mean"):
                getattr(a, name).normal_()
            a.running_var.uniform_(0.5, 2.0)
            for name, value in a.state_dict().items():
                getattr(b, name).copy_(value)
    return ours, theirs


def together(ours):
    return stack(ours) if len(ours) > 1 else ours[0]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("rows", [ROWS, [9]])
@pytest.mark.parametrize("options", [{}, {"eps": 0.1, "momentum": 0.7}])
def test_every_replica_is_torch_s_layer_alone(rows, relu, options):
    ours, theirs = layers(len(rows), relu=relu, **options)
    layer = together(ours)
    for step in range(3):  # the running numbers go on from step to step
        x, count = example(rows)
        x.requires_grad_()
        y = layer(x, count)
        g = torch.randn_like(x)
        mine = torch.autograd.grad(y, (x, layer.weight, layer.bias), g.where(~x.isnan(), NAN))
        for i, (n, other) in enumerate(zip(rows, theirs, strict=True)):
            part = x[i, :n].detach().requires_grad_()
            expected = other(part.relu() if relu else part)
            torch.testing.assert_close(y[i, :n], expected)
            assert (y[i, n:] == 0).all() and (mine[0][i, n:] == 0).all()
            dx, dw, db = torch.autograd.grad(expected, (part, other.weight, other.bias), g[i, :n])
            torch.testing.assert_close(mine[0][i, :n], dx)
            torch.testing.assert_close(mine[1].view(len(rows), -1)[i], dw)
            torch.testing.assert_close(mine[2].view(len(rows), -1)[i], db)
            for name in ("running_mean", "running_var"):
                own = getattr(layer, name).view(len(rows), -1)[i]
                torch.testing.assert_close(own, getattr(other, name), msg=f"{name}, step {step}")


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("rows", [ROWS, [0, 1, 3], [9]])
def test_evaluation_is_torch_s(rows, relu):
    ours, theirs = layers(len(rows), relu=relu)
    layer = together(ours).eval()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    x, count = example(rows)
    y = layer(x, count)
    for i, (n, other) in enumerate(zip(rows, theirs, strict=True)):
        part = x[i, :n].relu() if relu else x[i, :n]
        torch.testing.assert_close(y[i, :n], other.eval()(part))
        assert (y[i, n:] == 0).all()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_no_rows_and_one_row():
    """None: zeros, and the running numbers stay. One: the bias, and variance 0. Others: as ever."""
    ours, theirs = layers(3)
    layer = stack(ours)
    x, count = example([0, 1, 6])
    x.requires_grad_()
    before = [layer.running_mean.clone(), layer.running_var.clone()]
    y = layer(x, count)
    assert (y[0] == 0).all()
    torch.testing.assert_close(y[1, 0], layer.bias[1])
    torch.testing.assert_close(y[2, :6], theirs[2](x[2, :6]))
    assert torch.equal(layer.running_mean[0], before[0][0])
    assert torch.equal(layer.running_var[0], before[1][0])
    torch.testing.assert_close(layer.running_mean[1], before[0][1].lerp(x[1, 0].detach(), 0.1))
    torch.testing.assert_close(layer.running_var[1], 0.9 * before[1][1])
    torch.testing.assert_close(layer.running_var[2], theirs[2].running_var)
    gradients = torch.autograd.grad(y.square().sum(), (x, layer.weight, layer.bias))
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[0][0] == 0).all() and gradients[0][1].abs().max() < 1e-9


def test_numbers_far_from_zero_keep_their_digits():
    x, rows = 1e4 + torch.randn(1, 500, 3), torch.tensor([500])
    y = BatchNorm(3)(x, rows)
    exact = BatchNorm(3).double()(x.double(), rows)
    assert (y.double() - exact).abs().max() < 2e-3  # x itself has four digits after the point


def test_half_precision_is_computed_in_float32():
    x, rows = example(dtype=torch.float32)
    layer, other = BatchNorm(5), BatchNorm(5)
    layer, other = stack([layer] * 3), stack([other] * 3)
    got, expected = layer(x.bfloat16(), rows), other(x.bfloat16().float(), rows)
    assert torch.equal(got, expected.bfloat16())
    assert torch.equal(layer.running_var, other.running_var)
    assert torch.equal(
        layer.eval()(x.bfloat16(), rows), other.eval()(x.bfloat16().float(), rows).bfloat16()
    )


@pytest.mark.parametrize("relu", [False, True])
def test_gradients_to_second_order(relu):
    layer = layers(1, dim=2, relu=relu)[0][0]
    x, rows = example([5], dim=2, room=1)
    inputs = [t.nan_to_num().requires_grad_() for t in (x, layer.weight, layer.bias)]

    def function(x, weight, bias):
        parameters = {"weight": weight, "bias": bias}
        buffers = {name: b.clone() for name, b in layer.named_buffers()}
        return torch.func.functional_call(layer, {**parameters, **buffers}, (x, rows))

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_no_room():
    layer = BatchNorm(3)
    before = layer.running_var.clone()
    x = torch.zeros(1, 0, 3, requires_grad=True)
    y = layer(x, torch.tensor([0]))
    assert y.shape == x.shape and torch.equal(layer.running_var, before)


def test_compiled():
    ours, _ = layers(3)
    layer, other = stack(ours).float(), stack(ours).float()
    rows = torch.tensor(ROWS)
    x = torch.randn(3, 34, 5, requires_grad=True)
    compiled = torch.compile(other, fullgraph=True)

    def step(layer):
        y = layer(x, rows)
        return y, *torch.autograd.grad(y.sin().sum(), (x, layer.weight, layer.bias))

    torch.testing.assert_close(step(compiled), step(layer), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other.running_var, layer.running_var)


# --------------------------------------------------------------------------------------------------
# A batch that several processes have shares of: here they are threads


class Together:
    """Adds up tensors of all threads, once all have given theirs."""

    def __init__(self, count):
        self.given, self.turn = [None] * count, threading.Barrier(count)

    def of(self, rank):
        def add_up(tensors):
            self.given[rank] = [tensor.clone() for tensor in tensors]
            self.turn.wait(timeout=30)
            for tensor, *parts in zip(tensors, *self.given, strict=True):
                tensor.copy_(sum(parts))
            self.turn.wait(timeout=30)

        return add_up


@pytest.mark.parametrize("sizes", [(3, 3), (1, 2, 4), (5,)])
def test_shares_are_normalised_as_the_whole(sizes):
    x = 10 * torch.randn(sum(sizes), 4, 3, 2, dtype=torch.float64) + 100
    g, weight, bias = torch.randn_like(x), *torch.randn(2, 4, dtype=torch.float64)
    together = Together(len(sizes))

    def work(rank):
        part = x.split(sizes)[rank].clone().requires_grad_()
        own = [t.clone().requires_grad_() for t in (weight, bias)]
        running = [torch.zeros(4).double(), torch.ones(4).double()]
        y = shared_norm(part, *running, *own, together.of(rank))
        gradients = torch.autograd.grad(y, (part, *own), g.split(sizes)[rank])
        return y.detach(), *gradients, *running

    with ThreadPoolExecutor(len(sizes)) as threads:
        y, dx, dweight, dbias, mean, var = zip(*threads.map(work, range(len(sizes))), strict=True)
    whole, own = x.clone().requires_grad_(), [t.clone().requires_grad_() for t in (weight, bias)]
    running = [torch.zeros(4).double(), torch.ones(4).double()]
    expected = nn.functional.batch_norm(whole, *running, *own, training=True)
    torch.testing.assert_close(torch.cat(y), expected)
    for made, right in zip(
        (torch.cat(dx), sum(dweight), sum(dbias)),
        torch.autograd.grad(expected, (whole, *own), g),
        strict=True,
    ):
        torch.testing.assert_close(made, right)
    for each in (mean, var):
        assert all(torch.equal(each[0], other) for other in each)
    torch.testing.assert_close([mean[0], var[0]], running)


def test_shares_of_bfloat16_maps():
    x = torch.randn(4, 3, 8, 8).bfloat16().to(memory_format=torch.channels_last).requires_grad_()
    own, running = [torch.ones(3), torch.zeros(3)], [torch.zeros(3), torch.ones(3)]
    y = shared_norm(x, *running, *own, lambda tensors: None)
    expected = nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3), *own, training=True)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected)
    g = torch.randn_like(y)
    made, right = (torch.autograd.grad(t, x, g)[0] for t in (y, expected))
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made, right, rtol=0.02, atol=0.02)


def test_affine_is_what_known_numbers_do():
    norm = stack([BatchNorm(3, relu=True) for _ in range(2)]).eval()
    for tensor in (*norm.parameters(), norm.running_mean):
        torch.nn.init.normal_(tensor)
    x, rows = torch.randn(2, 4, 3), torch.tensor([4, 4])
    scale, shift = (t.unsqueeze(1) for t in norm.affine())
    torch.testing.assert_close(x.relu() * scale + shift, norm(x, rows))
