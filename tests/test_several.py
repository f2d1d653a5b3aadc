"""Cells that are alike are trained as one model, and nobody can tell from the results."""

from dataclasses import replace

import pytest
import torch

from fspool.checks import UserError
from fspool.experiments import mnist, mnist_classification
from fspool.experiments.mnist_classification import Classification
from fspool.experiments.mnist_reconstruction import Reconstruction
from fspool.lab import launch, trainer
from fspool.lab.launch import Job, Options, bundles, perform
from fspool.lab.runs import RunFolder, State
from fspool.lab.several import join
from fspool.storage import read_json, read_tensors

from .test_mnist import images

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SMALL = {"batch": 4, "test_sets": 24, "hidden": 8, "pool": "sum"}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sets = {"train": images(64, 0), "test": images(24, 1)}
    monkeypatch.setattr(mnist, "_on_device", lambda root, split, device: sets[split])
    monkeypatch.setattr(mnist, "TRAIN", 64)
    monkeypatch.setattr(mnist_classification, "EPOCHS", (1, 2))


def jobs(out, steps=140):
    """Three cells that are alike, of two seeds each, and one that is not."""
    base = Classification(steps=steps, **SMALL)
    cells = {"a": base, "b": replace(base, sigma=0.0), "c": replace(base, sigma=0.2)}
    cells["other"] = replace(base, pool="max")
    return [
        Job("mnist-classification", n, c, (0, 1), out / n / "seeds-0-1") for n, c in cells.items()
    ]


def quiet(event):
    assert event.kind != "failed", event.text


def results(found):
    folders = [RunFolder(job.path) for job in found]
    weights = [read_tensors(job.path / "model.safetensors")[0] for job in found]
    return [folder.result() for folder in folders], weights


def assert_same(one, other):
    for a, b in zip(one[0], other[0], strict=True):
        assert a["metrics"].keys() == b["metrics"].keys()
        for name, values in a["metrics"].items():
            assert values == pytest.approx(b["metrics"][name], abs=1 / 24 + 1e-6)  # one image
        for x, y in zip(a["curve"], b["curve"], strict=True):
            assert x["step"] == y["step"] and x["loss"] == pytest.approx(y["loss"], rel=1e-4)
    for a, b in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_what_is_alike_is_put_together_on_cuda(tmp_path, monkeypatch):
    every = jobs(tmp_path)
    assert [[j.name for j in group] for group in bundles(every, CUDA)] == [
        ["a", "b", "c"],
        ["other"],
    ]
    assert [len(group) for group in bundles(every, CPU)] == [1, 1, 1, 1]
    monkeypatch.setitem(launch.ROOM, "cuda", 5 * every[0].cell.footprint)
    assert [len(group) for group in bundles(every, CUDA)] == [2, 1, 1]


def test_what_runs_may_have_of_their_own():
    base = Classification(**SMALL)
    for change in ({"sigma": 0.0}, {"start": "unfrozen", "source": "x"}):
        assert replace(base, **change).likeness() == base.likeness()
    for change in ({"batch": 8}, {"latent": 3}, {"learning_rate": 0.1}, {"start": "frozen"}):
        assert replace(base, **change).likeness() != base.likeness()
    assert Reconstruction(**SMALL).likeness() != base.likeness()
    assert Reconstruction(assigned_sets=3).likeness() == Reconstruction().likeness()


def test_together_is_each_alone(tmp_path):
    alike = jobs(tmp_path / "together")[:3]
    assert perform(alike, Options(), quiet) == []
    alone = jobs(tmp_path / "alone")[:3]
    for job in alone:
        assert perform([job], Options(), quiet) == []
    assert_same(results(alike), results(alone))
    metrics = results(alike)[0][0]["metrics"]
    assert set(metrics) == {"accuracy", "accuracy after 1", "accuracy after 2"}
    assert results(alike)[0][0]["curve"] != results(alike)[0][1]["curve"]


@pytest.mark.parametrize("common", [True, False])
def test_runs_that_stopped_at_different_steps_go_on(tmp_path, monkeypatch, common):
    """Between two writes a process may be killed: then the runs of a group have states of
    different steps. They go on together from the last that all have, if there is one."""
    whole, broken = jobs(tmp_path / "whole")[:3], jobs(tmp_path / "broken")[:3]
    assert perform(whole, Options(), quiet) == []

    class Killed(BaseException):
        pass

    def kill(event):
        if event.kind == "step" and event.step > 64 and event.job.name == "b":
            raise Killed

    with pytest.raises(Killed):
        perform(broken, Options(save_every=0), kill)
    found = [RunFolder(job.path).restore() for job in broken]
    assert len({state.step for state in found}) == 2
    if not common:
        min(broken[0].path.glob("state-*")).unlink()
    sizes, together = [], trainer.run_together
    monkeypatch.setattr(
        trainer,
        "run_together",
        lambda runs, *a, **k: sizes.append(len(runs)) or together(runs, *a, **k),
    )
    assert perform(broken, Options(), quiet) == []
    assert sizes == ([3] if common else [2, 1])
    assert_same(results(broken), results(whole))
    clocks = [read_json(job.path / "provenance.json")["clock"] for job in broken]
    assert [len(clock) for clock in clocks] == [2, 2, 2]  # before the stop, and since
    assert all(start < stop for clock in clocks for start, stop in clock)


def test_one_that_fails_does_not_take_the_others_with_it(tmp_path, monkeypatch):
    alike, events = jobs(tmp_path, steps=8)[:3], []
    begin = Classification.begin

    def refuse(self, model, seeds):
        if self.sigma == 0:
            raise UserError("no encoder")
        begin(self, model, seeds)

    monkeypatch.setattr(Classification, "begin", refuse)
    assert perform(alike, Options(), events.append) == [alike[1]]
    (why,) = [event.text for event in events if event.kind == "say"]
    assert why.endswith("with 2 others as one it failed, so each goes on by itself: no encoder")
    said = {e.job.name: (e.kind, e.text) for e in events if e.kind in ("done", "failed")}
    assert said["b"] == ("failed", "no encoder") and said["a"][0] == said["c"][0] == "done"
    assert [job.finished for job in alike] == [True, False, True]


def test_what_is_finished_is_left_alone(tmp_path, monkeypatch):
    alike = jobs(tmp_path, steps=8)[:3]
    assert perform(alike[:1], Options(), quiet) == []
    trained, run_together = [], trainer.run_together
    monkeypatch.setattr(
        trainer,
        "run_together",
        lambda runs, *a, **k: (
            trained.extend(run.cell.sigma for run in runs),
            run_together(runs, *a, **k),
        ),
    )
    assert perform(alike, Options(), quiet) == []
    assert trained == [0.0, 0.2]


def test_states_of_different_versions_are_not_put_together():
    new = State(8, {"model.a": torch.ones(2)})
    old = State(8, {"model.a": torch.ones(2), "model.b": torch.ones(2)})
    assert torch.equal(join([new, new]).tensors["model.a"], torch.ones(4))
    for states in ([new, old], [old, new]):
        with pytest.raises(UserError, match="states of step 8 are of different versions"):
            join(states)


def test_encoders_go_to_the_runs_of_their_cell(tmp_path):
    source = Reconstruction(decoder="mlp", steps=2, **SMALL)
    made = Job(
        "mnist-reconstruction",
        "sum-mlp-s0.05",
        source,
        (0, 1),
        tmp_path / "e/sum-mlp-s0.05/seeds-0-1",
    )
    assert perform([made], Options(), quiet) == []
    random = Classification(steps=8, **SMALL)
    taken = replace(random, start="unfrozen", source="sum-mlp-s0.05").at(encoders=tmp_path / "e")
    expected = read_tensors(made.path / "model.safetensors")[0]["encoder.elements.0.weight"]
    cell, seeds = trainer.Several([random, taken], [2, 2]), [0, 1] * 2
    model = trainer.build(cell, seeds, CPU)
    weight = model.encoder.elements[0].weight
    assert torch.equal(weight[2:], expected)
    assert torch.equal(weight[:2], trainer.build(random, [0, 1], CPU).encoder.elements[0].weight)
    for _ in trainer.train(model, cell, seeds, CPU):
        pass
    assert (weight[2:] != expected).flatten(1).any(1).all()

    frozen = replace(taken, start="frozen")
    model = trainer.build(frozen, [0, 1], CPU)
    weight, head = model.encoder.elements[0].weight, model.head[0].weight.clone()
    for _ in trainer.train(model, frozen, [0, 1], CPU):
        pass
    assert torch.equal(weight, expected) and not torch.equal(model.head[0].weight, head)
