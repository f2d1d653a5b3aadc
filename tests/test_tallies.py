"""Learning rates that follow a schedule, and counts that are made during training."""

import weakref
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar
from unittest.mock import MagicMock

import pytest
import torch

from fspool.experiments import polygons as experiment
from fspool.experiments.polygons import Polygons
from fspool.lab import trainer
from fspool.lab.capture import Recorded
from fspool.lab.runs import RunFolder
from fspool.lab.several import Several
from fspool.lab.tallies import tallies_of
from fspool.storage import read_tensors

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Counting(Polygons):
    """Counts outputs that are above zero, on sets that every run has of its own."""

    tallies: ClassVar[tuple[str, ...]] = ("above", "all")
    own: ClassVar[tuple[str, ...]] = ("shift",)

    shift: float = 0.0
    every: int = 3

    @property
    def tally_every(self) -> int:
        return self.every

    def trials(self, seeds, device):
        return {"x": self._fresh(seeds, range(4), "trial", device) + self.shift}

    def tally(self, model, trials):
        assert not model.training
        above = (model(trials["x"]) > 0).flatten(1)
        return torch.stack((above.sum(-1), torch.full((len(above),), above.shape[1])), -1)


@dataclass(frozen=True, kw_only=True)
class Scheduled(Polygons):
    def rate(self, step: int) -> float:
        return self.learning_rate * (step < 10)


TINY = {"points": 3, "batch": 2, "steps": 26, "evaluation_sets": 8, "temperature": None}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(trainer, "CHUNK", 8)
    monkeypatch.setattr(experiment, "ANGLES", 40)
    monkeypatch.setenv("FSPOOL_COMMIT", "0123456789ab")


def train(cell, seeds=(0, 1)):
    """The model, and every state as it was."""
    model = trainer.build(cell, list(seeds), CPU)
    states = []
    for state in trainer.train(model, cell, list(seeds), CPU):
        states.append({name: value.clone() for name, value in state.tensors.items()})
    return model, states


# --------------------------------------------------------------------------------------------------
# Rates


def test_a_rate_of_zero_moves_nothing():
    """Ten steps at some rate, then none: all is as if there had been ten steps."""
    found, states = train(Scheduled(**TINY))
    expected, _ = train(Polygons(**TINY | {"steps": 10}))
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert not torch.equal(
        states[0]["model.encoder.elements.0.weight"], states[1]["model.encoder.elements.0.weight"]
    )  # steps 9 and 10


def test_the_rate_of_a_step_does_not_depend_on_where_a_run_went_on():
    cell, seeds = Scheduled(**TINY), [0, 1]
    steps = trainer.train(trainer.build(cell, seeds, CPU), cell, seeds, CPU)
    next(steps)
    stopped = next(steps)
    again = trainer.build(cell, seeds, CPU)
    *_, last = trainer.train(again, cell, seeds, CPU, stopped)
    whole, _ = train(cell)
    assert last.step == 26
    torch.testing.assert_close(again.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_a_rate_that_is_a_tensor_is_written_in_place():
    """As a recorded step needs it."""
    parameter, rate = torch.nn.Parameter(torch.ones(3)), torch.tensor(0.1)
    optimiser = torch.optim.Adam([parameter], rate, fused=True)
    trainer.set_rate(optimiser, 0.025)
    assert optimiser.param_groups[0]["lr"] is rate and rate == 0.025
    parameter.grad = torch.ones(3)
    optimiser.step()
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.975))


# --------------------------------------------------------------------------------------------------
# Tallies


def test_what_is_counted_is_what_the_model_does_then():
    cell, seeds = Counting(**TINY, every=8), [4, 2]
    model = trainer.build(cell, seeds, CPU)
    trials, count = cell.trials(seeds, CPU), 0
    for state in trainer.train(model, cell, seeds, CPU):
        assert model.training
        if state.step % 8 == 0:
            with torch.no_grad():
                expected = cell.tally(model.eval(), trials)
            model.train()
            found = tallies_of(state.tensors)
            assert found["above"].dtype == torch.int32 and found["above"].shape == (2, 3)
            assert torch.equal(found["above"][:, count], expected[:, 0].int())
            assert (found["all"][:, : count + 1] == 24).all()
            assert not found["all"][:, count + 1 :].any()
            count += 1
    assert count == 3


def test_counting_leaves_the_training_alone():
    plain, _ = train(Polygons(**TINY))
    counted, states = train(Counting(**TINY))
    torch.testing.assert_close(counted.state_dict(), plain.state_dict(), rtol=0, atol=0)
    assert states[-1]["tally.above"].shape == (2, 8)  # after 3, 6, ... 24 steps


class Stop(Exception):
    pass


@pytest.mark.parametrize("stops", [(16,), (8, 24), (26,), (None,)])
def test_counts_survive_a_stop(tmp_path, stops):
    """At a step, or in the evaluation."""
    cell, seeds, left = Counting(**TINY), [0, 1], list(stops)

    def stop(step, loss):
        if left and left[0] == (None if loss is None else step):
            left.pop(0)
            raise Stop

    whole, stopped = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "stopped")
    config = {"cell": cell.settings(), "seeds": seeds}
    with whole.claim(config):
        trainer.run(cell, seeds, CPU, whole)
    while not stopped.finished:
        with stopped.claim(config), suppress(Stop):
            trainer.run(cell, seeds, CPU, stopped, stop, save_every=0)
    assert not left
    arrays = [read_tensors(each.path / "arrays.safetensors")[0] for each in (whole, stopped)]
    torch.testing.assert_close(*arrays, rtol=0, atol=0)
    assert arrays[1]["above"].shape == (2, 8) and (arrays[1]["all"] == 24).all()
    assert len(set(arrays[1]["above"].flatten().tolist())) > 2


def test_cells_trained_as_one_are_tried_on_their_own():
    one = Counting(**TINY, dtype="float64")
    other = replace(one, shift=0.7)
    both = Several([one, other], [2, 2])
    _, together = train(both, (0, 1, 0, 1))
    for cell, part in ((one, slice(0, 2)), (other, slice(2, 4))):
        _, alone = train(cell)
        assert torch.equal(together[-1]["tally.above"][part], alone[-1]["tally.above"])
    assert not torch.equal(*together[-1]["tally.above"].split(2))
    assert both.rate(3) == one.rate(3) == 1e-3


# --------------------------------------------------------------------------------------------------
# As a graph


def test_what_a_graph_reads_is_kept(monkeypatch):
    """A recorded graph does not keep it, and what came to lie there would be counted."""
    monkeypatch.setattr(torch, "cuda", MagicMock())

    def prepared():
        trials = torch.ones(3)
        return Recorded(lambda: trials.sum()), weakref.ref(trials)

    count, read = prepared()
    assert count() == 3 and read() is not None
    del count
    assert read() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_counts_are_not_of_what_came_later():
    def prepared():
        own = torch.ones(1 << 20, device="cuda")
        return Recorded(lambda: own.sum())

    count = prepared()
    others = [torch.zeros(1 << 20, device="cuda") for _ in range(8)]
    assert count() == 1 << 20 and len(others) == 8
