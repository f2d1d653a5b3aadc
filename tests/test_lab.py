"""The laboratory: draws, polygons, many runs as one, stopping and going on, what is measured."""

import itertools
import math
import signal
import sys
from dataclasses import replace
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fspool import storage
from fspool.checks import UserError
from fspool.data import draws
from fspool.data.polygons import polygons, random_polygons
from fspool.experiments import polygons as experiment
from fspool.experiments.polygon_tables import closed_form, derive
from fspool.experiments.polygons import LISTS, Polygons
from fspool.lab import launch, provenance, tensorboard, trainer
from fspool.lab.launch import Job, Options, find_device, group_size, jobs_of, perform
from fspool.lab.runs import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
TINY = Polygons(points=3, batch=2, steps=26, evaluation_sets=8)


@pytest.fixture
def quick(monkeypatch):
    """Chunks of 8 steps (the last one of 2), a coarse sweep, and no look at the source tree."""
    monkeypatch.setattr(trainer, "CHUNK", 8)
    monkeypatch.setattr(experiment, "ANGLES", 40)
    monkeypatch.setenv("FSPOOL_COMMIT", "0123456789ab")


def job(path, cell=TINY, seeds=(0, 1)):
    return Job("polygons", "fspool-n3", cell, seeds, path)


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
# Many runs as one

CHAMFER, ASSIGNMENT = LISTS.values()
MODELS = {
    "fspool": {},
    "mlp-chamfer": CHAMFER,
    "mlp-assignment": ASSIGNMENT,
    "mlp-chamfer-sum": CHAMFER | {"pool": "sum"},
    "mlp-assignment-mean": ASSIGNMENT | {"pool": "mean"},
    "mlp-chamfer-max": CHAMFER | {"pool": "max"},
}


def loss_curve(cell, seeds):
    """(steps, seeds)"""
    state = None
    for state in trainer.train(trainer.build(cell, seeds, CPU), cell, seeds, CPU):  # noqa: B007
        pass
    return torch.tensor([record["loss"] for record in state.curve], dtype=torch.float64)


def test_long_runs_have_longer_chunks(monkeypatch):
    monkeypatch.setattr(trainer, "CHUNK", 8)
    cell = Polygons(points=4, batch=4, steps=40)
    short = loss_curve(cell, [0])
    monkeypatch.setattr(trainer, "RECORDS", 2)
    long = loss_curve(cell, [0])
    assert len(short) == 5 and len(long) == 2
    torch.testing.assert_close(long.mean(), short.mean())


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_a_replica_is_the_single_run(changes, monkeypatch):
    monkeypatch.setattr(trainer, "CHUNK", 1)  # the loss of every step
    cell = Polygons(points=4, batch=4, steps=200, dtype="float64", **changes)
    together = loss_curve(cell, [3, 0, 5])
    assert together.shape == (200, 3) and (together.std(1) > 0).all()
    alone = loss_curve(cell, [5])
    assert (together[:, 2:] - alone).abs().max() < 1e-9


def test_a_replica_has_the_initial_weights_and_the_measurements_of_the_single_run(quick):
    cell = replace(TINY, dtype="float64")
    together, alone = (trainer.build(cell, seeds, CPU) for seeds in ([0, 1, 2], [1]))
    for name, value in alone.state_dict().items():
        assert torch.equal(together.state_dict()[name][1:2], value)
    with torch.no_grad():
        measured = cell.evaluate(together.eval(), [0, 1, 2], CPU).metrics
        expected = cell.evaluate(alone.eval(), [1], CPU).metrics
    assert measured.keys() == expected.keys() and "worst" in expected
    for name, values in expected.items():
        assert measured[name][1] == pytest.approx(values[0], abs=1e-12)


@pytest.mark.parametrize("sets", [3, 16])
def test_the_test_sets_do_not_depend_on_the_group_or_on_the_chunk(monkeypatch, sets):
    cell = Polygons(points=3, decoder="random", steps=0, evaluation_sets=10, dtype="float64")
    group = cell.evaluate(nn.Identity(), [1, 3], CPU).metrics
    monkeypatch.setattr(Polygons, "_chunk", lambda *_: sets)
    alone = cell.evaluate(nn.Identity(), [3], CPU).metrics
    for name, values in alone.items():
        assert values == pytest.approx(group[name][1:], rel=1e-12), name


def test_building_leaves_the_random_numbers_of_the_user_alone():
    before = torch.get_rng_state()
    trainer.build(TINY, [0], CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_optimiser_starts_from_nothing():
    model = trainer.build(TINY, [0, 1], CPU)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = trainer.make_optimiser(model, TINY, CPU)
    for name, value in trainer.live_tensors(model, optimiser).items():
        owner, _, key = name.partition(".")
        assert torch.equal(value, before[key]) if owner == "model" else not value.any()


def test_as_many_runs_at_once_as_there_is_room_for(monkeypatch):
    monkeypatch.setitem(launch.ROOM, "cpu", 4 * TINY.footprint + 1)
    assert group_size(TINY, CPU) == 4
    assert group_size(replace(TINY, batch=TINY.batch * 9), CPU) == 1
    relaxed, hard = (replace(TINY, temperature=tau).footprint for tau in (1.0, None))
    assert relaxed == TINY.points * hard


def seeds_of_jobs(cell, count, out, device=CPU):
    return [job.seeds for job in jobs_of("polygons", "a", cell, count, out, device)]


@given(count=st.integers(1, 30), room=st.integers(1, 12))
def test_seeds_are_divided_into_groups_of_like_size(tmp_path_factory, count, room):
    cell = SimpleNamespace(footprint=launch.ROOM["cpu"] // room, most_runs=None)
    groups = seeds_of_jobs(cell, count, tmp_path_factory.getbasetemp() / "nothing")
    sizes = [len(group) for group in groups]
    assert [seed for group in groups for seed in group] == list(range(count))
    assert max(sizes) <= room and max(sizes) - min(sizes) <= 1
    assert len(groups) == math.ceil(count / room)


def test_what_is_very_slow_has_fewer_runs(tmp_path):
    cell = SimpleNamespace(footprint=1, most_runs=2)
    assert seeds_of_jobs(cell, 6, tmp_path) == [(0, 1)]
    assert seeds_of_jobs(cell, 1, tmp_path) == [(0,)]


def test_more_seeds_only_add_the_missing_ones(tmp_path):
    assert seeds_of_jobs(TINY, 2, tmp_path) == [(0, 1)]
    for name in ("seeds-0-1", "seeds-4-5", "seeds-20-21"):
        (tmp_path / "a" / name).mkdir(parents=True)
    (tmp_path / "a" / "notes.txt").write_text("not a run")
    assert sorted(seeds_of_jobs(TINY, 8, tmp_path)) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert seeds_of_jobs(TINY, 1, tmp_path) == [(0, 1)]  # what was begun stays together
    paths = {job.path for job in jobs_of("polygons", "a", TINY, 8, tmp_path, CPU)}
    assert tmp_path / "a" / "seeds-2-3" in paths


# --------------------------------------------------------------------------------------------------
# Stopping and going on


class Stop(Exception):
    pass


def bring_to_result(path, cell, stops=(), save_every=0.0):
    """Run, and stop at the given steps (None: in the evaluation); what is in the folder then."""
    folder, left = RunFolder(path), list(stops)

    def report(step, loss):
        if left and left[0] == (None if loss is None else step):
            left.pop(0)
            raise Stop

    while True:
        with folder.claim(job(path, cell).config):
            try:
                trainer.run(cell, (0, 1), CPU, folder, report, save_every=save_every)
                break
            except Stop:
                assert not folder.finished
    assert not left
    model, _ = storage.read_tensors(path / "model.safetensors")
    files = {name: (path / name).read_bytes() for name in ("result.json", "metrics.jsonl")}
    return files | {name: value.numpy().tobytes() for name, value in model.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decay_to": 1e-2},
        {"temperature": None},
        CHAMFER,
        ASSIGNMENT | {"pool": "max"},
    ],
    ids=str,
)
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, quick, changes):
    cell = replace(TINY, **changes)
    expected = bring_to_result(tmp_path / "a", cell)
    stops = [8, 16, 24, 26, None]
    assert bring_to_result(tmp_path / "b", cell, stops) == expected
    assert bring_to_result(tmp_path / "c", cell, stops[2:], save_every=1e9) == expected


def test_the_steps_that_were_trained_are_on_record(tmp_path, quick):
    bring_to_result(tmp_path, TINY, [24])
    found = storage.read_json(tmp_path / "provenance.json")
    assert found["steps"] == [16, 26] and found["seconds"].keys() == {"training", "evaluation"}


@pytest.mark.parametrize("change", ["name", "shape", "dtype"])
def test_a_state_of_another_version_is_a_sentence(tmp_path, quick, change):
    with pytest.raises(Stop), RunFolder(tmp_path).claim(job(tmp_path, TINY).config) as folder:
        trainer.run(TINY, (0, 1), CPU, folder, stop_at(16), save_every=0.0)
    (path,) = tmp_path.glob("state-*")
    tensors, notes = storage.read_tensors(path)
    name = min(name for name in tensors if name.startswith("model."))
    value = tensors.pop(name)
    if change == "name":
        tensors["model.another"] = value
    else:
        tensors[name] = value[:1] if change == "shape" else value.double()
    storage.write_tensors(path, tensors, notes)
    events = []
    assert perform([job(tmp_path, TINY)], Options(), events.append)
    assert events[-1].kind == "failed" and events[-1].text.startswith(
        "the saved state of step 8 does not fit the model in model."
    )
    assert path.exists()


def stop_at(last):
    def report(step, loss):
        if step == last:
            raise Stop

    return report


def test_the_number_of_threads_leaves_no_trace(tmp_path, quick):
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(bring_to_result(tmp_path / str(threads), replace(TINY, steps=10)))
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


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


# --------------------------------------------------------------------------------------------------
# Settings


def train_to_end(cell, seeds=(0, 1)):
    model, curve = trainer.build(cell, seeds, CPU), []
    for state in trainer.train(model, cell, seeds, CPU):
        curve = state.curve
    return model, curve


def test_training_learns():
    _, curve = train_to_end(replace(TINY, steps=200, batch=8, learning_rate=1e-2))
    assert [record["step"] for record in curve] == [64, 128, 192, 200]
    for first, last in zip(curve[0]["loss"], curve[-1]["loss"], strict=True):
        assert last < first / 10


def test_the_temperature_falls_to_its_end_and_the_evaluation_sorts_hard():
    cell = replace(TINY, steps=64, decay_to=1e-2)
    seen, model = [], trainer.build(cell, [0], CPU)
    for step in range(64):
        cell.adjust(model, step)
        seen.append(float(model.encoder.pool.temperature))
    assert seen == sorted(seen, reverse=True)
    assert seen[0] == 1 and seen[-1] == pytest.approx(1e-2)

    model, _ = train_to_end(cell)
    assert float(model.encoder.pool.temperature) == pytest.approx(1e-2)
    hard = trainer.build(replace(cell, temperature=None, decay_to=None), [0, 1], CPU)
    hard.load_state_dict(model.state_dict())
    x = random_polygons([0, 1], range(1), n=3, batch=5)[0]
    with torch.no_grad():
        relaxed, evaluated = model.train()(x), model.eval()(x)
        assert torch.equal(evaluated, hard(x)) and not torch.equal(evaluated, relaxed)


def test_without_latent_and_with_zero_biases_nothing_is_learnt(quick):
    cell = replace(TINY, use_latent=False)
    model, curve = train_to_end(cell)
    assert curve[0]["loss"] == pytest.approx([0.5, 0.5])
    with torch.no_grad():
        assert cell.evaluate(model.eval(), [0, 1], CPU).metrics["mse"] == pytest.approx([0.5, 0.5])


def test_with_spread_biases_something_passes_the_latent_by():
    cell = replace(TINY, steps=128, learning_rate=1e-2, use_latent=False, biases="uniform")
    _, curve = train_to_end(cell)
    for first, last in zip(curve[0]["loss"], curve[-1]["loss"], strict=True):
        assert last < 0.9 * first


def test_one_permutation_is_enough_to_train():
    model, curve = train_to_end(replace(TINY, steps=128, learning_rate=1e-2, features=1))
    assert model.decoder.unpool.weight.shape == (2, 1, 20)
    assert all(a > b for a, b in zip(curve[0]["loss"], curve[-1]["loss"], strict=True))


def test_float64_throughout(tmp_path, quick):
    cell = replace(TINY, dtype="float64")
    path = tmp_path / "a"
    bring_to_result(path, cell)
    for name in ("model", "arrays"):
        tensors, _ = storage.read_tensors(path / f"{name}.safetensors")
        assert all(value.dtype == torch.float64 for value in tensors.values())
    assert train_to_end(cell)[0].decoder.elements[0].weight.dtype == torch.float64


@pytest.mark.parametrize(
    "bad, sentence",
    [
        ({"points": 0}, "points is 0; expected"),
        ({"batch": 1.5}, "batch is 1.5; expected"),
        ({"steps": -1}, "steps is -1; expected"),
        ({"dtype": "float16"}, "dtype is 'float16'; expected one of float32, float64, perhaps"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected"),
        ({"learning_rate": math.nan}, "learning_rate is nan; expected"),
    ],
)
def test_bad_settings(bad, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(TINY, **bad)


# --------------------------------------------------------------------------------------------------
# Jobs


def events_of(job, **options):
    events = []
    good = not perform([job], Options(**options), events.append)
    return good, events


def test_a_job_says_what_it_does(tmp_path, quick):
    path = tmp_path / "a"
    good, events = events_of(job(path), save_every=0)
    assert good and [event.kind for event in events] == ["start", *4 * ["step"], "evaluate", "done"]
    assert [event.step for event in events[1:-1]] == [8, 16, 24, 26, 26]
    curve = storage.read_json(path / "result.json")["curve"]
    assert [event.loss for event in events[1:5]] == [sum(r["loss"]) / 2 for r in curve]
    good, events = events_of(job(path))
    assert good and [(event.kind, event.text) for event in events] == [("done", "was finished")]


def test_what_is_not_trained_is_measured_all_the_same(tmp_path, quick):
    cell = replace(TINY, decoder="random", steps=0)
    good, events = events_of(job(tmp_path / "a", cell))
    assert good and [event.kind for event in events] == ["start", "evaluate", "done"]
    assert storage.read_json(tmp_path / "a" / "result.json")["curve"] == []


def test_a_file_in_the_way_is_one_sentence(tmp_path):
    (tmp_path / "a").write_text("")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        good, events = events_of(job(path))
        assert not good and [event.kind for event in events] == ["failed"]
        assert events[0].text.startswith(f"cannot write {path}: ") and "\n" not in events[0].text


def test_a_defect_in_one_cell_does_not_stop_the_others(tmp_path, quick):
    class Defect(Polygons):
        def model(self):
            raise OSError("no file to write")  # not the user's disk

    bad = Defect(points=3)
    jobs = [job(tmp_path / "a", bad), job(tmp_path / "b")]
    events = []
    failed = launch.launch(jobs, Options(), 1, events.append)
    assert failed == jobs[:1] and (tmp_path / "b" / "result.json").exists()
    (text,) = [event.text for event in events if event.kind == "failed"]
    assert text.startswith("Traceback") and "no file to write" in text


def test_the_largest_job_comes_first(tmp_path, quick):
    jobs = [job(tmp_path / str(steps), replace(TINY, steps=steps)) for steps in (8, 16, 0)]
    events = []
    assert launch.launch(jobs, Options(), 1, events.append) == []
    assert [e.job.cell.steps for e in events if e.kind == "start"] == [16, 8, 0]


def test_no_more_threads_than_were_asked_for(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda _: range(64))
    before = torch.get_num_threads()
    launch.launch([job(tmp_path, replace(TINY, steps=0))], Options(), 1, lambda event: None)
    assert torch.get_num_threads() == before


def test_all_cores_where_the_system_does_not_say_which(monkeypatch):
    assert launch.cores() == len(launch.os.sched_getaffinity(0))
    monkeypatch.delattr(launch.os, "sched_getaffinity")
    monkeypatch.setattr(launch.os, "cpu_count", lambda: 3)
    assert launch.cores() == 3


def test_only_the_first_ctrl_c_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), launch.interrupted_once():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)  # while the first one is dealt with
    assert signal.getsignal(signal.SIGINT) is before

    def elsewhere():
        with launch.interrupted_once():
            seen.append(signal.getsignal(signal.SIGINT))

    seen = []
    thread = Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


def test_ctrl_c_is_held_back_from_processes_that_start(tmp_path):
    """A process inherits what is held back: it must not fall to pieces beside its parent."""

    class Pool:
        def submit(self, function, job, options):
            return frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    (held,) = launch._submit(Pool(), [job(tmp_path)], Options())
    assert signal.SIGINT in held
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize(
    "found, name, sentence",
    [
        (0, "cuda", "device is 'cuda', but torch sees no CUDA device; pass --device cpu."),
        (1, "cuda:1", "device is 'cuda:1', but torch sees 1 CUDA device; pass --device cpu."),
        (2, "cuda:2", "device is 'cuda:2', but torch sees 2 CUDA devices; pass --device cpu."),
        (0, "gpu", "device is 'gpu'; expected one of auto, cpu, cuda, perhaps 'cpu'."),
        (0, "cpu:0", "device is 'cpu:0'; expected auto, cpu, cuda or, say, cuda:0."),
        (0, "cuda:x", "device is 'cuda:x'; expected auto, cpu, cuda or, say, cuda:0."),
        (2, "cuda:", "device is 'cuda:'; expected auto, cpu, cuda or, say, cuda:0."),
    ],
)
def test_devices_that_are_not_there(monkeypatch, found, name, sentence):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(UserError) as caught:
        find_device(name)
    assert str(caught.value) == sentence


def test_devices_that_are_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for available, expected in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert find_device("auto") == torch.device(expected)
    assert find_device("cpu") == CPU and find_device("cuda:1") == torch.device("cuda:1")


# --------------------------------------------------------------------------------------------------
# Beside the result


def test_where_a_result_comes_from(monkeypatch):
    monkeypatch.setenv("FSPOOL_COMMIT", "abc")
    found = provenance.describe(CPU)
    assert found["commit"] == "abc" and found["device"] and found["threads"] >= 1
    assert found["versions"]["torch"] == torch.__version__


def test_without_git_the_commit_is_not_known(monkeypatch, tmp_path):
    monkeypatch.delenv("FSPOOL_COMMIT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.commit() is None


def test_tensorboard_can_read_the_curves(tmp_path, quick):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = tmp_path / "a"
    good, _ = events_of(job(path), tensorboard=True)
    assert good
    board = EventAccumulator(str(path / "tensorboard")).Reload()
    curve = storage.read_json(path / "result.json")["curve"]
    assert board.Tags()["scalars"] == ["loss/seed-0", "loss/seed-1"]
    for seed in range(2):
        got = [(scalar.step, scalar.value) for scalar in board.Scalars(f"loss/seed-{seed}")]
        assert got == [(r["step"], pytest.approx(r["loss"][seed], rel=1e-6)) for r in curve]


def test_tensorboard_forgets_what_came_after_the_saved_state(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for steps, loss in (((8, 16, 24), 1.0), ((16,), 2.0)):  # stopped, and back from step 8
        with tensorboard.writer(tmp_path, [0]) as write:
            for step in steps:
                write(step, [loss])
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(s.step, s.value) for s in board.Scalars("loss/seed-0")] == [(8, 1.0), (16, 2.0)]


@pytest.mark.parametrize("fails", [False, True])
def test_the_writer_for_tensorboard_is_closed(tmp_path, quick, monkeypatch, fails):
    from torch.utils.tensorboard import SummaryWriter

    closed, close = [], SummaryWriter.close
    monkeypatch.setattr(SummaryWriter, "close", lambda self: (closed.append(1), close(self)))
    cell = replace(TINY, steps=8)
    if fails:
        monkeypatch.setattr(type(cell), "evaluate", lambda *_: 1 / 0)
    good, _ = events_of(job(tmp_path / "a", cell), tensorboard=True)
    assert good is not fails and closed == [1]


def test_without_tensorboard_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    sentence = "TensorBoard is not installed; pip install tensorboard, or leave --tensorboard out."
    with pytest.raises(UserError) as caught, tensorboard.writer(tmp_path, [0]):
        pass
    assert str(caught.value) == sentence
    good, events = events_of(job(tmp_path / "a"), tensorboard=True)
    assert not good and events[-1].text == sentence
