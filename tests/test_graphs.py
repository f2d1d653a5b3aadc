"""The experiment on graphs: cells, runs that stop and go on, the command, from made-up graphs."""

import math
import os
import re
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from fspool import report
from fspool.checks import UserError
from fspool.data import tu
from fspool.experiments import EXPERIMENTS, graphs
from fspool.experiments.experiment import published
from fspool.experiments.folds import splits
from fspool.experiments.graph_tables import BASES, BIO, SOCIAL, TABLES
from fspool.experiments.graphs import GraphCell
from fspool.lab import trainer
from fspool.lab.launch import Options, bundles, jobs_of, perform
from fspool.lab.several import Several
from fspool.models.readout import PYG
from fspool.report.markdown import markdown
from fspool.report.page import page
from fspool.storage import read_json, read_tensors

from .grids import grids_of
from .made_graphs import drawn, write_tu

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
DATA = os.environ.get("FSPOOL_DATA")
MADE = drawn(47, 3)
EXPERIMENT = EXPERIMENTS["graphs"]


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    """47 graphs under the name of MUTAG."""
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("FSPOOL_COMMIT", "0123456789ab")
    monkeypatch.delenv("FSPOOL_DATA", raising=False)
    monkeypatch.setitem(tu.SOURCES, "MUTAG", write_tu(tmp_path / "data", "MUTAG", MADE))
    return tmp_path / "data"


@pytest.fixture
def cell(root):
    """Six steps an epoch: 37 or 38 graphs in batches of 7."""
    return GraphCell(width=5, batch=7, epochs=4, dropout=0.5, dtype="float64").at(data=root)


def train(cell, seeds):
    """The model and its last state."""
    model = trainer.build(cell, list(seeds), CPU)
    *_, state = trainer.train(model, cell, list(seeds), CPU)
    return model, state


# --------------------------------------------------------------------------------------------------
# A cell


def test_an_epoch_trains_on_the_graphs_of_the_run(cell):
    seeds = [0, 25]
    assert cell.tally_every == 6 and cell.steps == 24
    batches = list(cell.batches(seeds, range(3, 18), CPU))
    own = splits(47, seeds).train
    for epoch in (batches[3:9], batches[9:15]):
        for run in range(2):
            labels = torch.cat([batch.graphs.labels[run] for batch in epoch])
            expected = [MADE[number].label for number in own[run].tolist() if number >= 0]
            assert sorted(labels[labels >= 0].tolist()) == sorted(expected)
            nodes = sum(int(batch.graphs.offsets[run, -1]) for batch in epoch)
            assert nodes == sum(len(MADE[n].kinds) for n in own[run].tolist() if n >= 0)
    (again,) = cell.batches([25], range(10, 11), CPU)
    assert torch.equal(again.graphs.labels[0], batches[7].graphs.labels[1])
    assert torch.equal(again.keep[0], batches[7].keep[1])


def test_dropout_is_drawn_for_run_and_step(cell):
    batches = replace(cell, batch=47, dropout=0.25).batches([0, 1], range(4), CPU)
    keep = torch.stack([batch.keep for batch in batches])
    assert keep.shape == (4, 2, 47, 5) and keep.dtype == torch.float64
    assert set(keep.flatten().tolist()) == {0.0, 1 / 0.75}
    assert abs((keep > 0).double().mean() - 0.75) < 0.05
    assert not torch.equal(keep[0], keep[1]) and not torch.equal(keep[:, 0], keep[:, 1])
    none = next(replace(cell, dropout=0.0).batches([0], range(1), CPU)).keep
    assert none.shape == (1, 7, 5) and (none == 1).all()


def test_missing_graphs_have_no_weight_in_the_loss(cell):
    (last,) = cell.batches([0, 1], range(5, 6), CPU)
    labels = last.graphs.labels
    assert (labels < 0).any() and (labels >= 0).any(-1).all()
    output = torch.randn(2, 7, 2, dtype=torch.float64)
    found = cell.loss(output, last, None)
    for run in range(2):
        there = labels[run] >= 0
        torch.testing.assert_close(
            found[run], cross_entropy(output[run, there], labels[run, there])
        )


def test_the_learning_rate_is_halved_every_50_epochs():
    cell = GraphCell(dataset="PTC", batch=128)
    assert cell.tally_every == 3 and cell.steps == 1500
    epochs = {0: 0.01, 49: 0.01, 50: 0.005, 99: 0.005, 100: 0.0025, 499: 0.01 / 512}
    for epoch, rate in epochs.items():
        assert cell.rate(3 * epoch) == cell.rate(3 * epoch + 2) == pytest.approx(rate, rel=1e-12)


def test_right_answers_are_counted_as_anybody_would(cell):
    """Runs 2 and 9 have one graph less for validation."""
    seeds = [2, 9, 14]
    model, state = train(cell, seeds)
    model.eval()
    own, shelf = splits(47, seeds), cell._shelf(CPU)
    with torch.no_grad():
        metrics = cell.evaluate(model, seeds, CPU).metrics
        for name in ("validation", "test"):
            for run, part in enumerate(getattr(own, name)):
                numbers, right = part[part >= 0].tolist(), 0
                for number in numbers:
                    rows = torch.full((3, 1), number)
                    scores = model(*shelf.take(rows, shelf.room(rows))[:4])
                    right += int(scores[run, 0].argmax() == MADE[number].label)
                assert state.tensors[f"tally.{name}"][run, -1] == right
                assert metrics[name][run] == right / len(numbers)


def test_trials_may_come_in_pieces(cell, monkeypatch):
    whole = train(cell, [0, 9])[1].tensors
    monkeypatch.setattr(graphs, "PIECE", 3)
    pieces = train(cell, [0, 9])[1].tensors
    for name in ("tally.validation", "tally.test"):
        assert torch.equal(whole[name], pieces[name])


@pytest.mark.parametrize("readout", ["fspool", "sum", "mean"])
def test_a_replica_is_the_single_run(cell, readout):
    cell = replace(cell, readout=readout)
    seeds = [0, 13, 99]
    model, together = train(cell, seeds)
    single, alone = train(cell, [13])
    losses = [record["loss"][1] for record in together.curve]
    assert losses == pytest.approx([record["loss"][0] for record in alone.curve], rel=1e-9)
    for name in ("tally.validation", "tally.test"):
        assert torch.equal(together.tensors[name][1:2], alone.tensors[name])
    own = single.state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value[1:2], own[name], rtol=1e-6, atol=1e-8)


def test_both_dropouts_are_trained_as_one(cell, tmp_path):
    both = [replace(cell, dropout=p) for p in (0.0, 0.5)]
    assert both[0].likeness() == both[1].likeness() != replace(cell, width=6).likeness()
    jobs = [
        job
        for name, own in zip("ab", both, strict=True)
        for job in jobs_of("graphs", name, own, 2, tmp_path / "together", CPU)
    ]
    assert len(bundles(jobs, torch.device("cuda"))) == 1
    assert perform(jobs, Options(), lambda event: None) == []
    for job in jobs:
        found = read_tensors(job.path / "arrays.safetensors")[0]
        _, state = train(job.cell, job.seeds)
        for name in ("validation", "test"):
            assert torch.equal(found[name], state.tensors[f"tally.{name}"])


def test_on_cuda_all_batches_have_one_shape(cell, monkeypatch):
    """So cells with other runs can be trained as one, and steps be recorded."""
    room = graphs._most(cell._shelf(CPU), False, cell.epochs, cell.batch, cell.tally_every)
    both = Several([replace(cell, dropout=0.0), cell], [2, 3])
    seeds = [0, 1, 17, 55, 98]
    with monkeypatch.context() as patch:
        patch.setattr(GraphCell, "_room", lambda self, device: room)
        batches = list(both.batches(seeds, range(24), CPU))
        _, fixed = train(both, seeds)
    assert {batch.graphs.kinds.shape for batch in batches} == {(5, room.nodes)}
    assert {batch.graphs.sources.shape for batch in batches} == {(5, room.edges)}
    for batch in batches:
        assert batch.graphs.offsets.max() <= room.nodes and batch.graphs.starts.max() <= room.edges
    assert (batches[0].keep[:2] == 1).all() and not (batches[0].keep[2:] == 1).all()
    _, short = train(cell, seeds[2:])
    assert torch.equal(fixed.tensors["tally.test"][2:], short.tensors["tally.test"])


def test_all_models_and_grid_points_are_tried_on_the_same_graphs(root):
    cells = graphs.cells("paper")
    own = [cell.at(data=root) for cell in cells.values() if cell.dataset == "MUTAG"]
    first, *others = [cell.trials([4, 31], CPU) for cell in own]
    assert len(others) == 31
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)
    seen = [{int(n) for n in cell._splits([4], CPU).train[0]} for cell in own]
    assert all(each == seen[0] for each in seen)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("readout", ["fspool", "sum", "mean"])
def test_recorded_steps_and_counts_are_those_of_the_cpu(cell, readout, monkeypatch):
    """The learning rate is written while a step is a graph, and counts are made by another.

    On CUDA the rate is a float32, and training enlarges differences of 1e-8 to some per cent within
    these few steps; so it is one that float32 has.
    """
    monkeypatch.setattr(graphs, "HALVING", 2)
    cell = replace(cell, readout=readout, epochs=6, learning_rate=2.0**-7)
    seeds, found = [0, 9, 25], []
    for device in (CPU, torch.device("cuda")):
        model = trainer.build(cell, seeds, device)
        *_, state = trainer.train(model, cell, seeds, device)
        found.append(state)
    for one, other in zip(found[0].curve, found[1].curve, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
    for name in ("tally.validation", "tally.test"):
        assert torch.equal(found[0].tensors[name], found[1].tensors[name].cpu())


def test_a_run_that_was_stopped_ends_with_the_same_numbers(cell, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "CHUNK", 5)  # across epochs

    class Stop(BaseException):
        pass

    def stop(event):
        if event.kind == "step" and event.step == 10:
            raise Stop

    (whole,) = jobs_of("graphs", "a", cell, 3, tmp_path / "whole", CPU)
    (stopped,) = jobs_of("graphs", "a", cell, 3, tmp_path / "stopped", CPU)
    assert perform([whole], Options(), lambda event: None) == []
    with pytest.raises(Stop):
        perform([stopped], Options(save_every=0), stop)
    assert perform([stopped], Options(), lambda event: None) == []
    one, other = (read_json(job.path / "result.json") for job in (whole, stopped))
    assert one == other
    arrays = [read_tensors(job.path / "arrays.safetensors")[0] for job in (whole, stopped)]
    torch.testing.assert_close(*arrays, rtol=0, atol=0)
    assert arrays[0]["validation"].shape == (3, 4)


def test_it_learns(cell):
    """Many edges or few: that is easy."""
    _, state = train(replace(cell, epochs=30, width=16, dropout=0.0, dtype="float32"), range(10))
    losses = [record["loss"] for record in state.curve]
    assert sum(losses[-1]) < 0.8 * sum(losses[0])
    right = state.tensors["tally.test"][:, -5:].double().mean(-1).sum()
    assert right / 47 > 0.7


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"dataset": "MUTAK"}, "dataset is 'MUTAK'; expected one of .*, perhaps 'MUTAG'"),
        ({"readout": "maxx"}, "readout is 'maxx'; expected one of .*, perhaps 'max'"),
        ({"dropout": 1.0}, "dropout is 1.0; expected a probability below 1."),
        ({"dropout": -0.1}, "dropout is -0.1"),
        ({"batch": 1}, "batch is 1; expected graphs to normalise over, an integer of at least 2"),
        ({"width": 0}, "width is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"knots": 1}, "knots is 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; expected a positive number"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"dtype": "half"}, "dtype is 'half'"),
    ],
)
def test_bad_settings(bad, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence).replace(r"\.\*", ".*")):
        GraphCell(**bad)


# --------------------------------------------------------------------------------------------------
# Presets and tables


def test_the_grid_of_the_paper():
    cells = graphs.cells("paper")
    assert len(cells) == 5 * 8 * 4 + 5 * 4 * 3 + 3 * 2 * 4
    own = cells["fspool-NCI1-d16-b32-p0.5"]
    assert (own.width, own.batch, own.dropout, own.epochs, own.knots) == (16, 32, 0.5, 500, 5)
    social = cells["mean-COLLAB-d64-b100-p0"]
    assert (social.readout, social.width, social.batch, social.epochs) == ("mean", 64, 100, 250)
    assert cells["fspool-k20-PTC-d32-b128-p0"].knots == 20
    assert cells["fspool-bn-PTC-d32-b128-p0"].norm_first
    assert not any(cell.reshuffle for cell in cells.values())
    wide = {name for name, cell in cells.items() if cell.wide_eps}
    assert wide == {name for name in cells if "-eps-" in name} != set()
    assert cells["mean-eps-COLLAB-d64-b32-p0"].readout == "mean"
    assert EXPERIMENT.seeds["paper"] == 100 == own.most_runs
    assert {cell.dataset for cell in cells.values()} == set(tu.SOURCES) == {*SOCIAL, *BIO}


def test_what_is_released():
    cells = graphs.cells("released")
    assert all(cell.wide_eps and cell.reshuffle and cell.knots == 6 for cell in cells.values())
    assert {c.dropout for c in cells.values() if c.dataset in SOCIAL} == {0.0}
    assert len(cells) == 5 * 8 * 2 + 5 * 2 * 2


def test_quick_has_one_point_of_the_grid_on_two_sets():
    assert {cell.dataset for cell in EXPERIMENT.preset("quick").values()} == {"MUTAG", "PTC"}
    assert len(EXPERIMENT.preset("quick")) == 4
    assert len(EXPERIMENT.preset("quick", ["COLLAB"])) == 2
    assert set(graphs.cells("quick")) <= set(graphs.cells("paper"))


def test_every_published_number_has_a_place():
    for table in TABLES:
        if table.published:
            paper = published(table.published)
            assert paper.keys() <= {*table.rows, *table.reference}
            assert set(table.reference) <= paper.keys()
            for row in paper.values():
                assert row.keys() <= set(table.columns)
    assert published("graphs.bio.accuracy")["GIN-FSPool"]["PROTEINS"].text == "73.8 ± 0.9"
    assert published("graphs.best")["GIN-FSPool"]["PROTEINS"].value == 77.1
    assert list(published("graphs.bio.accuracy")["DiffPool"]) == ["PROTEINS"]
    assert list(published("graphs.social.accuracy")["DCNN"]) == ["IMDB-B", "IMDB-M", "COLLAB"]


def test_every_entry_is_of_a_model_in_a_preset_or_of_another_readout():
    cells = graphs.cells("paper")
    for readout in PYG:
        cells |= graphs.read_by("paper", readout)
    known = {
        f"{name.partition('-' + cell.dataset)[0]} {cell.dataset}" for name, cell in cells.items()
    }
    entries = {entry.cell for table in TABLES for row in table.rows.values() for entry in row}
    assert entries - known == {"accuracy over data sets", "epoch over data sets"}
    assert set(BASES.values()) == {"sum", "mean"}


# --------------------------------------------------------------------------------------------------
# The command


@pytest.fixture
def run(fspool, root, tmp_path):
    def command(*arguments, out=tmp_path / "out"):
        small = ("--set", "epochs=3", "--workers", 1)
        return fspool("run", "graphs", "--data", root, "--out", out, *small, *arguments)

    return command


@pytest.fixture
def finished(run, tmp_path):
    code, out, err = run("--dataset", "MUTAG", "--seeds", 20)
    assert code == 0, out + err
    return tmp_path / "out", out


def test_a_whole_experiment(finished, run):
    out, text = finished
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == [
        "fspool-MUTAG-d16-b128-p0.5",
        "sum-MUTAG-d16-b128-p0.5",
    ]
    for words in (
        "Accuracy, molecules and proteins",
        "Chosen epoch",
        "85.9 ± 2.4",
        "GIN-Base* (Xu",
    ):
        assert words in text
    found = report.collect(out)
    tables = grids_of(EXPERIMENT, found)
    grid = tables["Accuracy, molecules and proteins"]
    assert grid.columns == ["MUTAG"] and grid.rows[0].label == "GIN-FSPool"
    place = grid.rows[0].places[0]
    assert place.runs == 2 and place.published == "85.9 ± 2.4" and place.spread
    assert not place.verdict and "are not the paper's" in text  # 4 epochs, not 500
    own = found.combined(EXPERIMENT)["fspool MUTAG"].metrics
    assert place.value == f"{50 * sum(own['accuracy']):.1f}"
    labels = [row.label for row in grid.rows]
    assert labels[2:4] == ["PK", "DCNN"]
    assert [row.places[0].value for row in grid.rows[2:4]] == ["76.0 ± 2.7", "67.0"]
    assert labels[-1].startswith("Welch test, GIN-FSPool")
    width = tables["Chosen width"].rows[0].places[0]
    assert width.value == "16.0" and width.published == "28.8" and not width.verdict
    assert "The worst run of GIN-FSPool" in tables
    code, text, _ = run("--dataset", "MUTAG", "--seeds", 20)
    assert code == 0 and "2 of 2 groups of runs were finished before." in text


def test_a_compact_file_has_what_the_tables_need(finished, tmp_path):
    out, _ = finished
    found = report.collect(out)
    report.compact(found, tmp_path / "small.json")
    again = report.collect(tmp_path / "small.json")
    assert markdown(again) == markdown(found)
    assert page(again).count("accuracy-MUTAG") == page(found).count("accuracy-MUTAG") > 0
    for record in again:
        assert record.tallies["test"].shape == (2, 3)
        assert torch.equal(record.tallies["test"], found.of("graphs")[record.name].tallies["test"])


def test_a_full_protocol_is_small_enough_to_commit(tmp_path):
    """Eight grid points of ten repeats and 500 epochs."""
    generator = torch.Generator().manual_seed(0)
    names = [name for name in graphs.cells("paper") if name.startswith("fspool-NCI1")]
    records = []
    for name in names:
        drift = torch.randint(-12, 13, (2, 10, 500), generator=generator, dtype=torch.int32)
        tallies = {"repeat": torch.arange(10, dtype=torch.int32)}
        tallies |= dict(zip(("validation", "test"), 3000 + drift, strict=True))
        settings = graphs.cells("paper")[name].settings()
        record = report.Record("graphs", name, settings, list(range(100)), {}, [], [])
        records.append(replace(record, tallies=tallies))
    report.compact(report.Collection(records), tmp_path / "small.json")
    assert len(names) == 8 and (tmp_path / "small.json").stat().st_size < 200_000


def test_the_page_says_which_colour_is_which(finished):
    text = page(report.collect(finished[0]))
    assert "GIN-Base (sum)" in text and "GIN-Base (mean)" not in text and "k = 20" not in text
    assert "Accuracy by epoch" in text


def test_without_a_complete_repeat_there_is_no_table(run, tmp_path):
    code, text, _ = run("--dataset", "MUTAG", "--seeds", 3, "--no-page")
    assert code == 0 and "Accuracy" not in text
    found = report.collect(tmp_path / "out")
    assert "accuracy-MUTAG" not in page(found) and len(found) == 2


@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
def test_runs_without_their_counts_are_named_and_left_out(finished, damage):
    out, _ = finished
    (path,) = out.glob("sum-*/seeds-*/arrays.safetensors")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-7])
    elif damage == "gone":
        path.unlink()
    else:
        from fspool.storage import write_tensors

        write_tensors(path, {name: torch.zeros(3, 3) for name in ("validation", "test")})
    found = report.collect(out)
    assert [record.name for record in found] == ["fspool-MUTAG-d16-b128-p0.5"]
    (text,) = found.problems
    assert "arrays.safetensors" in text and "left out" in text


def test_data_sets_and_patterns(run, tmp_path):
    code, _, _ = run("--dataset", "MUTAG", "--only", "sum-*", "--seeds", 1, "--no-page")
    assert code == 0
    assert [path.name for path in (tmp_path / "out").glob("*-*")] == ["sum-MUTAG-d16-b128-p0.5"]
    (plan,) = report.collect(tmp_path / "out").plans
    assert plan.commands[0].endswith("--dataset MUTAG --only 'sum-*' --set epochs=3")


def test_a_data_set_that_is_not_known(run):
    code, _, err = run("--dataset", "PROTEIN")
    assert code == 1 and "dataset is 'PROTEIN'" in err and "perhaps 'PROTEINS'" in err


def test_a_data_set_that_is_not_there(run):
    code, out, err = run("--dataset", "PTC", "--seeds", 1)
    assert code == 1 and err.count("fspool data tu PTC") == 1 and not out


def test_other_experiments_have_no_data_sets(fspool, tmp_path):
    code, _, err = fspool("run", "polygons", "--dataset", "MUTAG", "--out", tmp_path / "x")
    assert (
        code == 1 and "polygons has no data sets to choose from, but 'MUTAG' was asked for" in err
    )
    with pytest.raises(UserError, match="leave --dataset out"):
        EXPERIMENTS["mnist-classification"].preset("quick", ["PTC"])


@pytest.mark.skipif(not DATA, reason="FSPOOL_DATA is not set")
def test_real_graphs(monkeypatch):
    monkeypatch.undo()
    cell = GraphCell(width=4, epochs=2).at(data=DATA)
    model, state = train(cell, [0, 7])
    assert cell.steps == 4 and state.tensors["tally.test"].shape == (2, 2)
    assert (state.tensors["tally.test"] > 0).any() and state.tensors["tally.test"].max() <= 19
    assert model.blocks[0].first.weight.shape == (2, 4, 7)
