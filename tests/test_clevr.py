"""The experiment with questions: from files to tables, in pieces, by several processes."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from fspool import report
from fspool.checks import UserError
from fspool.data.clevr import generate
from fspool.experiments import clevr as experiment
from fspool.experiments import clevr_data
from fspool.experiments.clevr import ClevrCell, cells
from fspool.experiments.polygons import Polygons
from fspool.lab import trainer
from fspool.models.clevr import POOLS, QuestionAnswering
from fspool.report.records import Record
from fspool.report.tables import _is_changed
from fspool.storage import read_tensors

from . import clevr
from .processes import torchrun

SMALL = {"hidden": 8, "width": 8, "embedding": 4, "batch": 32, "epochs": 3, "knots": 4}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    folder = tmp_path_factory.mktemp("twin") / "clevr"
    generate.generate(folder, {"train": 12, "val": 5}, files=False)
    return folder.parent


def small(twin, **settings) -> ClevrCell:
    usual = {"learning_rate": 1e-2, "schedule": "constant", "precision": "float32"}
    return ClevrCell(**SMALL | usual | settings).at(data=twin)


def trained(cell, seeds, state=None):
    model = trainer.build(cell, seeds, CPU)
    *_, last = trainer.train(model, cell, seeds, CPU, state)
    return model, last


def test_the_data_decides_how_long_it_takes(twin):
    cell = small(twin)
    assert (cell.questions, cell.tried, cell.tally_every, cell.steps) == (120, 50, 4, 12)
    assert len(cell.content) == 16 and cell.at(data=twin) == cell
    assert ClevrCell().tally_every == 1094 and ClevrCell(questions=699_989).tally_every == 1094


def test_some_of_the_scenes_and_some_of_the_questions(twin):
    part = small(twin, scenes=4)
    assert (part.questions, part.tried) == (40, 10) and part.content != small(twin).content
    whole, first = (cell.desk("train", CPU) for cell in (small(twin), part))
    assert torch.equal(first.answers, whole.answers[:40])
    for i in range(40):
        n = int(whole.lengths[i])
        assert first.lengths[i] == n and torch.equal(first.words[i, -n:], whole.words[i, -n:])
    group = small(twin, group="zero_hop")
    assert 0 < group.questions < 120
    assert group.desk("train", CPU).lengths.max() < whole.lengths.max()


@pytest.mark.parametrize("pool", ["fspool", "none"])
def test_several_runs_are_the_single_ones(twin, pool):
    cell = small(twin, pool=pool)
    model, state = trained(cell, [0, 2])
    alone, single = trained(cell, [2])
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(
            model.state_dict()[name][1:], tensor, rtol=1e-3, atol=1e-4, msg=name
        )
    assert torch.equal(state.tensors["tally.right"][1:], single.tensors["tally.right"])


def test_the_last_count_is_the_accuracy(twin):
    cell = small(twin)
    model, state = trained(cell, [0, 1])
    with torch.no_grad():
        found = cell.evaluate(model.eval(), [0, 1], CPU)
    right = state.tensors["tally.right"][:, -1]
    assert found.metrics["accuracy"] == pytest.approx((right / 50).tolist())
    groups = [name for name in found.metrics if name.startswith("accuracy ")]
    assert "accuracy zero_hop" in groups
    assert found.arrays["functions"].shape[1] == 4


def test_it_learns_what_a_question_alone_does_not_tell():
    """How many objects are there, always in the same words?"""
    found = {}
    for pool in ("fspool", "none"):
        torch.manual_seed(0)
        model = QuestionAnswering(pool=pool, hidden=8, width=16, embedding=4, scaled=False)
        optimiser = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(150):
            sizes = torch.randint(3, 11, (64,))
            inside = torch.arange(10) < sizes.unsqueeze(-1)
            objects = torch.rand(64, 10, 7) * inside.unsqueeze(-1)
            scores = model(objects, sizes, torch.ones(64, 2, dtype=torch.uint8))
            optimiser.zero_grad()
            cross_entropy(scores, sizes).backward()
            optimiser.step()
        found[pool] = float((scores.argmax(-1) == sizes).float().mean())
    assert found["fspool"] > 0.9 and found["none"] < 0.4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-3), ("bfloat16", 5e-2)])
def test_recorded_steps_are_those_of_the_cpu(twin, pool, precision, tolerance):
    cell = small(twin, pool=pool, precision="float32", hidden=32, width=32, learning_rate=1e-3)
    _, expected = trained(cell, [0, 1])
    device = torch.device("cuda")
    cell = replace(cell, precision=precision)
    torch.set_float32_matmul_precision(cell.matmul_precision)
    model = trainer.build(cell, [0, 1], device)
    *_, last = trainer.train(model, cell, [0, 1], device)
    torch.set_float32_matmul_precision("highest")
    assert last.curve[-1]["loss"] == pytest.approx(expected.curve[-1]["loss"], rel=tolerance)


# --------------------------------------------------------------------------------------------------
# The command


def test_quick_makes_its_twin_and_shows_all(tmp_path, fspool, monkeypatch, one_thread):
    short = {
        name: replace(cell, scenes=14, **SMALL)
        for name, cell in cells("quick").items()
        if name != "max-short"
    }
    monkeypatch.setattr(experiment, "quick", lambda: short)
    monkeypatch.setattr(clevr_data, "cores", lambda: 1)
    arguments = ("run", "clevr", "--data", tmp_path / "data", "--out", tmp_path / "out")
    code, out, _ = fspool(*arguments, "--workers", 1)
    assert code == 0 and "Question only" in out
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["clevr-twin-14"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Learnt weight functions" in page and "Accuracy by epoch" in page
    code, again, _ = fspool(*arguments, "--workers", 1)
    assert code == 0 and "3 of 3 groups of runs were finished before." in again
    results = report.collect(tmp_path / "out")
    report.compact(results, tmp_path / "all.json")
    kept = report.collect(tmp_path / "all.json")
    for one, two in zip(results, kept, strict=True):
        assert one.metrics == two.metrics
        assert torch.equal(one.tallies["right"], two.tallies["right"])


def test_tables_beside_the_papers(tmp_path, twin, fspool):
    options = [word for name in SMALL for word in ("--set", f"{name}={SMALL[name]}")
               if name in ("batch", "epochs", "knots")]  # fmt: skip
    arguments = ("run", "clevr", "--preset", "released", "--data", twin, "--out", tmp_path / "out")
    more = ("--only", "question", "--seeds", 2, "--set", "precision=float32", "--workers", 1)
    code, out, error = fspool(*arguments, *options, *more, "--set", "scaled=no")
    assert code == 0, error
    assert "MAC" in out and "99.0" in out and "Question only" in out
    config = json.loads((tmp_path / "out/question/seeds-0-0/config.json").read_text())["cell"]
    assert config["schedule"] == "released" and config["scaled"] is False
    code, _, error = fspool(*arguments, *more, "--set", "scaled=perhaps")
    assert code != 0 and "scaled is 'perhaps'; expected" in error


def test_other_data_is_another_configuration(tmp_path, twin, fspool):
    other = tmp_path / "other"
    generate.generate(other / "clevr", {"train": 12, "val": 5}, seed=1, files=False)
    more = ("--only", "question", "--seeds", 1, "--set", "epochs=1", "--workers", 1)
    arguments = ("run", "clevr", "--preset", "paper", "--out", tmp_path / "out", *more)
    assert fspool(*arguments, "--data", twin, "--set", "batch=120")[0] == 0
    code, _, error = fspool(*arguments, "--data", other, "--set", "batch=120")
    assert code != 0 and "holds another configuration (cell.content is" in error


def test_a_run_that_was_stopped_goes_on(twin):
    cell = small(twin)
    model = trainer.build(cell, [0], CPU)
    training = trainer.train(model, replace(cell, epochs=2), [0], CPU)
    *_, half = training
    tensors = {
        name: torch.nn.functional.pad(t, (0, 1)) if name == "tally.right" else t.clone()
        for name, t in half.tensors.items()
    }
    _, on = trained(cell, [0], trainer.State(half.step, tensors, []))
    _, whole = trained(cell, [0])
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(on.tensors[name], tensor, msg=name)


# --------------------------------------------------------------------------------------------------
# Several processes


def test_two_processes_give_the_curve_of_one(tmp_path, twin, fspool):
    command = ["run", "clevr", "--preset", "paper", "--data", twin, "--only", "fspool"]
    command += ["--seeds", 1, "--device", "cpu", "--set", "precision=float32", "--set", "epochs=2"]
    command += ["--set", "learning_rate=0.001", "--set", "batch=32"]
    ended = torchrun(2, *command, "--out", tmp_path / "two")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("CLEVR: questions about scenes") == 1  # one of them speaks
    assert fspool(*command, "--workers", 1, "--out", tmp_path / "one")[0] == 0
    one, two = (
        json.loads((tmp_path / name / "fspool/seeds-0-0/result.json").read_text())
        for name in ("one", "two")
    )
    assert len(one["curve"]) == len(two["curve"]) == 1
    for a, b in zip(one["curve"], two["curve"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
    counts = [
        read_tensors(tmp_path / name / "fspool/seeds-0-0/arrays.safetensors")[0]["right"]
        for name in ("one", "two")
    ]
    assert (counts[0] - counts[1]).abs().max() <= 1  # rounding may turn an answer


def test_processes_share_batches_evenly(twin):
    cell = small(twin)
    (batch,) = list(cell.batches([0, 1], range(1), CPU))
    shares = [cell.share(batch, rank, 4) for rank in range(4)]
    assert torch.equal(torch.cat([share.words for share in shares], 1), batch.words)
    assert all(torch.equal(share.count, batch.count) for share in shares)
    with pytest.raises(UserError, match="batch is 32, which 5 processes cannot share evenly"):
        cell.share(batch, 0, 5)
    with pytest.raises(UserError, match="2 processes were started for one training"):
        Polygons(points=4).share(None, 0, 2)


# --------------------------------------------------------------------------------------------------
# Bad input


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"pool": "summ"}, "pool is 'summ'; expected"),
        ({"precision": "half"}, "precision is 'half'; expected"),
        ({"schedule": "linear"}, "schedule is 'linear'; expected"),
        ({"group": "four_hop"}, "group is 'four_hop'; expected"),
        ({"slots": 9}, "slots is 9; expected"),
        ({"dropout": 1.0}, "dropout is 1.0; expected a probability below 1."),
        ({"clip": 0.0}, "clip is 0.0; expected a positive number."),
        ({"batch": 0}, "batch is 0; expected"),
        ({"scenes": -3}, "scenes is -3; expected a number of them"),
        ({"scenes": 10**9}, "scenes is 1000000000; expected at most 10000000."),
        ({"decay": -5.0}, "decay is -5.0; expected a number of at least 0."),
        ({"decay": float("nan")}, "decay is nan; expected a number of at least 0."),
    ],
)
def test_wrong_settings(setting, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ClevrCell(**setting)


@pytest.mark.parametrize(
    "changes, changed",
    [
        ({}, False),
        ({"questions": 699_989, "tried": 149_991, "content": "the original"}, False),
        ({"questions": 100, "tried": 20}, True),
        ({"epochs": 3}, True),
    ],
)
def test_only_as_many_questions_as_the_paper_has_are_judged_by_it(changes, changed):
    settings = cells("paper")["sum"].settings() | changes
    record = Record("clevr", "sum", settings, [0], {}, [], [])
    own = experiment.EXPERIMENT
    presets = [own.cells(name) for name in own.judged]
    assert _is_changed(own, presets, record, set()) == changed


def spoiled(folder, change):
    """Two splits as files, one of which somebody has spoilt."""
    for split in ("train", "val"):
        clevr.write_split(folder, split, clevr.block(8, split))
    path = folder / "questions" / "CLEVR_val_questions.json"
    if callable(change):
        data = json.loads(path.read_text())
        change(data["questions"])
        path.write_text(json.dumps(data))
    else:
        path.write_text(change)
    return path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ('{"questions": [{"image_index": 3', "record 0 of questions, is cut off or damaged"),
        ('{"annotations": []}', "has no list of questions"),
        (lambda q: q[3]["program"][-1].update(function="dance"), "question 3: .*'dance'"),
        (lambda q: q[2].update(image_index=999), "question 2: .*999"),
        (lambda q: q[1].update(answer="pink"), "question 1: .*'pink'"),
    ],
)
def test_a_run_names_file_record_and_reason(tmp_path, fspool, change, reason):
    path = spoiled(tmp_path / "data", change)
    arguments = ("run", "clevr", "--preset", "paper", "--data", tmp_path / "data")
    code, _, error = fspool(*arguments, "--out", tmp_path / "out", "--only", "question")
    error = " ".join(error.split())
    assert code == 1 and str(path) in error and re.search(reason, error), error
    assert "Traceback" not in error and not (tmp_path / "out").exists()


def test_a_run_without_data_says_how_to_get_it(tmp_path, fspool):
    code, _, error = fspool("run", "clevr", "--preset", "paper", "--data", tmp_path)
    assert code == 1 and "or make a twin by fspool data clevr --scenes 70000" in error


def test_a_twin_needs_room(tmp_path, fspool, monkeypatch):
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(generate.shutil, "disk_usage", lambda path: full)
    code, _, error = fspool("run", "clevr", "--data", tmp_path, "--out", tmp_path / "out")
    assert code == 1 and "MB of room; the twin needs" in error and "choose another folder" in error


def test_data_that_changed_meanwhile(twin):
    cell = replace(small(twin), questions=640)
    with pytest.raises(UserError, match="has 120 questions, but this run was planned for 640"):
        cell.batches([0], range(1), CPU)
