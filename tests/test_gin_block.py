"""A block of GIN by its kernels: the operators in place of its layers, and on a real GPU."""

import pytest
import torch

from fspool.functional import normed_layers as functional
from fspool.functional import perceptron as perceptrons
from fspool.lab.replicas import stack
from fspool.models.gin import Block

from .cuda_graphs import replays_with_other_inputs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")


def example(rows, length, columns, width):
    """x, rows and a gradient; zeros in the rows that are not there."""
    rows = torch.tensor(rows)
    there = (torch.arange(length) < rows.unsqueeze(-1)).unsqueeze(-1)
    x, dy = (torch.randn(len(rows), length, d) * there for d in (columns, width))
    return x, rows, dy


def block(groups, columns, width):
    made = stack([Block(columns, width, eps=0, norm_first=False) for _ in range(groups)])
    for bias in (made.first.bias, made.second.bias):
        torch.nn.init.normal_(bias)
    return made


def step(block, x, rows, dy):
    y = block._layers(x, rows)
    back = torch.autograd.grad(y, (x, *block.parameters()), dy)
    return y.detach(), *back, *(value.clone() for value in block.buffers())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_block_by_the_operators(monkeypatch, compiled, training):
    """As on a GPU, where the operators are called; here those of the CPU."""
    x, rows, dy = example([4, 0, 6], 7, 2, 3)
    there = torch.arange(7) < rows.unsqueeze(-1)
    x.requires_grad_()
    own = block(3, 2, 3).train(training)
    before = {k: v.clone() for k, v in own.state_dict().items()}
    y, *expected = step(own, x, rows, dy)
    own.load_state_dict(before)
    called = []

    def on_device(name, x):
        called.append(name)
        return getattr(torch.ops.fspool, name).default

    for module in (functional, perceptrons):
        monkeypatch.setattr(module, "on_device", on_device)
    if compiled:
        monkeypatch.setattr(own, "_layers", torch.compile(own._layers, fullgraph=True))
    found, *got = step(own, x, rows, dy)
    torch.testing.assert_close(found[there], y[there])  # nobody looks at the others
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert set(called) == {"normed_layers" if training else "perceptron"}


def learning(block, norms):
    block.eval()
    norms.train()


def settled(block, norms):
    block.train()
    norms.eval()


def known(block, norms):
    block.eval()


def one_settled(block, norms):
    norms[1].eval()


def other_eps(block, norms):
    norms[1].eps = 0.1


def other_momentum(block, norms):
    norms[1].momentum = 0.5


@pytest.mark.parametrize("groups", [1, 2, None])
@pytest.mark.parametrize(
    "change", [learning, settled, one_settled, other_eps, other_momentum, known]
)
def test_norms_are_what_they_are_set_to(monkeypatch, change, groups):
    """By themselves, and in a block of one run without a replica axis."""
    own = Block(2, 3, eps=0, norm_first=False) if groups is None else block(groups, 2, 3)
    change(own, own.norms)
    x, rows, dy = example([4, 7][: groups or 1], 7, 2, 3)
    there = torch.arange(7) < rows.unsqueeze(-1)
    x.requires_grad_()
    before = {k: v.clone() for k, v in own.state_dict().items()}
    y, *expected = step(own, x, rows, dy)
    own.load_state_dict(before)
    for module in (functional, perceptrons):
        monkeypatch.setattr(
            module, "on_device", lambda name, x: getattr(torch.ops.fspool, name).default
        )
    found, *got = step(own, x, rows, dy)
    torch.testing.assert_close(found[there], y[there])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_wide_layers_and_float64_have_no_kernel(monkeypatch):
    def refuse(*_):
        raise AssertionError("the kernel was called")

    monkeypatch.setattr(functional, "on_device", refuse)
    monkeypatch.setattr(perceptrons, "on_device", refuse)
    for columns, dtype in ((65, torch.float32), (8, torch.float64)):
        own = block(2, columns, 3).to(DEVICE, dtype)
        x = torch.randn(2, 5, columns, device=DEVICE, dtype=dtype)
        assert own._layers(x, torch.tensor([5, 3], device=DEVICE)).shape == (2, 5, 3)


@needs_gpu
@pytest.mark.parametrize("training", [False, True])
def test_same_bits_every_time_and_in_a_cuda_graph(training):
    own = block(20, 32, 32).to(DEVICE).train(training)
    given = example(torch.randint(600, 1301, (20,)).tolist(), 1300, 32, 32)
    x, rows, dy = (t.to(DEVICE) for t in given)
    x.requires_grad_()
    before = {k: v.clone() for k, v in own.state_dict().items()}

    def again():
        with torch.no_grad():
            for name, value in own.state_dict().items():
                value.copy_(before[name])
        return step(own, x, rows, dy)

    for a, b in zip(again(), again(), strict=True):
        assert torch.equal(a, b)
    replays_with_other_inputs(again, rows)
