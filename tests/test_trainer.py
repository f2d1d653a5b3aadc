"""Training: many runs as one, stopping and going on, settings."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from fspool import storage
from fspool.data.polygons import random_polygons
from fspool.experiments.polygons import LISTS, Polygons
from fspool.lab import trainer
from fspool.lab.capture import ALIGNED, _aligned
from fspool.lab.cell import Cell, Chunk
from fspool.lab.launch import Options, perform
from fspool.lab.runs import RunFolder

from . import tiny
from .tiny import CPU, TINY, job

pytestmark = pytest.mark.usefixtures("one_thread")
quick = tiny.quick

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


class Blocks:
    takes_blocks = True


@pytest.mark.parametrize("begin, end", [(0, 64), (3, 40), (10, 20)])
def test_blocks_and_single_steps_are_all_steps(begin, end):
    steps, seen = range(begin, end), []
    for piece, batches in trainer._pieces(TINY, [0, 1], steps, CPU, Blocks()):
        whole = isinstance(batches, Chunk)
        assert len(piece) == (trainer.BLOCK if whole else 1)
        seen += batches.each() if whole else [batches]
    expected = list(TINY.batches([0, 1], steps, CPU))
    assert len(seen) == len(steps)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


class Busy(Polygons):
    """The rate changes at step 20, or something is counted after every 24 steps."""

    what = ""

    def rate(self, step: int) -> float:
        return 1.0 if self.what == "rate" and step < 20 else 0.5

    tallies = property(lambda self: ("right",) if self.what == "tally" else ())
    tally_every = 24


@pytest.mark.parametrize(
    "what, starts", [("", [0, 16, 32, 48]), ("rate", [0, 20, 36]), ("tally", [0, 24, 48])]
)
def test_nothing_is_to_be_done_inside_of_a_block(monkeypatch, what, starts):
    monkeypatch.setattr(Busy, "what", what)
    cell = Busy(points=3, steps=64)
    found = trainer._pieces(cell, [0], range(64), CPU, Blocks())
    assert [piece[0] for piece, batches in found if isinstance(batches, Chunk)] == starts


class Adjusted(Polygons):
    seen = []

    def adjust(self, model, step):
        self.seen.append(step)

    adjusts = Cell.adjusts


@pytest.mark.parametrize("cell", [Polygons(points=3, decay_to=0.1), Adjusted(points=3)])
def test_what_a_schedule_writes_is_written_before_every_step(cell):
    found = trainer._pieces(cell, [0], range(64), CPU, Blocks())
    assert not any(isinstance(batches, Chunk) for _, batches in found)
    assert not Polygons(points=3).adjusts and cell.adjusts


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 5, 1), (2, 16)])
def test_every_step_of_a_block_begins_like_memory_of_its_own(shape):
    tensor = torch.randn(shape)
    copy = _aligned(tensor)
    assert torch.equal(copy, tensor)
    for step in copy.unbind():
        assert step.is_contiguous() and step.data_ptr() % 16 == 0
        assert step.storage_offset() % ALIGNED == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("points, batch, seeds", [(8, 4, [0, 1]), (5, 3, [2])])
def test_many_steps_in_one_graph_are_those_steps(monkeypatch, points, batch, seeds):
    cell, device = Polygons(points=points, batch=batch, steps=90), torch.device("cuda")
    curves = []
    for block in (trainer.BLOCK, 1 << 20):
        monkeypatch.setattr(trainer, "BLOCK", block)
        model = trainer.build(cell, seeds, device)
        *_, state = trainer.train(model, cell, seeds, device)
        curves.append([record["loss"] for record in state.curve])
        curves.append([value.tolist() for value in state.tensors.values()])
    assert curves[:2] == curves[2:]


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
