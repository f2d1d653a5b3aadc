"""The LSTM on zero input on CUDA, and its operators, against their definition.

Without a GPU the kernels run in Triton's interpreter; what needs a real one is skipped.
"""

import pytest
import torch

from fspool.functional.recurrence import recurrence, recurrence_definition
from fspool.models import RecurrentDecoder

from .interpreter import DEVICE

on_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
LONG = 342 if DEVICE == "cuda" else 20  # steps; the interpreter takes its time


def example(groups, batch, width, dtype=torch.float32):
    """As torch draws them, with cell states that are not small."""
    weight, bias = torch.rand(groups, 4 * width, width), torch.rand(groups, 4 * width)
    scaled = ((2 * t - 1) * width**-0.5 for t in (weight, 2 * bias))
    return tuple(t.to(dtype) for t in (2 * torch.randn(groups, batch, width), *scaled))


def value_and_gradients(function, inputs, n, g):
    inputs = [t.detach().requires_grad_() for t in inputs]
    hidden = function(*inputs, n)
    return hidden, *torch.autograd.grad(hidden, inputs, g)


def truth(inputs, n, g):
    """The definition, in float64."""
    inputs = [t.double().cpu() for t in inputs]
    return value_and_gradients(recurrence_definition, inputs, n, g.double().cpu())


def kernels(inputs, n, g):
    from fspool.kernels.cuda.recurrence import pull, recurrence

    state, weight, bias, g = (t.to(DEVICE) for t in (*inputs, g))
    hidden, cells = recurrence(state, weight, bias, n)
    assert hidden.shape == cells.shape == g.shape and hidden.is_contiguous()
    return hidden, *pull(g, hidden, cells, state, weight, bias)


def assert_equal(got, expected, tolerance=1e-5):
    for x, y in zip(got, expected, strict=True):
        assert x.shape == y.shape
        error = (x.cpu().double() - y).abs().max()
        assert error <= tolerance * y.abs().max(), error


@pytest.mark.parametrize(
    ("batch", "n"), [(1, 1), (1, 9), (3, 1), (3, 2), (3, 9), (16, 2), (17, 1), (17, 2)]
)
@pytest.mark.parametrize("width", [5, 32])
def test_kernels(width, batch, n):
    inputs, g = example(1, batch, width), torch.randn(1, batch, n, width)
    assert_equal(kernels(inputs, n, g), truth(inputs, n, g))


@pytest.mark.parametrize("width", [1, 2, 16, 33, 64, 65])
def test_widths(width):
    inputs, g = example(1, 2, width), torch.randn(1, 2, 3, width)
    assert_equal(kernels(inputs, 3, g), truth(inputs, 3, g))


def test_more_replicas_than_programs_can_have():
    inputs = (t.expand(65_536, *t.shape[1:]) for t in example(1, 1, 1))
    with pytest.raises(ValueError, match="65536 replicas; expected at most 65535"):
        kernels(inputs, 1, torch.zeros(65_536, 1, 1, 1))


@pytest.mark.parametrize("width", [5, 32])
def test_replicas_and_many_steps(width):
    inputs, g = example(2, 2, width), torch.randn(2, 2, LONG, width)
    assert_equal(kernels(inputs, LONG, g), truth(inputs, LONG, g))


def test_small_numbers_keep_their_digits():
    state, weight, bias = (1e-3 * t for t in example(1, 3, 32))
    g = torch.randn(1, 3, 5, 32)
    assert_equal(kernels((state, weight, bias), 5, g), truth((state, weight, bias), 5, g))


def test_large_numbers_stay_finite():
    state, weight, bias = (80 * t for t in example(1, 3, 8))
    g = torch.randn(1, 3, 5, 8)
    got = kernels((state, weight, bias), 5, g)
    assert all(x.isfinite().all() for x in got)
    assert_equal(got[:1], truth((state, weight, bias), 5, g)[:1], 1e-3)


def test_not_a_number_stays_with_its_set():
    inputs = example(1, 3, 5)
    inputs[0][0, 1] = float("nan")
    hidden = kernels(inputs, 2, torch.randn(1, 3, 2, 5))[0]
    assert hidden[0, 1].isnan().all() and hidden[0, ::2].isfinite().all()


def test_any_strides():
    state, weight, bias = example(2, 3, 8)
    g = torch.randn(2, 4, 8, 3).movedim(-1, 1)
    spread = (state.mT.contiguous().mT, weight.mT.contiguous().mT, bias.T.contiguous().T)
    assert not any(t.is_contiguous() for t in (*spread, g))
    assert_equal(kernels(spread, 4, g), truth(spread, 4, g))


def test_the_same_bits_twice():
    inputs, g = example(2, 5, 32), torch.randn(2, 5, 4, 32)
    for x, y in zip(kernels(inputs, 4, g), kernels(inputs, 4, g), strict=True):
        assert torch.equal(x, y)


def test_no_sets():
    inputs, g = example(2, 0, 8), torch.randn(2, 0, 3, 8)
    assert_equal(kernels(inputs, 3, g)[2:], [torch.zeros(2, 32, 8), torch.zeros(2, 32)])


# --------------------------------------------------------------------------------------------------
# The operators


def operator(*arguments):
    return torch.ops.fspool.recurrence(*arguments)[0]


def test_the_operators_keep_the_rules_of_operators():
    inputs = [t.to(DEVICE) for t in example(2, 3, 5)]
    hidden, cells = torch.ops.fspool.recurrence(*inputs, 4)
    arguments = (torch.randn_like(hidden), hidden, cells, *inputs)
    torch.library.opcheck(torch.ops.fspool.recurrence_pull.default, arguments)
    arguments = (*(t.requires_grad_() for t in inputs), 4)
    torch.library.opcheck(torch.ops.fspool.recurrence.default, arguments)


def test_derivatives_of_the_operator():
    inputs = [t.requires_grad_() for t in example(2, 2, 3, torch.float64)]
    assert torch.autograd.gradcheck(lambda *given: operator(*given, 4), inputs)
    assert torch.autograd.gradgradcheck(lambda *given: operator(*given, 4), inputs)


def test_wider_than_registers_and_float64_run_step_by_step():
    for width, dtype in ((65, torch.float32), (4, torch.float64)):
        inputs, g = example(1, 2, width, dtype), torch.randn(1, 2, 3, width, dtype=dtype)
        got = kernels(inputs, 3, g)
        assert all(x.dtype == dtype for x in got)
        assert_equal(got, truth(inputs, 3, g))


# --------------------------------------------------------------------------------------------------
# The function


def test_with_and_without_replicas():
    state, weight, bias = example(3, 4, 5)
    whole = recurrence(state, weight, bias, 6)
    assert whole.shape == (3, 4, 6, 5)
    for g in range(3):
        torch.testing.assert_close(recurrence(state[g], weight[g], bias[g], 6), whole[g])
        torch.testing.assert_close(recurrence(state[g, 0], weight[g], bias[g], 6), whole[g, 0])
    more = recurrence(state.unflatten(1, (2, 2)), weight, bias, 6)
    torch.testing.assert_close(more, whole.unflatten(1, (2, 2)))
    mapped = torch.vmap(lambda s, w, b: recurrence(s, w, b, 6))(state, weight, bias)
    torch.testing.assert_close(mapped, whole)


def test_half_precision_is_computed_in_float32():
    inputs = [t.bfloat16() for t in example(1, 3, 5)]
    got, expected = recurrence(*inputs, 9), recurrence(*(t.float() for t in inputs), 9)
    assert torch.equal(got, expected.bfloat16())


def test_no_steps():
    with pytest.raises(ValueError, match="n is 0; expected at least 1 step"):
        recurrence(*example(1, 3, 5), 0)


# --------------------------------------------------------------------------------------------------
# The function, on a real GPU


def on_device(groups=6, batch=16, width=32, n=LONG):
    inputs, g = example(groups, batch, width), torch.randn(groups, batch, n, width)
    return [t.to(DEVICE) for t in inputs], g.to(DEVICE)


@on_cuda
@pytest.mark.parametrize("width", [5, 32, 64])
def test_value_and_gradients_on_cuda(width):
    inputs, g = on_device(width=width)
    got = value_and_gradients(recurrence, inputs, LONG, g)
    assert_equal(got, truth(inputs, LONG, g))
    for x, y in zip(got, value_and_gradients(recurrence, inputs, LONG, g), strict=True):
        assert torch.equal(x, y)


@on_cuda
def test_compiled_on_cuda():
    inputs, g = on_device(n=9)
    compiled = torch.compile(recurrence, fullgraph=True)
    got = value_and_gradients(compiled, inputs, 9, g)
    torch.testing.assert_close(got, value_and_gradients(recurrence, inputs, 9, g))


@on_cuda
def test_in_a_cuda_graph():
    inputs, g = on_device()
    inputs = [t.requires_grad_() for t in inputs]

    def step():
        hidden = recurrence(*inputs, LONG)
        return hidden.detach(), *torch.autograd.grad(hidden, inputs, g)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        for t in inputs:
            t.copy_(t.flip(0))
    graph.replay()
    for got, expected in zip(captured, step(), strict=True):
        assert torch.equal(got, expected)


@on_cuda
def test_decoder_is_torch_s_lstm_on_cuda():
    decoder, lstm = RecurrentDecoder(16, 32, 2, LONG), torch.nn.LSTM(1, 32, batch_first=True)
    with torch.no_grad():
        lstm.weight_hh_l0.copy_(decoder.weight)
        lstm.bias_ih_l0.copy_(decoder.bias_input)
        lstm.bias_hh_l0.copy_(decoder.bias_hidden)
    z = torch.randn(8, 16)
    start = torch.zeros(1, 8, 32), decoder.cell(z).unsqueeze(0)
    expected = decoder.element(lstm(torch.zeros(8, LONG, 1), start)[0])  # on the CPU: never TF32
    got = decoder.to(DEVICE)(z.to(DEVICE)).cpu()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
