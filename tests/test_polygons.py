"""Polygons: the draws that they are made of, and what is measured of a model of them."""

import itertools
import math

import pytest
import torch
from torch import nn

from fspool.data import draws
from fspool.data.polygons import polygons, random_polygons
from fspool.experiments.polygon_tables import closed_form, derive
from fspool.experiments.polygons import Polygons

from . import tiny
from .tiny import CPU

pytestmark = pytest.mark.usefixtures("one_thread")
quick = tiny.quick

# --------------------------------------------------------------------------------------------------
# Draws: a pure function of seed, step and purpose

SHAPE = (4, 3)
draw = pytest.mark.parametrize("function", [draws.bits, draws.uniform, draws.permutations])


@draw
def test_a_draw_does_not_depend_on_what_is_drawn_beside_it(function):
    whole = function([3, 0, 8], range(10), "a", SHAPE)
    assert whole.shape == (10, 3, *SHAPE)
    parts = [function([3, 0, 8], range(a, b), "a", SHAPE) for a, b in ((0, 1), (1, 7), (7, 10))]
    assert torch.equal(torch.cat(parts), whole)
    alone = [function([seed], range(10), "a", SHAPE) for seed in (3, 0, 8)]
    assert torch.equal(torch.cat(alone, 1), whole)
    assert torch.equal(function([0], range(4, 10, 3), "a", SHAPE), whole[4::3, 1:2])


def test_seeds_steps_purposes_and_entries_all_differ():
    numbers = [
        draws.bits(range(20), range(50), purpose, (5, 4)) for purpose in ("a", "b", "a/b", "")
    ]
    assert torch.cat([part.flatten() for part in numbers]).unique().numel() == 4 * 20 * 50 * 20


def test_uniform_numbers_are_uniform_and_not_related():
    x = draws.uniform(range(10), range(100), "a", (100,))
    assert x.dtype == torch.float64 and 0 <= x.min() < 1e-4 and 1 - 1e-4 < x.max() < 1
    assert x.mean().item() == pytest.approx(1 / 2, abs=4 / math.sqrt(12 * x.numel()))
    assert x.var().item() == pytest.approx(1 / 12, rel=0.01)
    counts = torch.histc(x, 100, 0, 1)
    assert ((counts - 1000).square() / 1000).sum() < 148.2  # chi-square, 99 degrees, p = 0.001
    for axis in range(3):
        near = torch.corrcoef(torch.stack((x.flatten(), x.roll(1, axis).flatten())))[0, 1]
        assert abs(near) < 4 / math.sqrt(x.numel())


def test_all_ones_are_less_than_one(monkeypatch):
    monkeypatch.setattr(draws, "bits", lambda *_: torch.tensor([-1, 0]))
    assert draws.uniform([0], range(1), "a", (2,)).tolist() == [1 - 2.0**-53, 0]


def test_permutations_are_permutations_and_all_as_likely():
    found = draws.permutations(range(10), range(100), "a", (6, 4)).view(-1, 4)
    assert torch.equal(found.sort(-1).values, torch.arange(4).expand_as(found))
    kinds = [torch.tensor(kind) for kind in itertools.permutations(range(4))]
    counts = torch.stack([(found == kind).all(-1).sum() for kind in kinds])
    expected = len(found) / 24
    assert ((counts - expected).square() / expected).sum() < 49.7  # 23 degrees, p = 0.001


def test_the_draws_are_what_they_always_were():
    """Published results depend on them."""
    assert draws.seed_of(0, "weights") == -3670217256436833418
    assert draws.seed_of(7, "train/angle") == -2800521983903653972
    assert draws.bits([0, 7], range(2, 4), "train/angle", (2,)).tolist() == [
        [[-5178178586301843323, 3603741960483862020], [-4875193364261795650, -3830735248141196807]],
        [[-762654651240453395, -2448799340867635446], [-1112896292116024654, 3988577685791839995]],
    ]
    assert draws.uniform([0], range(1), "test", (3,)).tolist() == [
        [[0.6841709427324856, 0.18428664491825675, 0.8948476772753151]]
    ]
    permutation = draws.permutations([1], range(1000, 1001), "train/order", (2, 5))
    assert permutation.tolist() == [[[[2, 1, 4, 3, 0], [4, 1, 3, 0, 2]]]]


# --------------------------------------------------------------------------------------------------
# Polygons


@pytest.mark.parametrize("n", [2, 3, 4, 16])
def test_random_polygons_are_regular(n):
    x = random_polygons([0, 1], range(3), n=n, batch=5, dtype=torch.float64)
    assert x.shape == (3, 2, 5, n, 2)
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(3, 2, 5, n, dtype=torch.float64))
    torch.testing.assert_close(x.mean(-2), torch.zeros(3, 2, 5, 2, dtype=torch.float64))
    angle = torch.atan2(x[..., 0], x[..., 1]).sort(-1).values
    gaps = torch.cat((angle.diff(dim=-1), angle[..., :1] + 2 * math.pi - angle[..., -1:]), -1)
    torch.testing.assert_close(gaps, torch.full_like(gaps, 2 * math.pi / n))


def test_their_corners_come_in_random_order_at_random_angles():
    x = random_polygons([0], range(300), n=3, batch=10, dtype=torch.float64).view(-1, 3, 2)
    angle = torch.atan2(x[..., 0], x[..., 1]) % (2 * math.pi)
    ranks = angle.argsort(-1)
    counts = torch.unique(ranks, dim=0, return_counts=True)[1]
    assert len(counts) == 6 and counts.min() > 400  # of 3000
    assert torch.histc(angle[:, 0], 10, 0, 2 * math.pi).min() > 240


def test_a_polygon_at_an_angle():
    angle = torch.tensor([0.0, math.pi / 2], dtype=torch.float64)
    expected = [[[0, 1], [1, 0], [0, -1], [-1, 0]], [[1, 0], [0, -1], [-1, 0], [0, 1]]]
    got = polygons(angle, 4)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


def test_polygons_of_a_seed_do_not_depend_on_the_group():
    whole = random_polygons([0, 1, 2], range(4), n=3, batch=2)
    assert whole.dtype == torch.float32
    assert torch.equal(random_polygons([1], range(2, 4), n=3, batch=2), whole[2:, 1:2])
    assert not torch.equal(
        random_polygons([1], range(4), n=3, batch=2, purpose="test"), whole[:, 1:2]
    )


# --------------------------------------------------------------------------------------------------
# What is measured


class Following(nn.Module):
    """Every output follows one corner for 1/n of a turn, then jumps back to where that began."""

    def forward(self, x):
        n, corner = x.shape[-2], x[..., 0, :]
        return polygons(torch.atan2(corner[..., 0], corner[..., 1]) % (2 * math.pi / n), n)


class Constant(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


def measure(model, **changes):
    cell = Polygons(points=4, batch=2, evaluation_sets=64, dtype="float64", **changes)
    metrics, arrays = cell.evaluate(model, [0, 1], CPU)
    assert all(len(values) == 2 for values in metrics.values())
    return {name: values[1] for name, values in metrics.items()}, arrays


def test_a_perfect_output():
    metrics, arrays = measure(nn.Identity())
    assert metrics == pytest.approx(
        {"mse": 0, "chamfer": 0, "assignment": 0, "variance": 0.5, "speed": 1, "worst": 0}, abs=1e-6
    )
    assert torch.equal(arrays["input"], arrays["output"]) and arrays["input"].shape == (6, 4, 2)
    angle = torch.arange(720, dtype=torch.float64) * (math.pi / 360)
    torch.testing.assert_close(arrays["sweep"], polygons(angle, 4))


def test_a_constant_output():
    metrics, _ = measure(Constant())
    assert metrics == pytest.approx(
        {"mse": 0.5, "chamfer": 1, "assignment": 0.5, "variance": 0, "speed": 0, "worst": 0.5}
    )


def test_an_output_that_follows_and_jumps():
    metrics, _ = measure(Following(), decoder="list")
    share = math.sin(math.pi / 4) / (math.pi / 4)
    assert metrics.keys() == {"chamfer", "assignment", "variance", "speed", "worst"}
    assert metrics["assignment"] == pytest.approx(0, abs=1e-9)  # as sets they are the same
    assert metrics["variance"] == pytest.approx((1 - share**2) / 2, rel=1e-3)
    jump = 2 * math.sin(math.pi / 4)  # of each output, in a tenth of a degree
    assert metrics["speed"] == pytest.approx(jump / math.radians(0.1), rel=0.01)


def test_the_worst_angle_is_the_worst():
    class Still(nn.Module):
        def forward(self, x):
            return polygons(x.new_zeros(x.shape[:-2]), 4)

    metrics, _ = measure(Still(), decoder="list")
    assert metrics["worst"] == pytest.approx(1 - math.cos(math.pi / 4))  # an eighth of a turn
    assert metrics["assignment"] < 0.6 * metrics["worst"] and metrics["variance"] == 0


def test_small_polygons_alone_are_kept_for_the_figures(quick):
    for n, kept in ((16, True), (17, False)):
        _, arrays = Polygons(points=n, evaluation_sets=1).evaluate(nn.Identity(), [0], CPU)
        assert ("sweep" in arrays) == kept


@pytest.mark.parametrize("n", [2, 4])
def test_a_guess_is_near_the_closed_form(n):
    cell = Polygons(points=n, decoder="random", steps=0, evaluation_sets=1 << 12)
    metrics, arrays = cell.evaluate(cell.model(), [0, 1], CPU)
    column = {2: 0, 4: 1}[n]
    for seed in range(2):
        assert metrics["mse"][seed] == pytest.approx(1, rel=0.05)
        for name, factor in (("chamfer", 2), ("assignment", 1)):
            (expected,) = closed_form(factor).values()
            assert metrics[name][seed] == pytest.approx(expected[column] / 100, rel=0.05)
    assert metrics.keys() == {"mse", "chamfer", "assignment"} and arrays.keys() == {
        "input",
        "output",
    }


def test_steps_to_reach_a_loss():
    losses = [(0.5, None), (0.009, 0.5), (0.02, 0.0005), (0.0009, 0.0)]
    curve = [{"step": 64 * (i + 1), "loss": list(pair)} for i, pair in enumerate(losses)]
    assert derive(curve)["steps to 1.0"] == [128, 192]
    assert derive(curve)["steps to 0.1"] == [256, 192]
    assert derive(curve[:1])["steps to 1.0"] == [None, None] and derive([])["steps to 0.1"] == []
