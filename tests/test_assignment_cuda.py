"""The pairing on the device against scipy's. Without a GPU it runs in Triton's interpreter."""

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from fspool.functional import dispatch
from fspool.losses import assignment

from .interpreter import DEVICE

NAN, INF = float("nan"), float("inf")


def kernel(costs):
    from fspool.kernels.cuda.assignment import assign

    return assign(costs.to(DEVICE)).cpu()


def assert_optimal(costs):
    """By cost: which one of two that are equal was chosen is free."""
    found = kernel(costs)
    assert found.dtype == torch.long and found.shape == costs.shape[:2]
    for matrix, columns in zip(costs.double(), found, strict=True):
        assert len(set(columns.tolist())) == len(columns)
        rows, best = linear_sum_assignment(matrix.numpy())
        got = matrix[torch.arange(len(columns)), columns].sum()
        torch.testing.assert_close(got, matrix[rows, best].sum(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(4, 10, 10), (4, 1, 1), (3, 3, 7), (2, 1, 32), (1, 17, 17)])
def test_the_pairing_is_the_cheapest(shape):
    assert_optimal(torch.randn(shape))


def test_ties_and_large_differences():
    assert_optimal(torch.zeros(1, 6, 6))
    assert_optimal(torch.randint(0, 3, (2, 9, 9)).float())
    assert_optimal(torch.randn(1, 8, 8) * 10.0 ** torch.arange(-4, 4))
    assert_optimal(torch.randn(1, 6, 6).exp().cumsum(-1).cumsum(-2))


def test_no_sets_and_costs_that_are_no_numbers():
    assert kernel(torch.zeros(0, 4, 4)).shape == (0, 4)
    costs = torch.randn(4, 5, 5)
    costs[0, 2], costs[1, :, 3], costs[2] = NAN, INF, INF
    for columns in kernel(costs):
        assert sorted(columns.tolist()) == list(range(5))


def test_losses_with_the_operator_are_those_without(monkeypatch):
    from fspool.losses import assignment as function

    a, b = torch.randn(2, 3, 10, 4, requires_grad=True), torch.randn(2, 3, 7, 4)
    expected = function(a, b, cost="huber", return_indices=True)
    module = __import__("importlib").import_module("fspool.losses.assignment")
    operator = torch.ops.fspool.assign.default
    monkeypatch.setattr(module, "on_device", lambda name, x: operator if name == "assign" else None)
    for one, other in ((a, b), (b, a)):
        got = assignment(one, other, cost="huber", return_indices=True)
        torch.testing.assert_close(got[0], expected[0])
        pairs = {tuple(p) for p in torch.stack(got[1], -1)[0, 0].tolist()}
        pairs = pairs if one is a else {p[::-1] for p in pairs}
        assert pairs == {tuple(p) for p in torch.stack(expected[1], -1)[0, 0].tolist()}
    (gradient,) = torch.autograd.grad(assignment(a, b).sum(), a)
    assert (gradient.abs().sum(-1) > 0).sum(-1).eq(7).all()


def test_it_is_used_on_cuda_alone():
    costs = torch.randn(1, 4, 4)
    assert dispatch.on_device("assign", costs) is None
    assert torch.equal(torch.ops.fspool.assign(costs), torch.ops.fspool.assign(costs + 1))
