"""Batches of point sets by the kernel, against the definition, which torch runs on the CPU.

Without a GPU the kernel runs in Triton's interpreter; what needs a real one is skipped.
"""

import pytest
import torch

from fspool.data import point_sets
from fspool.data.mnist import MnistSets

from .interpreter import DEVICE

triton = pytest.importorskip("triton")  # Linux has it
import triton.language as tl  # noqa: E402

from fspool.kernels.cuda import draws as kernels  # noqa: E402

interpreted = pytest.mark.skipif(DEVICE != "cpu", reason="changes a function of the kernel")
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
SIZES = [1, 2, 32, 342, 0, 65, 128]


def made_up(sizes):
    """Sets of random points."""
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    points = torch.randint(0, 28, (sum(sizes), 2)).to(torch.uint8)
    return MnistSets(points, offsets, torch.arange(len(sizes)).to(torch.uint8) * 25)


def check(images, seeds, steps, purpose="train", sizes=SIZES, **options):
    options = {"sigma": 0.05, "mask": False, "everywhere": False} | options
    options.setdefault("dtype", torch.float32)
    sets = made_up(sizes)
    drawing = seeds, steps, purpose
    expected = point_sets.draw_sets(sets, images, *drawing, **options)
    got = point_sets._by_kernel(sets.to(DEVICE), images.to(DEVICE), *drawing, **options)
    for name, a, b in zip(got._fields, got, expected, strict=True):
        a = a.cpu()
        assert (a.shape, a.dtype) == (b.shape, b.dtype) and a.is_contiguous(), name
        if name != "input":
            assert torch.equal(a, b), name
    tolerance = 1e-6 if options["dtype"] == torch.float32 else 1e-14
    torch.testing.assert_close(got.input.cpu(), expected.input, rtol=0, atol=tolerance)
    return got


FORMS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask, everywhere", FORMS)
@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_forms(sigma, mask, everywhere, dtype):
    options = {"sigma": sigma, "mask": mask, "everywhere": everywhere, "dtype": dtype}
    got = check(torch.tensor([[[0, 2, 3]]]), [4], range(7, 8), **options)
    assert (got.input is got.target) == (sigma == 0)


@pytest.mark.parametrize("purpose", ["train", "test"])
@pytest.mark.parametrize("start, steps", [(0, 2), (10**6, 1)])
def test_seeds_steps_and_purposes(purpose, start, steps):
    images = torch.randint(0, len(SIZES), (steps, 2, 3))
    check(images, [0, 2**40], range(start, start + steps), purpose)


def test_images_of_every_size_that_are_laid_out_in_some_way():
    images = torch.arange(len(SIZES))[:, None, None].expand(-1, 2, 1)
    got = check(images, [3, 1], range(len(SIZES)), "test")
    assert not torch.equal(got.target[3, 0], got.target[3, 1])


def test_no_images():
    check(torch.zeros(1, 2, 0).long(), [3, 1], range(1))


def test_sets_that_are_too_large_lose_points():
    got = check(torch.tensor([[[0, 1]]]), [0], range(1), sizes=[343, 784])
    assert got.sizes.tolist() == [[[343, 784]]]


@pytest.mark.parametrize("shift", [56, 63])
def test_heads_that_are_equal(monkeypatch, shift):
    """Of 32 bits they are so rarely; then the whole keys decide."""
    monkeypatch.setattr(kernels, "SHIFT", shift)
    check(torch.tensor([[[0, 1, 2, 5, 6]]]), [0], range(1))


@interpreted
def test_heads_are_enough_as_a_rule(monkeypatch):
    original, made = kernels._key, []
    monkeypatch.setattr(kernels, "_key", lambda *given: made.append(given) or original(*given))
    check(torch.tensor([[[1, 2, 3, 5]]]), [0], range(1))
    tiles = [-(-SIZES[image] // kernels.LANES) for image in (1, 2, 3, 5)]
    assert len(made) == sum(tiles)


@triton.jit
def same_key(stream, entry):
    return (stream + entry * 0).to(tl.int64)


@interpreted
def test_keys_that_are_equal_go_by_place(monkeypatch):
    monkeypatch.setattr(kernels, "_key", same_key)
    sets, images = made_up(SIZES), torch.tensor([[[1, 2, 3, 5]]])
    how = (0.0, False, False, torch.float32)
    target = point_sets._by_kernel(sets, images, [0], range(1), "train", *how).target[0, 0]
    for image, points in zip(images.flatten().tolist(), target, strict=True):
        first, stop = sets.offsets[image : image + 2].tolist()
        assert torch.equal(points[: stop - first], sets.points[first:stop] / 27)


# --------------------------------------------------------------------------------------------------
# On a real GPU


@needs_gpu
@pytest.mark.parametrize("mask, everywhere", FORMS)
def test_many_sets_on_cuda(mask, everywhere):
    sizes = torch.randint(1, 343, (1000,)).tolist()
    images = torch.randint(0, 1000, (40, 5, 32))
    check(images, range(5), range(9, 49), sizes=sizes, mask=mask, everywhere=everywhere)


@needs_gpu
def test_it_is_what_runs_on_cuda(monkeypatch):
    sets, calls = made_up(SIZES), []
    original = kernels.draw_sets
    monkeypatch.setattr(kernels, "draw_sets", lambda *a: calls.append(a) or original(*a))
    images = torch.tensor([[[0, 1, 3]]], device=DEVICE)
    drawing = images, [0], range(1), "train"
    batch = point_sets.draw_sets(sets.to(DEVICE), *drawing, sigma=0.1)
    assert len(calls) == 1 and batch.input.is_cuda
    short = point_sets.draw_sets(sets.to(DEVICE), *drawing, sigma=0.1, length=None)
    torch.testing.assert_close(short.input, batch.input, rtol=0, atol=1e-6)
    assert len(calls) == 1


@needs_gpu
def test_another_batch_or_sigma_compiles_no_kernel():
    def compiled():
        return sum(len(cache[0]) for cache in kernels._draw.device_caches.values())

    check(torch.zeros(1, 1, 2).long(), [0], range(1))
    before = compiled()
    for shape in ((1, 1, 1), (2, 3, 16), (1, 2, 7)):
        images = torch.randint(0, len(SIZES), shape)
        check(images, range(shape[1]), range(shape[0]), sigma=shape[2] / 50)
    assert compiled() == before
