"""The losses between sets against loops over all pairs and all permutations."""

import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from fspool.functional import dispatch
from fspool.losses import assignment, chamfer
from fspool.losses import chamfer as chamfer_function
from fspool.losses.assignment import _operator

LOSSES = (chamfer, assignment)
NAN = float("nan")


def pair_cost(a, b, cost):
    difference = a - b
    if cost == "squared":
        return difference.square()
    size = difference.abs()
    return torch.where(size < 1, 0.5 * size.square(), size - 0.5)


def loop(loss, a, b, cost, normalise):
    """One pair of sets, (n, C) and (m, C), by looking at everything."""
    n, m = len(a), len(b)
    if n == m == 0:
        return torch.zeros((), dtype=torch.float64)
    e = pair_cost(a[:, None], b[None], cost)
    e = e.sum(-1) if normalise == "sum" else e.mean(-1)
    counts = {"sum": (1, 1, 1), "mean": (n, m, min(n, m))}.get(normalise, (normalise,) * 3)
    if loss is chamfer:
        return e.min(1).values.sum() / counts[0] + e.min(0).values.sum() / counts[1]
    small = e if n <= m else e.T
    best = min(
        sum(small[i, j] for i, j in enumerate(chosen))
        for chosen in itertools.permutations(range(small.shape[1]), len(small))
    )
    return best / counts[2]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
    loss=st.sampled_from(LOSSES),
    cost=st.sampled_from(["squared", "huber"]),
    normalise=st.sampled_from(["mean", "sum", 7]),
    seed=st.integers(0, 99),
)
def test_masked_losses_are_the_formulas_set_by_set(sizes, loss, cost, normalise, seed):
    sizes = [(n, m) if n and m else (0, 0) for n, m in sizes]
    generator = torch.Generator().manual_seed(seed)
    a = 2 * torch.randn(len(sizes), 5, 3, generator=generator, dtype=torch.float64)
    b = 2 * torch.randn(len(sizes), 6, 3, generator=generator, dtype=torch.float64)
    mask_a, mask_b = (
        torch.stack([torch.randperm(k, generator=generator) < s[i] for s in sizes])
        for i, k in ((0, 5), (1, 6))
    )
    expected = [
        loop(loss, a[i][mask_a[i]], b[i][mask_b[i]], cost, normalise) for i in range(len(sizes))
    ]
    a[~mask_a], b[~mask_b] = NAN, NAN
    got = loss(a, b, mask_a=mask_a, mask_b=mask_b, cost=cost, normalise=normalise)
    torch.testing.assert_close(got, torch.stack(expected))


@pytest.mark.parametrize("loss", LOSSES)
def test_without_masks_with_leading_axes_and_float32(loss):
    a, b = torch.randn(2, 3, 4, 2), torch.randn(2, 3, 5, 2)
    got = loss(a, b)
    assert got.shape == (2, 3) and got.dtype == torch.float32
    for g, i in itertools.product(range(2), range(3)):
        torch.testing.assert_close(got[g, i], loop(loss, a[g, i], b[g, i], "squared", "mean"))
    assert loss(a.bfloat16(), b.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("cost", ["squared", "huber"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_to_second_order_also_with_nan_in_the_padding(loss, cost):
    mask_a, mask_b = torch.tensor([[1, 0, 1, 1]]).bool(), torch.tensor([[1, 1, 0]]).bool()
    a = torch.randn(1, 4, 2, dtype=torch.float64).mul_(2)
    b = torch.randn(1, 3, 2, dtype=torch.float64).mul_(2)
    keywords = {"mask_a": mask_a, "mask_b": mask_b, "cost": cost}
    a[~mask_a], b[~mask_b] = NAN, NAN
    a, b = a.requires_grad_(), b.requires_grad_()
    for gradient, mask in zip(
        torch.autograd.grad(loss(a, b, **keywords).sum(), (a, b)), (mask_a, mask_b), strict=True
    ):
        assert (gradient[~mask] == 0).all() and gradient.isfinite().all() and gradient[mask].any()

    a, b = a.detach().nan_to_num(0).requires_grad_(), b.detach().nan_to_num(0).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: loss(a, b, **keywords), (a, b))
    assert torch.autograd.gradgradcheck(lambda a, b: loss(a, b, **keywords), (a, b))


@pytest.mark.parametrize("loss", LOSSES)
def test_order_does_not_matter_and_equal_sets_cost_nothing(loss):
    a, b = torch.randn(2, 6, 3, dtype=torch.float64), torch.randn(2, 6, 3, dtype=torch.float64)
    shuffled = a[:, torch.randperm(6)]
    torch.testing.assert_close(loss(shuffled, b), loss(a, b))
    torch.testing.assert_close(loss(b, a), loss(a, b))
    assert (loss(a, shuffled) == 0).all()


def test_indices():
    a = torch.tensor([[[0.0], [10.0], [99.0]]])
    b = torch.tensor([[[11.0], [1.0]]])
    mask = torch.tensor([[True, True, False]])
    _, (there, back) = chamfer(a, b, mask_a=mask, return_indices=True)
    assert there[mask].tolist() == [1, 0] and back.tolist() == [[1, 0]]
    _, (rows, columns) = assignment(a, b[:, :1], mask_a=mask, return_indices=True)
    assert rows.tolist() == [[1]] and columns.tolist() == [[0]]
    _, (rows, columns) = assignment(b, a, mask_a=torch.tensor([[False, True]]), return_indices=True)
    assert rows.tolist() == [[1, -1]] and columns.tolist() == [[0, -1]]


@pytest.mark.parametrize("loss", LOSSES)
def test_empty_sets(loss):
    for shape in ((2, 0, 3), (0, 4, 3)):
        empty = torch.zeros(shape, requires_grad=True)
        value = loss(empty, empty)
        assert value.shape == shape[:1] and (value == 0).all()
        value.sum().backward()
    with pytest.raises(ValueError, match="a and b have 4 and 0 elements in set 0"):
        loss(torch.zeros(1, 4, 3), torch.zeros(1, 0, 3))
    junk = torch.full((1, 4, 3), float("nan"), requires_grad=True)
    value = loss(junk, torch.zeros(1, 0, 3), mask_a=torch.zeros(1, 4, dtype=torch.bool))
    assert value.tolist() == [0] and not torch.autograd.grad(value.sum(), junk)[0].any()
    mask = torch.tensor([[True], [False]])
    with pytest.raises(ValueError, match="a and b have 0 and 1 elements in set 1"):
        loss(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3), mask_a=mask)


def test_pieces_leave_no_trace(monkeypatch):
    a, b = torch.randn(3, 9, 2), torch.randn(3, 5, 2)
    whole = chamfer_function(a, b)
    monkeypatch.setitem(chamfer_function.__globals__, "LIMIT", 1)
    assert torch.equal(chamfer_function(a, b), whole)


def test_a_diverged_prediction_gives_nan_and_not_an_error():
    a = torch.full((1, 3, 2), NAN)
    for loss in LOSSES:
        assert loss(a, torch.zeros(1, 3, 2)).isnan().all()


def test_chamfer_compiles_and_keeps_its_gradient():
    a, b = torch.randn(2, 4, 2, requires_grad=True), torch.randn(2, 5, 2)
    compiled = torch.compile(chamfer, fullgraph=True, backend="aot_eager")
    expected, got = chamfer(a, b), compiled(a, b)
    torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(value.sum(), a)[0] for value in (got, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("sizes", [(4, 5), (40, 33)])
def test_the_assignment_compiles_and_exports(sizes):
    a, b = (torch.randn(2, size, 2) for size in sizes)
    a.requires_grad_()
    expected = assignment(a, b)
    compiled = torch.compile(assignment, fullgraph=True, backend="aot_eager")(a, b)
    torch.testing.assert_close(compiled, expected)
    gradients = [torch.autograd.grad(value.sum(), a)[0] for value in (compiled, expected)]
    torch.testing.assert_close(*gradients)

    class Model(torch.nn.Module):
        def forward(self, a, b):
            return assignment(a, b)

    exported = torch.export.export(Model(), (a.detach(), b)).module()
    torch.testing.assert_close(exported(a.detach(), b), expected.detach())
    assert assignment(a.to("meta"), b.to("meta")).shape == (2,)


def test_a_compiled_assignment_asks_for_no_kernel_that_is_not_there(monkeypatch):
    monkeypatch.delitem(dispatch._operators, ("assign", "cuda"), raising=False)
    with FakeTensorMode():
        on_cpu, on_cuda = (torch.empty(2, 3, 3, device=device) for device in ("cpu", "cuda"))
        assert _operator(on_cpu) is torch.ops.fspool.assign.default
        assert _operator(on_cuda) is None


GOOD = {"a": torch.zeros(2, 3, 2), "b": torch.zeros(2, 4, 2)}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "bad, error, sentence",
    [
        ({"a": [[1.0]]}, TypeError, "a is a list; expected a tensor"),
        ({"a": torch.zeros(2, 3, 2).long()}, TypeError, "a has dtype torch.int64"),
        ({"a": torch.zeros(3, 2)}, ValueError, r"a has shape \(3, 2\).*pass a\[None\]"),
        ({"b": torch.zeros(3, 4, 2)}, ValueError, "as many sets and channels"),
        ({"b": torch.zeros(2, 4, 3)}, ValueError, "as many sets and channels"),
        ({"b": torch.zeros(2, 4, 2, device="meta")}, ValueError, "b is on meta, but a is on cpu"),
        ({"mask_a": torch.ones(2, 4).bool()}, ValueError, r"mask_a has shape .* expected \(2, 3\)"),
        ({"mask_b": torch.ones(2, 4)}, TypeError, r"mask_b has dtype .*pass mask_b.bool\(\)"),
        ({"cost": "cubic"}, ValueError, "cost is 'cubic'; expected one of 'squared', 'huber'"),
        ({"normalise": "max"}, ValueError, "normalise is 'max'; expected 'mean', 'sum'"),
        ({"normalise": 0}, ValueError, "normalise is 0; expected"),
        ({"a": torch.zeros(2, 3, 0), "b": torch.zeros(2, 4, 0)}, ValueError, "one channel"),
    ],
)
def test_bad_input(loss, bad, error, sentence):
    with pytest.raises(error, match=sentence) as caught:
        loss(**(GOOD | bad))
    assert str(caught.value).endswith(".")


def test_the_assignment_under_transforms():
    a, b = torch.randn(3, 4, 2, requires_grad=True), torch.randn(3, 4, 2)
    got = torch.func.grad(lambda a: assignment(a, b).sum())(a.detach())
    torch.testing.assert_close(got, *torch.autograd.grad(assignment(a, b).sum(), a))
    mapped = torch.func.vmap(assignment)(torch.stack((a, 2 * a)), torch.stack((b, b)))
    torch.testing.assert_close(mapped, torch.stack((assignment(a, b), assignment(2 * a, b))))
    torch.testing.assert_close(torch.autograd.grad(mapped[0].sum(), a)[0], got)
    with pytest.raises(ValueError, match="^a is inside of vmap, grad or another transform, where"):
        mask = torch.ones(3, 4, dtype=torch.bool)
        torch.func.grad(lambda a: assignment(a, b, mask_a=mask).sum())(a.detach())


def test_without_scipy_the_assignment_says_what_to_install():
    script = """
import sys
sys.modules["scipy"] = None
import torch, fspool
fspool.losses.chamfer(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2))
try:
    fspool.losses.assignment(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2))
except ModuleNotFoundError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "losses.assignment needs scipy; pip install '.[lab]' in a clone."
