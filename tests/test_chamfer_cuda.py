"""The nearest elements on CUDA, and the operator that finds them, against their definition.

Without a GPU the kernel runs in Triton's interpreter; what needs a real one is skipped.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch

from fspool.losses import chamfer
from fspool.losses.chamfer import nearest_definition

from .interpreter import DEVICE

NAN, INF = float("nan"), float("inf")
COSTS = ("squared", "huber")
SIZES = (0, 1, 2, 31, 32, 33)
on_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def maximum_as_on_the_gpu(monkeypatch):
    """The interpreter's maximum keeps NaN, where the GPU's forgets it unless told not to."""
    if DEVICE == "cpu":
        from triton.runtime.interpreter import InterpreterBuilder

        def create_maxnumf(self, a, b):
            return self.binary_op(a, b, np.fmax)

        monkeypatch.setattr(InterpreterBuilder, "create_maxnumf", create_maxnumf)
    with np.errstate(invalid="ignore", over="ignore"):
        yield


def kernel(a, b, mask=None, cost="squared"):
    from fspool.kernels.cuda.chamfer import nearest

    there = [None if t is None else t.to(DEVICE) for t in (a, b, mask)]
    index = nearest(*there, cost)
    assert index.shape == a.shape[:-1] and index.dtype == torch.long and index.is_contiguous()
    return index.cpu()


def cost_of(a, b, index, cost):
    """The cost, in float64, of every row of a with the row of b that was chosen."""
    chosen = b.gather(-2, index.unsqueeze(-1).expand(*index.shape, b.shape[-1]))
    size = (a.double() - chosen.double()).abs()
    if cost == "squared":
        return size.square().sum(-1)
    return torch.where(size < 1, 0.5 * size.square(), size - 0.5).sum(-1)


def assert_nearest(index, a, b, mask=None, cost="squared"):
    """By cost: which one of two that are equal to rounding was chosen is free."""
    if b.shape[-2] == 0:
        assert (index == 0).all()
        return
    assert ((index >= 0) & (index < b.shape[-2])).all()
    wanted = nearest_definition(a.double(), b.double(), mask, cost)
    clean = b if mask is None else b.masked_fill(~mask.unsqueeze(-1), 0)
    costs = [cost_of(a, clean, i, cost) for i in (index, wanted)]
    rtol = 1e-13 if torch.float64 in (a.dtype, b.dtype) else 1e-5
    torch.testing.assert_close(*costs, rtol=rtol, atol=0)
    if mask is not None:
        chosen = mask.gather(-1, index)
        assert (chosen | ~mask.any(-1, keepdim=True)).all(), "padding was chosen"


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("n", SIZES)
def test_sizes(n, m):
    a, b = torch.randn(2, n, 2), torch.randn(2, m, 2)
    assert_nearest(kernel(a, b), a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("channels", [1, 2, 3, 5, 16, 17, 33])
def test_channels_and_dtypes(channels, cost, dtype):
    a, b = torch.randn(1, 5, channels).mul_(2).to(dtype), torch.randn(1, 33, channels).to(dtype)
    assert_nearest(kernel(a, b, cost=cost), a, b, cost=cost)


def test_sets_of_two_dtypes():
    a, b = torch.randn(1, 4, 3, dtype=torch.float64), torch.randn(1, 5, 3).half()
    assert_nearest(kernel(a, b), a, b)
    assert_nearest(kernel(b, a), b, a)


@pytest.mark.parametrize("channels", [2, 6])
def test_many_columns(channels):
    a, b = torch.randn(1, 3, channels), torch.randn(1, 300, channels)
    a[0, 0] = b[0, 299]
    index = kernel(a, b)
    assert_nearest(index, a, b)
    assert index[0, 0] == 299


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("padding", [NAN, INF, -INF, 0.0])
def test_padding_is_never_chosen_whatever_it_holds(padding, cost):
    a, b = torch.randn(4, 7, 3), torch.randn(4, 40, 3)
    mask = torch.rand(4, 40) < 0.5
    mask[1], mask[2], mask[3] = False, True, torch.arange(40) == 39
    b[~mask] = padding
    index = kernel(a, b, mask, cost)
    assert_nearest(index, a, b, mask, cost)
    assert (index[1] == 0).all() and (index[3] == 39).all()


@pytest.mark.parametrize("cost", COSTS)
def test_the_first_of_equal_ones(cost):
    a, b = (torch.randint(-2, 3, (2, k, 2)).float() for k in (33, 70))
    mask = torch.rand(2, 70) < 0.6
    for m in (None, mask):
        assert torch.equal(kernel(a, b, m, cost), nearest_definition(a, b, m, cost))


@pytest.mark.parametrize("cost", COSTS)
def test_nan_and_infinity_as_in_argmin(cost):
    a, b = torch.randn(1, 8, 2), torch.randn(1, 70, 2)
    mask = torch.arange(70)[None] >= 3
    a[0, 1, 0], a[0, 2], a[0, 3, 1] = NAN, INF, -INF
    b[0, :3] = NAN
    b[0, 5] = a[0, 4]  # NaN comes before a cost of 0 too
    for far, value in ((60, INF), (50, NAN), (10, NAN)):
        b[0, far, 1] = value
        for m in (None, mask):
            expected = nearest_definition(a, b, m, cost)
            assert torch.equal(kernel(a, b, m, cost), expected)
    assert expected[0, 0] == 10 and expected[0, 1] == 3


def test_costs_that_overflow_count_as_infinity():
    a, b = torch.full((1, 2, 2), 1e30), torch.tensor([[[-1e30, 0], [1e30, 0], [1e30, 1e30]]])
    assert kernel(a, b).tolist() == [[2, 2]]
    assert kernel(a, b[:, :2]).tolist() == [[0, 0]]


def test_leading_axes_and_strides():
    a, b = torch.randn(3, 2, 2, 5, 6).mT, torch.randn(2, 5, 9, 2).movedim(-1, 0)
    a, b = a.transpose(0, 1)[..., :5], b.expand(3, 2, 2, 5, 9).mT.transpose(0, 1)
    mask = (torch.rand(9, 2, 3, 2) < 0.7).movedim(0, -1)
    assert not a.is_contiguous() and not b.is_contiguous() and not mask.is_contiguous()
    assert_nearest(kernel(a, b, mask), a, b, mask)
    empty = torch.zeros(0, 3, 4, 2)
    assert kernel(empty, empty).shape == (0, 3, 4)


# --------------------------------------------------------------------------------------------------
# The operator


def example(*shape, device=DEVICE):
    a, b = torch.randn(*shape, 6, 2, device=device), torch.randn(*shape, 5, 2, device=device)
    mask = torch.rand(*shape, 5, device=device) < 0.7
    mask[..., 0] = True
    return a, b, mask


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_the_operator_keeps_the_rules_of_operators(shape):
    a, b, mask = example(*shape)
    for m in (None, mask):
        torch.library.opcheck(torch.ops.fspool.nearest.default, (a, b, m, "huber"))


def test_vmap_over_any_of_its_arguments():
    a, b, mask = example(4, 3)
    operator = torch.ops.fspool.nearest
    whole = torch.stack([operator(*x, "squared") for x in zip(a, b, mask, strict=True)])
    mapped = torch.vmap(lambda a, b, m: operator(a, b, m, "squared"), (1, 2, 0))
    assert torch.equal(mapped(a.movedim(0, 1), b.movedim(0, 2), mask), whole)
    mapped = torch.vmap(lambda a: operator(a, b[0], None, "squared"))
    expected = torch.stack([operator(x, b[0], None, "squared") for x in a])
    assert torch.equal(mapped(a), expected)


def test_the_loss_asks_for_the_operator(monkeypatch):
    from fspool.functional import dispatch

    a, b, mask = example(3)
    asked = []
    monkeypatch.setattr(dispatch, "fastest", lambda name, x: asked.append((name, tuple(x.shape))))
    plain = chamfer(a, b, mask_b=mask)
    assert asked == [("nearest", (3, 6, 2)), ("nearest", (3, 5, 2))]
    monkeypatch.undo()
    torch.testing.assert_close(chamfer(a, b, mask_b=mask), plain)


def test_the_operator_computes_half_precision_in_float32():
    a, b = torch.randn(1, 5, 9).half(), torch.randn(1, 9, 9).half()
    index = torch.ops.fspool.nearest(a.to(DEVICE), b.to(DEVICE), None, "squared").cpu()
    assert_nearest(index, a, b)


def test_importing_the_package_does_not_import_triton():
    script = """
import sys, torch, fspool
fspool.losses.chamfer(torch.zeros(1, 2, 2), torch.zeros(1, 3, 2))
sys.exit("triton was imported" if "triton" in sys.modules else 0)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


# --------------------------------------------------------------------------------------------------
# The loss, on a real GPU


def masked_example(n=70, m=400, channels=3, sets=(2, 3)):
    a, b = torch.randn(*sets, n, channels), torch.randn(*sets, m, channels)
    mask_a, mask_b = (torch.rand(*sets, k) < 0.7 for k in (n, m))
    mask_a[..., 0] = mask_b[..., 0] = True
    return a, b, mask_a, mask_b


def value_and_gradients(a, b, **keywords):
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    loss = chamfer(a, b, **keywords)
    return loss, *torch.autograd.grad(loss.sum(), (a, b))


@on_cuda
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("channels", [2, 8, 40])
def test_loss_and_gradients_on_cuda(channels, cost, masked):
    a, b, mask_a, mask_b = masked_example(channels=channels)
    masks = {"mask_a": mask_a, "mask_b": mask_b} if masked else {}
    expected = value_and_gradients(a.double(), b.double(), cost=cost, **masks)
    if masked:
        a[~mask_a], b[~mask_b] = NAN, NAN
    masks = {name: mask.to(DEVICE) for name, mask in masks.items()}
    got = value_and_gradients(a.to(DEVICE), b.to(DEVICE), cost=cost, **masks)
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x.cpu().double(), y, rtol=1e-4, atol=1e-6)


@on_cuda
def test_large_sets_on_cuda_against_the_definition():
    a, b, _, mask = (t.to(DEVICE) for t in masked_example(3000, 2500, 2, (4,)))
    index = torch.ops.fspool.nearest(a, b, mask, "squared")
    assert_nearest(index.cpu(), a.cpu(), b.cpu(), mask.cpu())
    assert torch.equal(index, torch.ops.fspool.nearest(a, b, mask, "squared"))


@on_cuda
def test_in_a_cuda_graph():
    a, b, mask_a, mask_b = (t.to(DEVICE) for t in masked_example())
    masks = {"mask_a": mask_a, "mask_b": mask_b}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        value_and_gradients(a, b, **masks)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = value_and_gradients(a, b, **masks)
    a.copy_(torch.randn_like(a)), b.copy_(torch.randn_like(b))
    graph.replay()
    for got, expected in zip(captured, value_and_gradients(a, b, **masks), strict=True):
        torch.testing.assert_close(got, expected)


@on_cuda
def test_compiled_on_cuda():
    a, b, mask_a, mask_b = (t.to(DEVICE) for t in masked_example())
    a.requires_grad_()

    def loss(a, b):
        return chamfer(a, b, mask_a=mask_a, mask_b=mask_b).sum()

    values = loss(a, b), torch.compile(loss, fullgraph=True)(a, b)
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*(torch.autograd.grad(value, a)[0] for value in values))


@on_cuda
def test_transforms_on_cuda():
    a, b, *_ = (t.to(DEVICE) for t in masked_example())
    torch.testing.assert_close(torch.vmap(chamfer)(a, b), chamfer(a, b))
    gradient = torch.func.grad(lambda a: chamfer(a, b).sum())(a)
    torch.testing.assert_close(gradient, value_and_gradients(a, b)[1])
