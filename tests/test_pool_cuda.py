"""The Triton kernels of the hard pool against the definition in float64.

On a GPU at every size; without one in Triton's interpreter, where small sizes stand for large ones.
"""

import itertools

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import fspool
from fspool.functional.by_rank import lengths_by_rank, rank_weights
from fspool.functional.pool import pool_definition
from fspool.functional.unpool import unpool_definition
from fspool.kernels import shapes
from fspool.layouts import Packed, Padded

from .interpreter import DEVICE

pytest.importorskip("triton")  # Linux has it
from fspool.kernels.cuda import blocks, large, lists, moves, pool, pull, sets  # noqa: E402

CPU = DEVICE == "cpu"
ALL = (None, None, None, True, True)  # full sets, with ranks and sorted rows
SIZES = [0, 1, 2, 9, 31, 32, 33, 65, 130]
if not CPU:
    SIZES += [255, 256, 257, 511, 513, 1023, 1024, 1025, 2047, 2049, 4095, 4096, 4097, 20_000]
needs_gpu = pytest.mark.skipif(CPU, reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def poison():
    """Memory that nobody writes to holds NaN, or negative integers."""
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills what torch.empty returns
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def small_tiles(monkeypatch):
    """In the interpreter sets of more than 16 rows are large, and merged from blocks of 16 rows."""
    if CPU:
        monkeypatch.setattr(pool, "TILES", {3: pool.TILES[3], 4: pool.TILES[4]})
        monkeypatch.setattr(pool, "TOP", 16)
        monkeypatch.setattr(pool, "LISTED", 4)
        monkeypatch.setattr(lists, "BLOCK", 4)
        monkeypatch.setattr(lists, "WARPS", 32)
        monkeypatch.setattr(shapes, "LARGEST_TILE", 16)
        monkeypatch.setattr(blocks, "BLOCK", (2, 2))
        monkeypatch.setattr(large, "LOGR", 3)
        monkeypatch.setattr(large, "LOGC", 2)
        monkeypatch.setattr(large, "SAMPLES", 6)
        monkeypatch.setattr(large, "ROWS", 16)
        monkeypatch.setattr(large, "RANK", (8, 16, 2, 4, None))
        for module in (blocks, large):
            monkeypatch.setattr(module, "MANY", large.tl.constexpr(4))


def close(name, actual, expected, tolerance=1e-6):
    assert actual.shape == expected.shape, name
    if expected.numel():
        error = (actual.double() - expected).abs().max() / expected.abs().max().clamp(min=1e-30)
        assert error <= tolerance, f"{name} is off by {error:.1e}"  # NaN fails too


def check(x, weight, layout, kept=True, tolerance=1e-6):
    """Everything that one layout can be asked for; x may hold anything in the padding."""
    where = layout.mask, layout.lengths, layout.offsets
    exact = layout.clear(x).double().requires_grad_()
    knots = weight.double().requires_grad_()
    y64, ranks64 = pool_definition(exact, knots, layout)
    z = torch.randn(y64.shape, device=DEVICE).to(x.dtype)
    dx64, dw64 = torch.autograd.grad(y64, (exact, knots), z.double())

    y, ranks, ordered = pool.pool(x, weight, *where, True, kept)
    close("y", y, y64, tolerance)
    assert torch.equal(ranks.long(), ranks64.long()), "ranks"
    assert torch.equal(pool.ranks(x, *where), ranks), "ranks alone"
    close("y alone", pool.pool(x, weight, *where, False, False)[0], y64, tolerance)
    close("y ranked", pool.pool_ranked(layout.clear(x), weight, ranks, *where), y64, tolerance)
    dx, dw = pool.pull(z, x, weight, ranks, ordered, *where)
    close("dx", dx, dx64, tolerance)
    close("dw", dw, dw64, max(tolerance, 1e-6))
    assert torch.equal(pool.unpool(z, weight, ranks, *where, x.shape[-2]), dx), "unpool"
    again = pool.knots(z, x, ranks, *where, weight.shape[-1], weight.dtype)
    close("knots", again, dw64, max(tolerance, 1e-6))
    check_by_rank(x, z, weight, ranks, layout, (y64, dw64), tolerance)


def check_by_rank(x, z, weight, ranks, layout, exact, tolerance):
    """Rows to their ranks and back, and the same results from rows that lie there."""
    where, v = (layout.mask, layout.lengths, layout.offsets), torch.randn_like(x)
    by_rank = moves.to_ranks(x, ranks, *where)
    assert torch.equal(by_rank, layout.to_ranks(x, ranks.long())), "to ranks"
    back = moves.from_ranks(v, ranks, *where)
    assert torch.equal(back, layout.from_ranks(v, ranks.long())), "from ranks"

    y64, dw64 = exact
    where = None, None, *lengths_by_rank(layout)
    spread64 = layout.clear_ranks(rank_weights(weight.double(), layout) * layout.spread(z.double()))
    spread = pool.unpool(z, weight, *where, x.shape[-2])
    dw = pool.knots(z, by_rank, *where, weight.shape[-1], weight.dtype)
    close("y by rank", pool.pool_ranked(by_rank, weight, *where), y64, tolerance)
    close("spread by rank", spread, spread64.expand(x.shape), tolerance)
    close("knots by rank", dw, dw64, max(tolerance, 1e-6))


def draw(*shape, dtype=torch.float32):
    return torch.randn(shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("n", SIZES)
def test_full_sets(n):
    check(draw(2, 2, n, 5), draw(2, 5, 7), Padded((2, 2, n), torch.device(DEVICE)))


@pytest.mark.parametrize("n", [17, 32, 50, 64, 150] if CPU else [1500, 2048, 3000, 4096, 9999])
@pytest.mark.parametrize("ties", [False, True])
def test_large_sets(small_tiles, n, ties):
    x = draw(1, 2, n, 3)
    if ties:
        x[0, 0, :, 0], x[0, 0, :, 1] = x[0, 0, :, 0].round(), x[0, 0, :, 1].relu()
        x[0, 1, 5:8, 2] = x[0, 1, 1:4, 2]  # only a few
    check(x, draw(1, 3, 7), Padded((1, 2, n), x.device))


@pytest.mark.parametrize("n", [40] if CPU else [40, 300, 1024, 5000])
@pytest.mark.parametrize("kind", ["lengths", "mask", "packed", "own"])
@pytest.mark.parametrize("big", [False, True])
def test_sets_of_many_sizes(n, kind, big, request):
    if big:
        request.getfixturevalue("small_tiles")
    sizes = torch.tensor([[0, 1, n, 2, 17], [n, 33 % n, 0, n - 1, 5]], device=DEVICE)
    x = draw(2, 5, n, 3)
    x[..., 1] = x[..., 1].round()
    outside = torch.arange(n, device=DEVICE) >= sizes[..., None]
    if kind == "mask":
        outside = outside.gather(-1, torch.rand(outside.shape, device=DEVICE).argsort(-1))
        layout = Padded((2, 5, n), x.device, ~outside)
    elif kind == "lengths":
        layout = Padded((2, 5, n), x.device, lengths=sizes)
    else:
        sizes = sizes if kind == "own" else sizes[0]
        offsets = torch.nn.functional.pad(sizes.cumsum(-1), (1, 0))
        x = draw(2, int(offsets.max()), 3)
        x[..., 1] = x[..., 1].round()
        layout = Packed((2, 5, x.shape[1]), x.device, offsets)
        outside = torch.zeros(x.shape[:2], dtype=torch.bool, device=DEVICE)
        if kind == "own":
            outside = ~layout.inside.squeeze(-1)
            assert outside.any()
    if outside.any():
        x[outside] = torch.tensor([float("nan"), float("inf"), 1e30], device=DEVICE)
    check(x, draw(2, 3, 7), layout)


@pytest.mark.parametrize("n", [7, 40] if CPU else [7, 40, 100, 600, 1024, 3000])
def test_ties_and_odd_numbers(n):
    x = draw(1, 3, n, 7)
    x[..., 1] = 1.0
    x[..., 2] = x[..., 2].relu()
    x[..., 3] = x[..., 3].round()
    x[..., 4] = (x[..., 4] * 3).round()
    x[..., 5, 5] = x[..., 2, 5]
    x[:, 1, :7, 0] = torch.tensor([2.0, 0.0, 0.0, 1.0, 0.0, 1.0, 3.0], device=DEVICE)  # two groups
    odd = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf")], device=DEVICE)
    x[..., 6] = odd.repeat(n)[:n]
    layout = Padded((1, 3, n), x.device)
    assert torch.equal(pool.ranks(x, None, None, None).long(), layout.ranks(x).long())
    check(x[..., :6], draw(1, 6, 7), layout)
    y = pool.pool(x, draw(1, 7, 7).abs() + 1, None, None, None, False, False)[0]
    assert y[..., 6].isnan().all() and not y[..., :6].isnan().any()


@pytest.mark.parametrize("n", [30, 40] if CPU else [30, 40, 200, 600, 1024])
def test_ties_everywhere(n):
    x = draw(1, 2, n, 33).relu()
    x[..., ::5] = draw(1, 2, n, 7).round()  # several groups
    check(x, draw(1, 33, 7), Padded((1, 2, n), x.device))


class Nothing:
    """In place of a kernel."""

    def __getitem__(self, grid):
        return lambda *_, **__: None


@pytest.mark.parametrize("tied", ["every column", "a few", "one group", "some of each"])
def test_ties_of_large_packed_sets(tied, monkeypatch):
    """They are sorted in turns: the second one where a tile has many columns with ties."""
    if tied == "every column":  # nothing is left to do
        monkeypatch.setattr(pool, "_break_ties", Nothing())
    sizes = [129, 3, 0, 140] if CPU else [129, 3, 0, 140, 256, 300, 512, 600, 1024, 1000, 1500]
    offsets = torch.tensor([0, *sizes], device=DEVICE).cumsum(0)
    x = draw(1, sum(sizes), 48)
    if tied in ("every column", "some of each"):
        x = (2 * x).round()
    if tied in ("one group", "some of each"):
        x[..., ::2] = draw(1, sum(sizes), 24).relu()
    if tied == "a few":
        x[..., 7] = x[..., 7].round()
        x[..., 40] = 1.0
    check(x, draw(1, 48, 5), Packed((1, len(sizes), x.shape[1]), x.device, offsets))


@pytest.mark.parametrize("kind", ["full", "lengths", "mask"])
@pytest.mark.parametrize("n", [5] if CPU else [1, 2, 4, 5, 8, 12, 13, 16])
def test_very_small_sets(n, kind):
    """Full ones, empty ones and others in one batch, with ties; NaN where there is no element."""
    x = draw(1, 5, n, 33 if CPU else 70)
    x[..., ::3] = x[..., ::3].round()
    sizes = torch.tensor([[n, n, 0, 1, n - 1]], device=DEVICE)
    outside = torch.arange(n, device=DEVICE) >= sizes[..., None]
    layout = Padded((1, 5, n), x.device)
    if kind == "mask":
        outside = outside.gather(-1, torch.rand(outside.shape, device=DEVICE).argsort(-1))
        layout = Padded((1, 5, n), x.device, ~outside)
    elif kind == "lengths":
        layout = Padded((1, 5, n), x.device, lengths=sizes)
    if kind != "full":
        x[outside] = float("nan")
    check(x, draw(1, x.shape[-1], 7), layout)


@pytest.mark.parametrize("least, last, top", [(-1, 6, 6), (3, 6, 5), (4, 4, 6), (4, 7, 4)])
@pytest.mark.parametrize("kind", ["lengths", "packed", "own"])
def test_lists_have_every_set_once(kind, least, last, top, monkeypatch):
    monkeypatch.setattr(lists, "BLOCK", 8)
    sizes = torch.randint(0, 130, (2, 21), generator=torch.Generator().manual_seed(last))
    sizes[:, :5] = torch.tensor([0, 3, 16, 32, 64])
    sizes = sizes if kind != "packed" else sizes[:1].expand(2, 21)
    shape, lengths, offsets = torch.Size((2, 21, 130, 3)), sizes.to(DEVICE), None
    if kind != "lengths":
        offsets = torch.nn.functional.pad(sizes.cumsum(-1), (1, 0)).to(DEVICE)
        shape, lengths = torch.Size((2, int(offsets.max()), 3)), None
        offsets = offsets if kind == "own" else offsets[0]
    made = lists.Lists(sets.Sets(shape, None, lengths, offsets), least, 4, last, top)
    bounds = [least, *(1 << log for log in range(4, last)), 1 << 30]
    ranges = dict(zip(range(4, last + 1), itertools.pairwise(bounds), strict=True))
    found = {log: made.of(log) for log in ranges}
    if last > top:
        ranges["all"], found["all"] = (1 << top, 1 << 30), made.all()
    assert len(made.counts) == len(found)
    for name, (counts, numbers) in found.items():
        for own, count, number in zip(sizes, counts, numbers, strict=True):
            expected = (own > ranges[name][0]) & (own <= ranges[name][1])
            assert number[:count].sort().values.tolist() == expected.nonzero().flatten().tolist()


@pytest.mark.parametrize("kind", ["lengths", "packed", "own"])
def test_small_tiles_and_those_of_lists(kind, monkeypatch):
    """Some tiles look at all sets, and larger ones go through lists of their own."""
    monkeypatch.setattr(pool, "LISTED", 6)
    monkeypatch.setattr(pool, "MIXED", {7: (5, 6, 7)})
    monkeypatch.setattr(lists, "BLOCK", 4)
    sizes = torch.tensor([[0, 33, 64, 2, 65, 128, 32], [100, 31, 0, 64, 1, 70, 90]], device=DEVICE)
    n, dim = 128, 3
    x = draw(2, 7, n, dim)
    outside = torch.arange(n, device=DEVICE) >= sizes[..., None]
    if kind == "lengths":
        layout = Padded((2, 7, n), x.device, lengths=sizes)
        x[outside] = float("nan")
    else:
        sizes = sizes if kind == "own" else sizes[:1].expand(2, 7)
        offsets = torch.nn.functional.pad(sizes.cumsum(-1), (1, 0))
        x = draw(2, int(offsets.max()), dim)
        offsets = offsets if kind == "own" else offsets[0]
        layout = Packed((2, 7, x.shape[1]), x.device, offsets)
    check(x, draw(2, dim, 7), layout)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [5, 40] if CPU else [5, 40, 600, 1500])
@pytest.mark.parametrize("big", [False, True] if CPU else [False])
def test_half_precision(dtype, n, big, request):
    if big:
        request.getfixturevalue("small_tiles")
    layout = Padded((1, 3, n), torch.device(DEVICE))
    eps = torch.finfo(dtype).eps
    check(draw(1, 3, n, 4, dtype=dtype), draw(1, 4, 7), layout, tolerance=eps)


@pytest.mark.parametrize("knots", [1, 2, 3, 8, 9, 20, 33, 70, 200])
@pytest.mark.parametrize("n", [11, 40])
def test_any_number_of_knots(knots, n):
    check(draw(1, 3, n, 4), draw(1, 4, knots), Padded((1, 3, n), torch.device(DEVICE)))


@pytest.mark.parametrize("knots", [1, 2, 5, 8, 20])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("step", [3, 17] if CPU else [3, 17, 300, 10_007])
def test_a_rank_on_a_knot_has_its_weight(knots, packed, step):
    """Not one that is rounded otherwise."""
    n, weight = 1 + max(knots - 1, 1) * step, draw(1, 5, knots)
    offsets = torch.tensor([0, n, n + 3], device=DEVICE) if packed else None
    rows = n + 3 if packed else n
    ranks = torch.arange(n, device=DEVICE, dtype=torch.int32)
    ranks = torch.cat((ranks.flip(0), ranks[: rows - n]))[:, None].expand(rows, 5)
    z = torch.ones(1, 1 + packed, 5, device=DEVICE)
    ranks = ranks[None] if packed else ranks[None, None]
    f = pool.unpool(z, weight, ranks, None, None, offsets, rows).view(rows, 5)
    on_knots = f[:n].flip(0)[:: step if knots > 1 else n]
    assert torch.equal(on_knots, weight[0].T)


def test_small_packed_sets_in_small_tiles():
    """And a larger one among them, which one program has in turns."""
    sizes = torch.tensor([5, 31, 0, 33, 100, *[9] * 8], device=DEVICE)
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    x = draw(2, int(offsets[-1]), 35)
    layout = Packed((2, 13, x.shape[1]), x.device, offsets)
    assert pull.is_of_small(sets.Sets(x.shape, None, None, offsets))
    for knots in (5, 9):
        check(x, draw(2, 35, knots), layout)


def test_strides_without_a_copy():
    x = draw(1, 3, 4, 11).transpose(2, 3)
    check(x, draw(1, 4, 7), Padded((1, 3, 11), x.device))
    check(draw(1, 6, 22, 8)[:, ::2, ::2, ::2], draw(1, 4, 7), Padded((1, 3, 11), x.device))


def test_some_features_of_the_ranks():
    """As ``order.select`` gives them."""
    x, weight, z = draw(1, 2, 9, 6), draw(1, 2, 4), draw(1, 2, 2)
    ranks = pool.ranks(x, None, None, None)[..., ::3]
    some, where = x[..., ::3], (None, None, None)
    for function, *first in (
        (lambda *given: pool.unpool(*given, 9), z, weight),
        (pool.pool_ranked, some, weight),
        (moves.to_ranks, some),
        (moves.from_ranks, some),
    ):
        expected = function(*first, ranks.contiguous(), *where)
        assert torch.equal(function(*first, ranks, *where), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64])
def test_ranks_of_any_integers_move_rows_of_any_dtype(dtype):
    x = draw(1, 2, 9, 3, dtype=dtype if dtype.is_floating_point else torch.float32)
    layout = Padded((1, 2, 9), x.device, lengths=torch.tensor([[9, 4]], device=DEVICE))
    ranks = layout.ranks(x).to(torch.int64 if dtype.is_floating_point else dtype)
    where = None, layout.lengths, None
    assert torch.equal(moves.to_ranks(x, ranks, *where), layout.to_ranks(x, ranks))
    assert torch.equal(moves.from_ranks(x, ranks, *where), layout.from_ranks(x, ranks))


def test_offsets_with_strides():
    offsets = torch.tensor([0, 99, 4, 99, 9], device=DEVICE)[::2]
    x, weight = draw(1, 9, 3), draw(1, 3, 4)
    y = pool.pool(x, weight, None, None, offsets, False, False)[0]
    expected = pool.pool(x, weight, None, None, offsets.contiguous(), False, False)[0]
    assert torch.equal(y, expected)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_the_largest_sets_of_every_replica(big, own, request):
    """Few of many: they are looked for in each replica, for a tile and for what has none."""
    if big:
        request.getfixturevalue("small_tiles")
    sizes = torch.ones(2, 12, dtype=torch.long)
    sizes[0, 3], sizes[1, 7], sizes[1, 8] = (21, 18, 17) if CPU and big else (60, 35, 33)
    if big and not CPU:
        sizes[0, 3], sizes[1, 7], sizes[1, 8] = 3000, 1100, 1025
    sizes = sizes if own else sizes[1]
    offsets = torch.nn.functional.pad(sizes.cumsum(-1), (1, 0)).to(DEVICE)
    x = draw(2, int(offsets.max()) + 3 * own, 3)
    layout = Packed((2, 12, x.shape[1]), x.device, offsets)
    if own:
        x[~layout.inside.expand_as(x)] = float("nan")
    check(x, draw(2, 3, 7), layout)


def test_rows_of_no_set():
    x = draw(2, 9, 3).fill_(float("nan"))
    check(x, draw(2, 3, 4), Packed((2, 0, 9), x.device, torch.zeros(2, 1, device=DEVICE).long()))
    empty = torch.zeros(2, 4, dtype=torch.int32, device=DEVICE)
    check(x, draw(2, 3, 4), Packed((2, 3, 9), x.device, empty))


def test_sets_that_torch_sorts(monkeypatch):
    monkeypatch.setattr(pool, "HUGE", 8)
    x = draw(1, 2, 3, 20).transpose(2, 3)
    check(x, draw(1, 3, 4), Padded((1, 2, 20), x.device))
    _, ranks, kept = pool.pool(x, draw(1, 3, 4), None, None, None, False, False)
    assert ranks.shape == kept.shape == (1, 0, 0, 3)


def test_another_default_dtype(small_tiles):
    n = 40 if CPU else 1500
    x, weight = draw(1, 1, n, 3), draw(1, 3, 4)
    torch.set_default_dtype(torch.float64)
    try:
        check(x, weight, Padded((1, 1, n), x.device))
    finally:
        torch.set_default_dtype(torch.float32)


def test_far_apart_rows_are_copied():
    far = torch.as_strided(torch.randn(1 << 21, device=DEVICE), (1, 1, 2, 1), (0, 0, 1 << 20, 1))
    check(far, draw(1, 1, 3), Padded((1, 1, 2), far.device))


def test_memory_counted_in_64_bits(monkeypatch):
    for module in (pull, large, moves):
        monkeypatch.setattr(module, "is_wide", lambda *_: True)
    check(draw(2, 2, 40, 5), draw(2, 5, 7), Padded((2, 2, 40), torch.device(DEVICE)))
    assert not sets.is_wide(draw(2, 2, 40, 5))


def test_without_kept_rows():
    check(draw(2, 2, 9, 5), draw(2, 5, 7), Padded((2, 2, 9), torch.device(DEVICE)), kept=False)


def test_tiles_with_lists_follow_one_another():
    """No set falls between two of them."""
    for tiles in (*pool.MIXED.values(), range(pool.SMALLEST, max(pool.TILES) + 1)):
        some = [log for log in tiles if log >= pool.LISTED]
        assert some == list(range(some[0], tiles[-1] + 1)) if some else True
    assert pool.LISTED <= max(pool.TILES)


def test_the_largest_tile_is_the_one_that_others_count_on():
    assert pool.TOP == 1 << max(pool.TILES)


def test_nothing():
    for shape in [(1, 0, 4, 3), (0, 2, 4, 3), (1, 2, 0, 3)]:
        check(draw(*shape), draw(shape[0], 3, 7), Padded(shape[:3], torch.device(DEVICE)))


def test_more_replicas_than_programs_can_have():
    with pytest.raises(ValueError, match="65536 replicas; expected at most 65535"):
        pool.pool(
            draw(1, 1, 1, 1).expand(65_536, 1, 2, 1), draw(1, 1, 2).expand(65_536, 1, 2), *ALL
        )


def test_more_features_than_32_bits_count():
    x = torch.empty(1, device=DEVICE).expand(1, 1, 1024, 1 << 21)
    with pytest.raises(ValueError, match="2097152 features of 1024 rows; expected fewer than 2"):
        pool.pool(x, x[:, 0, :2].mT, *ALL)


@needs_gpu
def test_wrong_sizes_stay_inside_the_memory():
    weight = draw(1, 3, 7)
    wrong = [
        (draw(1, 2, 40, 3), draw(1, 2, 3), torch.tensor([[99, -3]], device=DEVICE), None),
        (draw(1, 80, 3), draw(1, 3, 3), None, torch.tensor([-5, 70, 20, 99], device=DEVICE)),
    ]
    for x, z, lengths, offsets in wrong:
        sets = None, lengths, offsets
        _, ranks, kept = pool.pool(x, weight, *sets, True, True)
        pool.pull(z, x, weight, ranks, kept, *sets)
        pool.knots(z, x, ranks, *sets, 7, torch.float32)
        pool.pool_ranked(x, weight, ranks, *sets)
    torch.cuda.synchronize()


# --------------------------------------------------------------------------------------------------
# Through the front door


def double(t):
    return t.detach().double().requires_grad_()


@needs_gpu
@pytest.mark.parametrize("n", [1, 10, 33, 200, 1024, 3000])
def test_second_derivatives(n):
    x, weight = draw(3, n, 4).requires_grad_(), draw(4, 7).requires_grad_()
    exact = double(x), double(weight)
    vectors = [torch.randn_like(t) for t in (x, weight)]

    def twice(x, weight):
        y = fspool.functional.fspool(x, weight)
        gradients = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
        dot = sum((g * v.to(g.dtype)).sum() for g, v in zip(gradients, vectors, strict=True))
        return torch.autograd.grad(dot, (x, weight))

    for name, a, b in zip(("x", "weight"), twice(x, weight), twice(*exact), strict=True):
        close(name, a, b, 1e-5)


@needs_gpu
def test_float64_takes_the_definition():
    x, weight = draw(3, 10, 4).double(), draw(4, 7).double()
    y, order = fspool.functional.fspool(x, weight, return_order=True)
    close("y", y, pool_definition(x[None], weight[None], Padded((1, 3, 10), x.device))[0][0], 1e-14)
    assert fspool.functional.fsunpool(y, weight, order).dtype == torch.float64


@needs_gpu
def test_unpool_and_its_gradients():
    x, weight = draw(3, 50, 4), draw(4, 7).requires_grad_()
    _, order = fspool.functional.fspool(x, draw(4, 7), return_order=True)
    z = draw(3, 4).requires_grad_()
    out = fspool.functional.fsunpool(z, weight, order)
    upstream = torch.randn_like(out)
    exact = double(z), double(weight)
    sets = Padded((1, 3, 50), x.device)
    other = fspool.functional.order.Order(sets, order.ranks)
    expected = unpool_definition(exact[0][None], exact[1][None], other)[0]
    close("x", out, expected)
    actual = torch.autograd.grad(out, (z, weight), upstream)
    reference = torch.autograd.grad(expected, exact, upstream.double())
    for name, a, b in zip(("dz", "dw"), actual, reference, strict=True):
        close(name, a, b)


def step(x, weight, sizes):
    y = fspool.functional.fspool(x, weight, sizes=sizes)
    return y, *torch.autograd.grad(y.square().sum(), (x, weight))


@needs_gpu
@pytest.mark.parametrize("n", [10, 100, 1500])
def test_same_bits_every_time(n):
    x, weight = draw(300, n, 40).requires_grad_(), draw(40, 20).requires_grad_()
    sizes = torch.randint(0, n + 1, (300,), device=DEVICE)
    first = step(x, weight, sizes)
    for a, b in zip(first, step(x, weight, sizes), strict=True):
        assert torch.equal(a, b)


@needs_gpu
@pytest.mark.parametrize("n", [10, 100, 1500])
def test_cuda_graphs(n):
    x, weight = draw(30, n, 40).requires_grad_(), draw(40, 20).requires_grad_()
    sizes = torch.randint(0, n + 1, (30,), device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = [t.detach() for t in step(x, weight, sizes)]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        captured = step(x, weight, sizes)
    for t in captured:
        t.detach().fill_(float("nan"))
    graph.replay()
    for a, b in zip(captured, expected, strict=True):
        assert torch.equal(a, b)


@needs_gpu
def test_compiled_without_breaks_and_with_few_compilations():
    weight = draw(40, 20).requires_grad_()
    count = CompileCounter()
    layer = torch.compile(
        lambda x: fspool.functional.fspool(x, weight), fullgraph=True, dynamic=True, backend=count
    )
    inductor = torch.compile(lambda x: fspool.functional.fspool(x, weight), fullgraph=True)
    for n in range(3, 40):
        x = draw(5, n, 40)
        assert torch.equal(layer(x), fspool.functional.fspool(x, weight))
    assert count.frame_count <= 2
    x = draw(5, 17, 40).requires_grad_()
    actual = torch.autograd.grad(inductor(x).sum(), (x, weight))
    expected = torch.autograd.grad(fspool.functional.fspool(x, weight).sum(), (x, weight))
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


@needs_gpu
def test_few_kernels_for_many_lengths():
    """A length chooses its tile, and nothing else is compiled for it."""

    def kernels():
        return sum(len(cache[0]) for cache in pool._pool.device_caches.values())

    weight = draw(1, 16, 20)
    for n in (9, 16):
        pool.pool(draw(1, 3, n, 16), weight, None, None, None, True, True)
    before = kernels()
    for n in range(9, 17):
        for batch in (1, 2, 16):
            pool.pool(draw(1, batch, n, 16), weight, None, None, None, True, True)
    assert kernels() <= before + 1


@needs_gpu
def test_autocast():
    linear = torch.nn.Linear(8, 16, device=DEVICE)
    layer = fspool.FSPool(16, knots=5).to(DEVICE)
    x = draw(4, 30, 8)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        h = linear(x)
        y = layer(h)
    assert h.dtype == y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert linear.weight.grad.isfinite().all() and layer.weight.grad.dtype == torch.float32


@needs_gpu
def test_vmap_and_replicas():
    x, weight = draw(4, 3, 20, 8), draw(4, 8, 5)
    together = fspool.functional.fspool(x, weight)
    mapped = torch.vmap(fspool.functional.fspool)(x, weight)
    alone = torch.stack([fspool.functional.fspool(a, w) for a, w in zip(x, weight, strict=True)])
    assert torch.equal(together, alone) and torch.equal(mapped, alone)


@needs_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device():
    x, weight = draw(30, 100, 40).requires_grad_(), draw(40, 20).requires_grad_()
    sizes = torch.randint(0, 101, (30,), device=DEVICE)
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    packed = draw(int(offsets[-1]), 40).requires_grad_()
    try:
        torch.cuda.set_sync_debug_mode("error")
        step(x, weight, sizes)
        y = fspool.functional.fspool(packed, weight, offsets=offsets)
        torch.autograd.grad(y.sum(), (packed, weight))
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --------------------------------------------------------------------------------------------------
# Sets of a length that was promised


@pytest.mark.parametrize("longest", [5, 16, 33, 40])
@pytest.mark.parametrize("own", [False, True])
def test_a_promised_length_changes_nothing(longest, own):
    sizes = torch.randint(0, min(longest, 40) + 1, (2, 9) if own else (9,))
    sizes[..., 3], sizes[..., 5] = longest, 0
    offsets = torch.nn.functional.pad(sizes.cumsum(-1), (1, 0)).to(DEVICE)
    x, weight = draw(2, int(offsets.max()) + own, 3).relu(), draw(2, 3, 7)
    expected = pool.pool(x, weight, None, None, offsets, True, True)
    got = pool.pool(x, weight, None, None, offsets, True, True, longest)
    for a, b in zip(got[:2], expected[:2], strict=True):
        assert torch.equal(a, b)
    inside = Packed((2, 9, x.shape[1]), x.device, offsets).inside
    inside = torch.ones(x.shape[:2], dtype=torch.bool) if inside is None else inside.squeeze(-1)
    assert torch.equal(got[2][inside], expected[2][inside])


@pytest.mark.parametrize("promised", [7, 20])
@pytest.mark.parametrize("listed", [3, pool.LISTED])
def test_a_set_that_is_longer_than_promised_is_nan(promised, listed, monkeypatch):
    """And its ranks lead nowhere outside of it."""
    monkeypatch.setattr(pool, "LISTED", listed)
    offsets = torch.tensor([0, 3, 45, 50], device=DEVICE)
    x, weight = draw(1, 50, 3), draw(1, 3, 4)
    y, ranks, ordered = pool.pool(x, weight, None, None, offsets, True, True, promised)
    expected = pool.pool(x, weight, None, None, offsets, True, True)
    assert y[0, 1].isnan().all() and ordered[0, 3:45].isnan().all()
    assert torch.equal(ranks[0, 3:45, 0].long(), torch.arange(42, device=DEVICE))
    for others in (slice(0, 3), slice(45, 50)):
        assert torch.equal(ranks[0, others], expected[1][0, others])
    assert torch.equal(y[0, ::2], expected[0][0, ::2])


@pytest.mark.parametrize(
    "promised, rows", [(20, 42), (40, 70)] if CPU else [(1500, 3000), (4000, 5000)]
)
def test_large_sets_that_are_longer_than_promised(small_tiles, promised, rows):
    offsets = torch.tensor([0, 3, 3 + rows, 8 + rows], device=DEVICE)
    x, weight = draw(1, 8 + rows, 3), draw(1, 3, 4)
    got = pool.pool(x, weight, None, None, offsets, True, True, promised)
    for a, b in zip(got, pool.pool(x, weight, None, None, offsets, True, True), strict=True):
        torch.testing.assert_close(a, b)


def test_many_rows_of_short_sets_have_few_launches():
    def tiles(longest):
        offsets = torch.arange(0, 4001, 20)
        return pool._tiles(sets.Sets(torch.Size((1, 4000, 8)), None, None, offsets, longest))

    assert tiles(20) == [5] and tiles(100) == [5, 6, 7] and tiles(3) == [3] == tiles(0)
    assert tiles(None) == [5, 6, 7, 8, 9, 10] == tiles(5000)
