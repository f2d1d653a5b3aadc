"""The Triton kernels of the hard pool against the definition in float64."""

import pytest
import torch

from fspool.functional.pool import pool_definition
from fspool.layouts import Packed, Padded

from .interpreter import DEVICE

pool = pytest.importorskip("fspool.kernels.cuda.pool")
large = pytest.importorskip("fspool.kernels.cuda.large")


def check(a, b, tol=1e-6):
    b = b.double()
    error = (a.double() - b).abs().max() / b.abs().max().clamp(min=1e-30) if b.numel() else 0
    assert error <= tol, error


def run(x, weight, sets, kept=True):
    arguments = (sets.mask, sets.lengths, sets.offsets)
    y, ranks, ordered = pool.pool(x, weight, *arguments, True, kept)
    expected, order = pool_definition(x.double(), weight.double(), sets)
    assert torch.equal(ranks.long(), order.long())
    check(y, expected)
    z = torch.randn_like(expected).float()
    rows, dw = pool.pull(z, x, weight, ranks, ordered, *arguments)
    xx, ww = x.double().requires_grad_(), weight.double().requires_grad_()
    out, _ = pool_definition(xx, ww, sets)
    dx, dww = torch.autograd.grad(out, (xx, ww), z.double())
    check(rows, dx)
    check(dw, dww)


@pytest.mark.parametrize("n", [1, 2, 5, 10, 32, 33, 100, 300])
def test_full(n):
    x = torch.randn(2, 2, n, 5, device=DEVICE)
    run(x, torch.randn(2, 5, 7, device=DEVICE), Padded((2, 2, n), x.device))


@pytest.fixture
def small_tiles(monkeypatch):
    """Sets of more than 16 rows count as large, and are merged from blocks of 4 rows."""
    if DEVICE == "cpu":
        monkeypatch.setattr(pool, "TILES", {3: pool.TILES[3], 4: pool.TILES[4]})
        monkeypatch.setattr(pool, "TOP", 16)
        monkeypatch.setattr(large, "LOGR", 2)
        monkeypatch.setattr(large, "LOGC", 1)
        monkeypatch.setattr(large, "SAMPLES", 2)
        monkeypatch.setattr(large, "RANK", (8, 16, 2, 4))
    return 1 if DEVICE == "cpu" else 64


def test_large(small_tiles):
    n = 83 * small_tiles
    x = torch.randn(1, 2, n, 3, device=DEVICE)
    x[0, 0, :, 1] = x[0, 0, :, 1].round()
    run(x, torch.randn(1, 3, 7, device=DEVICE), Padded((1, 2, n), x.device))


def test_packed():
    x = torch.randn(2, 100, 3, device=DEVICE)
    x[0, :, 1] = x[0, :, 1].round()
    offsets = torch.tensor([0, 0, 1, 30, 30, 63, 100], device=DEVICE)
    run(x, torch.randn(2, 3, 7, device=DEVICE), Packed((2, 6, 100), x.device, offsets))


def test_mask():
    x = torch.randn(2, 3, 40, 3, device=DEVICE)
    x[0, :, 1] = x[0, :, 1].round()
    mask = torch.rand(2, 3, 40, device=DEVICE) < 0.5
    mask[0, 0] = False
    run(x, torch.randn(2, 3, 7, device=DEVICE), Padded((2, 3, 40), x.device, mask))


def test_lengths():
    x = torch.randn(2, 3, 40, 3, device=DEVICE)
    x[0, :, 1] = x[0, :, 1].round()
    lengths = torch.tensor([[0, 1, 40], [2, 33, 17]], device=DEVICE)
    run(x, torch.randn(2, 3, 7, device=DEVICE), Padded((2, 3, 40), x.device, None, lengths))


@pytest.mark.parametrize("n", [7, 40])
def test_ties(n):
    x = torch.randn(1, 1, n, 7, device=DEVICE)
    x[..., 1] = 1.0
    x[..., 2] = x[..., 2].relu()
    x[..., 3] = x[..., 3].round()
    x[..., 4] = (x[..., 4] * 3).round()
    x[..., 5, 5] = x[..., 2, 5]
    x[..., 6] = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf")]).repeat(n)[:n]
    weight = torch.randn(1, 7, 7, device=DEVICE)
    sets = Padded((1, 1, n), x.device)
    _, ranks, _ = pool.pool(x, weight, None, None, None, True, True)
    assert torch.equal(ranks.long(), sets.ranks(x).long())
