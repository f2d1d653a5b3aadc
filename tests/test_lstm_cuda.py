"""The LSTM that reads words, its operators and its CUDA kernels, against their definition.

Without a GPU the kernels run in Triton's interpreter.
"""

import pytest
import torch
from torch import nn

from fspool.functional.lstm import lstm, lstm_definition
from fspool.kernels.cpu import lstm as plain

from .cuda_graphs import replays_with_other_inputs
from .interpreter import DEVICE


def example(groups=2, batch=5, steps=4, width=32, vocabulary=7, words=True):
    """With sequences that begin later, and one that never does."""
    x = torch.randn(groups, *((vocabulary,) if words else (batch, steps)), 4 * width)
    weight = (2 * torch.rand(groups, 4 * width, width) - 1) * width**-0.5
    read = torch.randint(vocabulary, (groups, batch, steps), dtype=torch.uint8) if words else None
    start = torch.randint(0, steps, (groups, batch), dtype=torch.int32)
    start[0, 0], start[-1, -1] = 0, steps
    return x, weight, read, start


def truth(x, weight, words, start, g):
    inputs = [t.double().requires_grad_() for t in (x, weight)]
    found = lstm_definition(*inputs, words, start)
    return *found, *torch.autograd.grad(found, inputs, [t.double() for t in g])


def gradients(module, x, weight, words, start, g):
    """By the two functions of a room for kernels, as the operators' gradient uses them."""
    on = [None if t is None else t.to(DEVICE) for t in (x, weight, words, start)]
    h, c, *kept = module.lstm(*on, True)
    dgates, dweight = module.pull(*(t.to(DEVICE) for t in g), on[1], on[3], *kept)
    dgates = dgates.transpose(1, 2).cpu().double()
    if words is not None:
        dx = torch.zeros(x.shape, dtype=torch.float64)
        for group, rows in enumerate(words.long()):
            dx[group].index_add_(0, rows.flatten(), dgates[group].flatten(0, 1))
        dgates = dx
    return h, c, dgates, dweight


def assert_near(got, expected, tolerance):
    for x, y in zip(got, expected, strict=True):
        assert x.shape == y.shape
        error = (x.detach().cpu().double() - y.detach()).abs().max()
        assert error <= tolerance * y.abs().max(), error


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize(
    ("dtype", "width", "tolerance"),
    [(torch.float32, 12, 1e-5), (torch.bfloat16, 32, 3e-2), (torch.bfloat16, 24, 3e-2)]
    + [(torch.bfloat16, 256, 3e-2)],
)
def test_cuda_kernels(dtype, width, tolerance, words):
    from fspool.kernels.cuda import lstm as cuda

    x, weight, read, start = example(width=width, words=words, batch=19)
    g = [torch.randn(2, 19, width) for _ in range(2)]
    expected = truth(x, weight, read, start, g)
    assert_near(gradients(cuda, x, weight.to(dtype), read, start, g), expected, tolerance)
    on = [None if t is None else t.to(DEVICE) for t in (x, weight.to(dtype), read, start)]
    brief = cuda.lstm(*on, False)  # where nothing is kept
    assert_near(brief[:2], expected[:2], tolerance)


@pytest.mark.parametrize("share, words", [(2, False), (4, True)])
def test_programs_that_share_the_weights(share, words, monkeypatch):
    """A wide LSTM's programs hold parts of the weights. So do these, three tiles at a time."""
    from fspool.kernels.cuda import lstm as cuda

    steps, batch = 3 if DEVICE == "cpu" else 30, 19
    x, weight, read, start = example(words=words, batch=batch, steps=steps)
    start[1, :16] = 2  # sequences of a tile of which none has begun for a while
    weight, start = weight.bfloat16(), start if words else None
    g = [torch.randn(2, batch, 32) for _ in range(2)]
    whole = gradients(cuda, x, weight, read, start, g)
    monkeypatch.setattr(cuda, "HELD", 8 * 32 * 32 // share)
    monkeypatch.setattr(cuda, "_room", lambda weight: 3 * share)
    monkeypatch.setattr(cuda, "TILES", (16,))
    assert cuda.parts(32) == share
    got = gradients(cuda, x, weight, read, start, g)
    assert_near(got, truth(x, weight, read, start, g), 3e-2)
    assert_near(got, [t.cpu().double() for t in whole], 1e-2)
    on = [None if t is None else t.to(DEVICE) for t in (x, weight, read, start)]
    assert_near(cuda.lstm(*on, False)[:2], [t.double().cpu() for t in got[:2]], 1e-5)
    again = gradients(cuda, x, weight, read, start, g)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


def test_first_steps_of_eight_bits():
    """That cannot count all steps."""
    from fspool.kernels.cuda import lstm as cuda

    x, weight, _, start = example(1, 3, 130, words=False)
    start = start.clamp(max=120)
    on = [t.to(DEVICE) for t in (x, weight.bfloat16())]
    both = [cuda.lstm(*on, None, t.to(DEVICE), True) for t in (start, start.to(torch.int8))]
    for a, b in zip(both[0][:2], both[1][:2], strict=True):  # nobody looks at what is kept before
        assert torch.equal(a, b)


def test_no_replicas():
    from fspool.kernels.cuda import lstm as cuda

    x, weight, words, start = (t[:0].to(DEVICE) for t in example())
    hidden, cell, *_ = cuda.lstm(x, weight.bfloat16(), words, start, True)
    assert hidden.shape == cell.shape == (0, 5, 32)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("width", [32, 256])
def test_in_a_cuda_graph(width):
    """The programs of a tile count how often they have met: from nothing in every replay."""
    from fspool.kernels.cuda import lstm as cuda

    x, weight, words, start = (t.to(DEVICE) for t in example(3, 100, 20, width=width))
    weight = weight.bfloat16()
    g = [torch.randn(3, 100, width, device=DEVICE) for _ in range(2)]

    def step():
        hidden, cell, *kept = cuda.lstm(x, weight, words, start, True)
        return hidden, cell, *cuda.pull(*g, weight, start, *kept)

    replays_with_other_inputs(step, x, *g)


@pytest.mark.parametrize("dtype, width", [(torch.float32, 12), (torch.bfloat16, 32)])
def test_one_memory_for_all_replicas(dtype, width):
    """vmap over a gradient gives what was kept without memory of its own for every replica."""
    from fspool.kernels.cuda import lstm as cuda

    x, weight, words, start = (t.to(DEVICE) for t in example(1, width=width))
    *_, hidden, cells, gates = cuda.lstm(x, weight.to(dtype), words, start, True)
    kept = [t.expand(3, *t.shape[1:]) for t in (weight.to(dtype), start, hidden, cells, gates)]
    g = [torch.randn(3, 5, width, device=DEVICE) for _ in range(2)]
    for a, b in zip(
        cuda.pull(*g, *kept), cuda.pull(*g, *(t.contiguous() for t in kept)), strict=True
    ):
        assert a.is_contiguous() and torch.equal(a, b)


@pytest.mark.parametrize("words", [True, False])
def test_plain_operators(words):
    x, weight, read, start = example(words=words)
    g = [torch.randn(2, 5, 32) for _ in range(2)]
    expected = truth(x, weight, read, start, g)
    assert_near(gradients(plain, x, weight, read, start, g), expected, 1e-5)
    got = lstm(x, weight, words=read, start=start)
    assert_near(got, expected[:2], 1e-5)


def test_operator_has_the_gradient_of_the_definition():
    x, weight, words, start = example(width=8)
    inputs = [t.requires_grad_() for t in (x, weight)]
    found = torch.ops.fspool.lstm(*inputs, words, start, True)[:2]
    g = [torch.randn_like(t) for t in found]
    got = torch.autograd.grad(found, inputs, g)
    expected = truth(x.detach(), weight.detach(), words, start, g)
    assert_near(got, expected[2:], 1e-5)


@pytest.mark.parametrize("kept", [False, True])
def test_vmap_is_a_loop(kept):
    x, weight, words, start = (torch.stack((t, t)) for t in example(width=8))
    weight = weight * torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)

    def last(*tensors):
        return torch.ops.fspool.lstm(*tensors, kept)[:2]

    each = [last(*own) for own in zip(x, weight, words, start, strict=True)]
    expected = tuple(torch.stack(states) for states in zip(*each, strict=True))
    torch.testing.assert_close(torch.func.vmap(last)(x, weight, words, start), expected)


def test_it_is_the_lstm_of_torch():
    module = nn.LSTM(6, 8, batch_first=True)
    x = torch.randn(3, 5, 6)
    given = x @ module.weight_ih_l0.mT + module.bias_ih_l0 + module.bias_hh_l0
    hidden, cell = lstm(given.unsqueeze(0), module.weight_hh_l0.unsqueeze(0))
    _, (h, c) = module(x)
    torch.testing.assert_close((hidden, cell), (h, c))


def test_room_in_front_changes_nothing():
    x, weight, words, _ = example()
    later = torch.nn.functional.pad(words, (3, 0))
    start = torch.full(words.shape[:2], 3)
    torch.testing.assert_close(
        lstm(x, weight, words=later, start=start), lstm(x, weight, words=words)
    )


def test_a_table_needs_words():
    with pytest.raises(ValueError, match=r"x has shape \(2, 7, 128\)"):
        lstm(example()[0], example()[1])
