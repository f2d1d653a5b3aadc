"""MNIST as sets: batches, models, cells, from made-up images."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fspool import FSPool, FSUnpool, report, storage
from fspool.checks import UserError
from fspool.data import draws, point_sets
from fspool.data.mnist import MnistSets
from fspool.experiments import EXPERIMENTS, mnist, mnist_classification, mnist_reconstruction
from fspool.experiments.mnist_classification import Classification
from fspool.experiments.mnist_reconstruction import Reconstruction
from fspool.lab import trainer
from fspool.lab.launch import Options, jobs_of
from fspool.lab.launch import perform as perform_job
from fspool.lab.replicas import stack
from fspool.lab.runs import RunFolder
from fspool.losses import assignment, chamfer
from fspool.models import RecurrentDecoder, SetEncoder
from fspool.models.released import FilledPool, FilledUnpool
from fspool.report.markdown import markdown
from fspool.report.page import page
from fspool.report.records import Record
from fspool.report.tables import _is_changed
from fspool.storage import plain, read_json, write_json

CPU = torch.device("cpu")


def images(count: int, seed: int) -> MnistSets:
    """Sets of 3 to 40 points, labels in turn."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, 41, (count,), generator=generator)
    offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    points = torch.randint(0, 28, (int(offsets[-1]), 2), generator=generator).to(torch.uint8)
    return MnistSets(points, offsets, (torch.arange(count) % 10).to(torch.uint8))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sets = {"train": images(64, 0), "test": images(24, 1)}
    monkeypatch.setattr(mnist, "_on_device", lambda root, split, device: sets[split])
    monkeypatch.setattr(mnist, "TRAIN", 64)
    monkeypatch.setattr(mnist.mnist, "check", lambda root: None)
    return sets


def cell(kind=Reconstruction, **settings):
    return kind(**({"batch": 4, "steps": 8, "test_sets": 24, "hidden": 8} | settings))


# --------------------------------------------------------------------------------------------------
# Batches


def test_normal_numbers():
    x = draws.normal([0, 1], range(50), "noise", (40, 3))
    assert x.shape == (50, 2, 40, 3)
    assert abs(x.mean()) < 0.02 and abs(x.std() - 1) < 0.02 and abs(x.pow(4).mean() - 3) < 0.2
    again = draws.normal([1], range(7, 8), "noise", (40, 3))
    assert torch.equal(again[0, 0], x[7, 1])


def test_an_epoch_sees_every_image_once(small):
    whole = point_sets.train_batches(small["train"], [0, 1], range(32), 4, sigma=0.0)
    seen = whole.sizes.transpose(0, 1)  # (G, steps, B)
    all_sizes = small["train"].offsets.diff().sort().values
    for run in seen:
        for epoch in run.reshape(2, -1):
            assert torch.equal(epoch.sort().values, all_sizes)
    assert not torch.equal(seen[0, :16], seen[0, 16:]) and not torch.equal(seen[0], seen[1])


def test_a_batch_depends_on_seed_and_step_alone(small):
    options = {"sigma": 0.05}
    together = point_sets.train_batches(small["train"], [3, 5], range(10, 14), 4, **options)
    alone = point_sets.train_batches(small["train"], [5], range(12, 13), 4, **options)
    for a, b in zip(together, alone, strict=True):
        assert torch.equal(a[2:3, 1:], b)
    short = point_sets.train_batches(small["train"], [5], range(12, 13), 4, length=None, **options)
    assert short.input.shape[-2] == alone.sizes.max()
    assert torch.equal(short.input, alone.input[..., : alone.sizes.max(), :])


def test_noise_is_on_the_points_alone(small):
    batch = point_sets.every_set(small["test"], [0], range(24), sigma=0.1)
    outside = torch.arange(342) >= batch.sizes.unsqueeze(-1)
    assert not batch.input[outside].any() and not batch.target[outside].any()
    noise = (batch.input - batch.target)[~outside]
    assert abs(noise.std() - 0.1) < 0.01 and abs(noise.mean()) < 0.01
    grid = batch.target * 27
    assert torch.allclose(grid, grid.round(), atol=1e-5)
    for size, points, first in zip(
        batch.sizes[0], batch.target[0], small["test"].offsets, strict=False
    ):
        own = small["test"].points[first : first + size].tolist()
        assert sorted((points[:size] * 27).round().long().tolist()) == sorted(own)
    everywhere = point_sets.every_set(small["test"], [0], range(24), sigma=0.1, everywhere=True)
    assert everywhere.input[outside].std() > 0.05


@pytest.mark.parametrize("everywhere", [False, True])
def test_mask_feature(small, everywhere):
    options = {"sigma": 0.1, "mask": True, "everywhere": everywhere}
    batch = point_sets.every_set(small["test"], [0], range(24), **options)
    inside = (torch.arange(342) < batch.sizes.unsqueeze(-1)).float()
    assert torch.equal(batch.target[..., 2], inside)
    assert torch.equal(batch.input[..., 2], inside) != everywhere


# --------------------------------------------------------------------------------------------------
# Models


def test_recurrent_decoder_is_an_lstm_on_zeros():
    torch.manual_seed(0)
    decoder = RecurrentDecoder(5, 6, 2, 7)
    lstm = nn.LSTM(1, 6, batch_first=True)
    with torch.no_grad():
        lstm.weight_hh_l0.copy_(decoder.weight)
        lstm.bias_ih_l0.copy_(decoder.bias_input)
        lstm.bias_hh_l0.copy_(decoder.bias_hidden)
    z = torch.randn(3, 5)
    start = torch.zeros(1, 3, 6), decoder.cell(z).unsqueeze(0)
    expected = decoder.element(lstm(torch.zeros(3, 7, 1), start)[0])
    torch.testing.assert_close(decoder(z), expected)


def test_recurrent_decoders_as_replicas():
    torch.manual_seed(0)
    decoders = [RecurrentDecoder(5, 6, 2, 7) for _ in range(3)]
    z = torch.randn(3, 4, 5)
    expected = torch.stack([d(own) for d, own in zip(decoders, z, strict=True)])
    torch.testing.assert_close(stack(decoders)(z), expected)


@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
def test_encoders_that_pool_the_padding(pool):
    torch.manual_seed(0)
    encoder = SetEncoder(2, 4, 3, pool=pool, pool_padding=True)
    nn.init.normal_(encoder.elements[0].bias)  # so that padding is not zero any more
    x, sizes = torch.randn(2, 6, 2), torch.tensor([4, 6])
    x[0, 4:] = 0
    h = encoder.elements(x)
    expected = {
        "sum": h.sum(1),
        "mean": h.sum(1) / sizes[:, None],
        "max": h.amax(1),
    }[pool]
    torch.testing.assert_close(encoder(x, sizes=sizes)[0], encoder.vector(expected))
    fair = SetEncoder(2, 4, 3, pool=pool)
    fair.load_state_dict(encoder.state_dict())
    x[0, 4:] = float("nan")
    assert fair(x, sizes=sizes)[0].isfinite().all()


def test_sorted_padding_of_the_released_code():
    """Right where there is none; wrong in float32 where there is much."""
    torch.manual_seed(0)
    pool, unpool = FSPool(4, 5, temperature=1.0), FSUnpool(4, 5)
    filled, back = FilledPool(4, 5, temperature=1.0), FilledUnpool(4, 5)
    filled.load_state_dict(pool.state_dict())
    back.load_state_dict(unpool.state_dict())
    x, full = torch.randn(2, 9, 4), torch.tensor([9, 9])
    y, order = pool(x, sizes=full, return_order=True)
    y_filled, order_filled = filled(x, sizes=full, return_order=True)
    torch.testing.assert_close(y_filled, y)
    torch.testing.assert_close(back(y, order_filled), unpool(y, order))
    x, sizes = torch.rand(2, 150, 4), torch.tensor([100, 150])
    exact = pool(x, sizes=sizes, return_order=True)[1].matrix()[0, :, :100, :100]
    found = filled(x, sizes=sizes, return_order=True)[1].matrix[0, :, :100, :100]
    variation = (found - exact).abs().sum(-1) / 2  # of the distribution that a row of P is
    assert variation.max() > 0.1


def test_sorted_padding_ends_with_the_largest_set_of_the_batch():
    pool, unpool = FilledPool(4, 5, temperature=1.0).double(), FilledUnpool(4, 5).double()
    x, sizes = torch.rand(2, 30, 4, dtype=torch.float64), torch.tensor([20, 30])
    y, order = pool(x, sizes=sizes, return_order=True)
    more = torch.nn.functional.pad(x, (0, 0, 0, 40))
    y_more, order_more = pool(more, sizes=sizes, return_order=True)
    torch.testing.assert_close(y_more, y)
    torch.testing.assert_close(unpool(y, order_more)[:, :30], unpool(y, order))
    assert not unpool(y, order_more)[:, 30:].any()


def test_sorted_padding_as_replicas():
    torch.manual_seed(0)
    own = cell(fill_padding=True, dtype="float64")
    models = [own.model().double() for _ in range(2)]
    batch = own.batches([0, 1], range(1), CPU).each()[0]
    together = own.output(stack(models), batch)
    for run, model in enumerate(models):
        alone = model(batch.input[run], sizes=batch.sizes[run]) * mnist.inside(batch)[run]
        torch.testing.assert_close(together[run], alone)


def test_parameters_of_the_classifiers():
    count = {
        name: sum(p.numel() for p in c.model().parameters())
        for name, c in (mnist_classification.cells("paper")).items()
        if name in ("fspool-random-s0.05", "fspool-large-s0.00")
    }
    assert count["fspool-random-s0.05"] == 3818  # the paper says 3820
    assert abs(count["fspool-large-s0.00"] - 1.6e6) < 5e4


# --------------------------------------------------------------------------------------------------
# Reconstruction


def test_loss_of_the_set_decoder_is_the_mse_of_the_padded_batch():
    own = cell()
    batch = own.batches([0, 1], range(1), CPU).each()[0]
    output = torch.randn_like(batch.target) * mnist.inside(batch)
    loss = own.loss(output, batch, None)
    for run in range(2):
        length = int(batch.sizes[run].max())
        expected = (output - batch.target)[run, :, :length].square().mean()
        torch.testing.assert_close(loss[run], expected)


@pytest.mark.parametrize("mask", [False, True])
def test_metrics_of_the_set_decoder(mask):
    own = cell(mask_feature=mask, sigma=0.0)
    (batch,) = own.tests([0], CPU)
    y = (batch.target + 0.1 * torch.randn_like(batch.target)) * mnist.inside(batch)
    found = own._measure(y, batch)
    for image in range(24):
        n, first = int(batch.sizes[0, image]), image // 4 * 4
        length = int(batch.sizes[0, first : first + 4].max())
        a, b = y[0, image], batch.target[0, image]
        whole = [nn.functional.pad(t, (0, 0, 0, 342 - len(t))) for t in (a, b)]
        expected = {
            "chamfer": chamfer(whole[0][None], whole[1][None], normalise=342),
            "released": chamfer(whole[0][None, :length], whole[1][None, :length], normalise=length),
            "points": chamfer(a[None, :n], b[None, :n]),
        }
        for name, value in expected.items():
            torch.testing.assert_close(found[name][0, image], value[0], msg=name)


def test_distinct_points_of_a_perfect_copy():
    own = cell(sigma=0.0)
    (batch,) = own.tests([0], CPU)
    found = own._measure(batch.target, batch)
    for image in range(24):
        points = (batch.target[0, image] * 27).round().long().tolist()
        pixels = {tuple(p) for p in points[: batch.sizes[0, image]]} - {(0, 0)}
        assert found["distinct"][0, image] * batch.sizes[0, image] == pytest.approx(len(pixels))
    assert found["chamfer"].max() < 1e-12


def test_assignment_of_the_first_images():
    own = cell(sigma=0.0, assigned_sets=3)
    (batch,) = own.tests([0, 1], CPU)
    y = batch.target.flip(-2)  # the same points in another order
    assert own._assign(y, batch)["assignment"] == pytest.approx([0, 0], abs=1e-9)
    assert len(own._assign(y + 0.1, batch)["assignment"]) == 2
    assert cell()._assign(y, batch) == {}


def test_what_the_chamfer_loss_does_not_see():
    a, b = (
        torch.tensor(points, dtype=torch.float64).view(1, 3, 1)
        for points in ([1, 1.001, 9], [1, 9, 9.001])
    )
    text = " ".join(table.note for table in mnist_reconstruction.RECONSTRUCTION_TABLES)
    losses = f"{chamfer(a, b).item():.8f} apart by the Chamfer loss, {assignment(a, b).item():.1f} "
    assert f"The sets [1, 1.001, 9] and [1, 9, 9.001] are {losses}by the assignment loss" in text


def test_training_with_the_assignment_loss(tmp_path):
    """One run, however many are asked for; the loss is that of the pairs."""
    own = cell(pool="sum", decoder="mlp", assigned=True, steps=3, batch=2)
    (job,) = jobs_of("mnist-reconstruction", "a", own, 6, tmp_path, CPU)
    assert job.seeds == (0,)
    (batch,) = own.batches([0], range(1), CPU).each()
    y = own.output(trainer.build(own, [0], CPU), batch)
    loss = own.loss(y, batch, own.match(y, batch))
    torch.testing.assert_close(loss, assignment(y, batch.target).mean(-1))
    assert perform_job([job], Options(), lambda event: None) == []


@pytest.mark.parametrize("name", ["fspool", "sum-mlp", "sum-rnn", "max-mlp", "mean-mlp"])
def test_auto_encoders_learn(name, tmp_path):
    changes = mnist_reconstruction.MODELS[name]
    own = cell(steps=4 if name == "sum-rnn" else 48, mask_feature=name == "sum-mlp", **changes)
    folder = RunFolder(tmp_path)
    trainer.run(own, [0, 1], CPU, folder)
    result = folder.result()
    assert set(result["metrics"]) == {"chamfer", "released", "points", "distinct"}
    assert all(len(values) == 2 for values in result["metrics"].values())
    if name != "sum-rnn":
        assert max(trainer_losses(own)[-1]) < max(trainer_losses(own)[0])


def trainer_losses(own):
    """Loss of the first steps and of the last ones."""
    model = trainer.build(own, [0, 1], CPU)
    batches = own.batches([0, 1], range(1), CPU).each()
    before = own.loss(own.output(model, batches[0]), batches[0], None).tolist()
    for _ in trainer.train(model, own, [0, 1], CPU):
        pass
    return before, own.loss(own.output(model, batches[0]), batches[0], None).tolist()


# --------------------------------------------------------------------------------------------------
# Classification


def test_accuracy_is_read_at_milestones(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist_classification, "EPOCHS", (1, 2))
    own = cell(Classification, steps=40, pool="sum")
    assert own.milestones == (16, 32)
    folder = RunFolder(tmp_path)
    trainer.run(own, [0, 1], CPU, folder)
    metrics = folder.result()["metrics"]
    assert set(metrics) == {"accuracy", "accuracy after 1", "accuracy after 2"}
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == [16, 32, 40]
    short = replace(own, steps=16)
    (tmp_path / "short").mkdir()
    trainer.run(short, [0, 1], CPU, RunFolder(tmp_path / "short"))
    again = RunFolder(tmp_path / "short").result()["metrics"]
    assert again["accuracy"] == again["accuracy after 1"] == metrics["accuracy after 1"]


@pytest.fixture
def encoders(tmp_path):
    runs = tmp_path / "encoders"
    own = cell(pool="sum", decoder="mlp", steps=2)
    for seeds in ([0, 1], [2]):
        folder = runs / "sum-mlp-s0.05" / f"seeds-{seeds[0]}-{seeds[-1]}"
        folder.mkdir(parents=True)
        trainer.run(own, seeds, CPU, RunFolder(folder))
    return runs


@pytest.mark.parametrize("start", ["frozen", "unfrozen"])
def test_encoders_of_auto_encoders(encoders, start):
    own = cell(Classification, pool="sum", start=start, source="sum-mlp-s0.05").at(
        encoders=encoders
    )
    model = trainer.build(own, [2, 1], CPU)
    before = {name: value.clone() for name, value in model.encoder.state_dict().items()}
    for index, seed in enumerate((2, 1)):
        expected = mnist_classification._encoder(encoders, "sum-mlp-s0.05", seed)
        for name, value in before.items():
            assert torch.equal(value[index], expected[name])
    for _ in trainer.train(model, own, [2, 1], CPU):
        pass
    same = [torch.equal(v, before[n]) for n, v in model.encoder.state_dict().items()]
    assert all(same) if start == "frozen" else not any(same)


def test_encoders_of_other_settings_make_other_runs(encoders, tmp_path):
    """One cell may not mix them, and only those of the preset are judged by the paper."""
    own = mnist_classification.cells("paper")["sum-frozen-s0.05"]
    config = encoders / "sum-mlp-s0.05" / "seeds-0-1" / "config.json"
    whole = mnist_reconstruction.cells("paper")["sum-mlp-s0.05"].settings()
    write_json(config, {"cell": whole | {"steps": 2}})
    found = own.at(encoders=encoders)
    assert own.auto_encoder and found.auto_encoder not in ("", own.auto_encoder)
    assert own.at(encoders=tmp_path / "none").auto_encoder == own.auto_encoder
    write_json(config, {"cell": whole})
    assert own.at(encoders=encoders).auto_encoder == own.auto_encoder
    judged = EXPERIMENTS["mnist-classification"]
    presets = [judged.cells(name) for name in judged.judged]
    for cell, changed in ((own, False), (found, True)):
        record = Record(judged.name, "sum-frozen-s0.05", plain(cell.settings()), [0], {}, [], [])
        assert _is_changed(judged, presets, record, set()) == changed


def test_which_encoders_is_on_record(encoders, tmp_path):
    own = cell(Classification, pool="sum", start="frozen", source="sum-mlp-s0.05", steps=2)
    (tmp_path / "run").mkdir()
    trainer.run(own.at(encoders=encoders), [1, 2], CPU, RunFolder(tmp_path / "run"))
    found = read_json(tmp_path / "run" / "provenance.json")["encoders"]
    assert [part["seeds"] for part in found] == [[0, 1], [2]]
    for part, folder in zip(found, sorted((encoders / "sum-mlp-s0.05").iterdir()), strict=True):
        content = (folder / "model.safetensors").read_bytes()
        assert part["sha256"] == hashlib.sha256(content).hexdigest()
        assert (part["cell"], part["steps"]) == ("sum-mlp-s0.05", 2)
    assert cell(Classification, pool="sum").origins([0]) == {}


@pytest.mark.parametrize("harm", [lambda f: f.write_bytes(f.read_bytes()[:-1]), Path.unlink])
def test_an_encoder_that_is_damaged_names_the_command(encoders, harm):
    own = cell(Classification, pool="sum", start="frozen", source="sum-mlp-s0.05")
    own = own.at(encoders=encoders)
    own.check([0, 1, 2])
    harm(encoders / "sum-mlp-s0.05" / "seeds-2-2" / "model.safetensors")
    own.check([0, 1])
    with pytest.raises(UserError, match="make it by fspool run mnist-reconstruction"):
        own.check([2])


def test_an_encoder_whose_weights_are_of_fewer_seeds_names_the_command(encoders):
    own = cell(Classification, pool="sum", start="frozen", source="sum-mlp-s0.05")
    path = encoders / "sum-mlp-s0.05" / "seeds-0-1" / "model.safetensors"
    tensors, _ = storage.read_tensors(path)
    storage.write_tensors(path, {name: tensor[:1] for name, tensor in tensors.items()})
    own.at(encoders=encoders).check([0])
    with pytest.raises(UserError, match="has no weights of seed 1; make it by fspool run mnist"):
        own.at(encoders=encoders).check([1])


@pytest.mark.parametrize("content", [b"{", b"", None])
def test_a_lost_record_of_an_encoder_does_not_end_a_run(encoders, content):
    path = encoders / "sum-mlp-s0.05" / "seeds-2-2" / "provenance.json"
    path.unlink() if content is None else path.write_bytes(content)
    own = cell(Classification, pool="sum", start="frozen", source="sum-mlp-s0.05")
    (found,) = own.at(encoders=encoders).origins([2])["encoders"]
    assert found["steps"] is None and len(found["sha256"]) == 64


def test_epochs_need_not_be_whole():
    """60,000 images are no whole number of batches of 64."""
    own = replace(cell(Classification, pool="sum"), batch=7)
    model = trainer.build(own, [0], CPU).eval()
    for step, epochs in zip(own.milestones, mnist_classification.EPOCHS, strict=True):
        assert list(own.probe(model, [0], CPU, step)) == [f"accuracy after {epochs}"]


def test_an_encoder_that_is_not_there_names_the_command(encoders, tmp_path):
    own = cell(Classification, pool="max", start="frozen", source="max-mlp-s0.05")
    with pytest.raises(UserError, match="fspool run mnist-reconstruction .* --only max-mlp-s0.05"):
        trainer.build(own.at(encoders=encoders), [0], CPU)
    released = tmp_path / "mnist-reconstruction-released"
    with pytest.raises(UserError, match=f"--preset released .* --seeds 4 --out {released}, or"):
        own.at(encoders=released).check([3])
    other = cell(Classification, pool="sum", start="frozen", source="sum-mlp-s0.05", hidden=9)
    with pytest.raises(UserError, match="does not fit"):
        trainer.build(other.at(encoders=encoders), [0], CPU)


def test_places_are_no_settings():
    own = cell(Classification)
    there = own.at(data="somewhere", encoders=None)
    assert there.settings() == own.settings() and there == own
    assert there.places() == {"data": "somewhere"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["sum", "mean", "max", "hard", *mnist_reconstruction.MODELS])
def test_training_on_cuda(name, small, monkeypatch):
    """Recorded as graphs, on sets padded to one length: the same losses as on the CPU."""
    kind = Reconstruction if name in mnist_reconstruction.MODELS else Classification
    pools = {"hard": "fspool"}
    changes = mnist_reconstruction.MODELS.get(name, {"pool": pools.get(name, name)})
    moved = {split: sets.to("cuda") for split, sets in small.items()}
    own = cell(kind, steps=6, **changes)
    curves = {}
    for name in ("cpu", "cuda"):
        device = torch.device(name)
        found = small if name == "cpu" else moved
        monkeypatch.setattr(mnist, "_on_device", lambda root, split, at, f=found: f[split])
        model = trainer.build(own, [0, 1], device)
        for state in trainer.train(model, own, [0, 1], device):
            curves[name] = torch.tensor(state.curve[-1]["loss"])
        with torch.no_grad():
            metrics = own.evaluate(model.eval(), [0, 1], device).metrics
        curves[name] = torch.cat((curves[name], *map(torch.tensor, metrics.values())))
    torch.testing.assert_close(curves["cuda"], curves["cpu"], rtol=0.02, atol=0.02)


# --------------------------------------------------------------------------------------------------
# Reports


def perform(experiment, name, own, out):
    for job in jobs_of(experiment, name, own, 2, out, CPU):
        assert not perform_job([job], Options(), lambda event: None)


def test_the_page_of_reconstructions(tmp_path):
    for model in ("fspool", "sum-mlp"):
        changes = mnist_reconstruction.MODELS[model]
        perform("mnist-reconstruction", f"{model}-s0.05", cell(steps=2, **changes), tmp_path)
    found = report.collect(tmp_path)
    text = page(found)
    assert "digits-input-fspool-s0_05" in text and "digits-sum-mlp-s0_05" in text
    assert text.count("loss-s0_05") and "Sum + RNN</li>" not in text
    assert "Test Chamfer loss as published" in markdown(found)
    assert "Welch test" in markdown(found)
    report.compact(found, tmp_path / "all.json")  # its arrays have lost their dtypes
    assert page(report.collect(tmp_path / "all.json")).count("digits-") == text.count("digits-")


def test_the_page_of_classifiers(tmp_path):
    for pool in ("fspool", "max"):
        own = cell(Classification, pool=pool, steps=16)
        perform("mnist-classification", f"{pool}-random-s0.05", own, tmp_path)
    found = report.collect(tmp_path)
    assert "Cross-entropy" in page(found)
    text = markdown(found)
    assert (
        "Accuracy after 1 and 10 epochs, noise 0.05, batches of 8" in text and "84.7 ± 1.9" in text
    )
    assert "Accuracy at the end of a short run" in text


def test_only_short_runs_are_shown_as_such():
    def record(name, **metrics):
        return SimpleNamespace(name=name, metrics=metrics)

    tenth = {"accuracy": [0.9], "accuracy after 10": [0.9]}
    records = [record("a", accuracy=[0.5]), record("b", **tenth), record("c")]
    assert mnist_classification.in_short(records) == {"a in short": ({"accuracy": [0.5]}, ["a"])}


def test_what_an_epoch_takes_is_that_of_timed_runs():
    def record(name, *origins):
        return SimpleNamespace(name=name, settings={"batch": 8}, origins=origins)

    timed = record("sum-timed-s0.05", {"step_seconds": 0.002}, {"runs": 1})
    records = [timed, record("old-timed-s0.05", {}), record("sum-s0.05", {"step_seconds": 1.0})]
    seconds = [0.002 * mnist_classification.steps_of(1, 8)]
    expected = {"sum-timed-s0.05 an epoch": ({"seconds": seconds}, ["sum-timed-s0.05"])}
    assert mnist_classification.of_an_epoch(records) == expected
    cells = mnist_classification.cells("paper")
    assert [cells[f"{pool}-timed-s0.05"].most_runs for pool in ("fspool", "sum")] == [1, 1]


# --------------------------------------------------------------------------------------------------
# Presets


@pytest.mark.parametrize("module", [mnist_reconstruction, mnist_classification])
def test_every_table_is_filled_by_cells(module):
    experiment = module.EXPERIMENT
    names = experiment.preset("paper").keys() | experiment.preset("quick").keys()
    for table in experiment.tables:
        for entries in table.rows.values():
            assert len(entries) == len(table.columns)
            made = (" in short", " an epoch")
            cells = {entry.cell.removesuffix(made[0]).removesuffix(made[1]) for entry in entries}
            assert cells <= names, table.title


def test_released_settings():
    cells = mnist_reconstruction.cells("released")
    assert cells["mean-mlp-s0.01"].pool == "max"
    assert all(c.batch == 8 and c.noise_padding and c.knots == 21 for c in cells.values())
    heads = mnist_classification.cells("released")
    assert heads["fspool-frozen-s0.00"].source == "fspool-s0.05"
    assert heads["sum-frozen-s0.00"].source == "sum-mlp-s0.00"


def test_bad_settings():
    for settings in ({"sigma": -1.0}, {"batch": 0}, {"test_sets": 10_001}, {"learning_rate": 0.0}):
        with pytest.raises(ValueError):
            Reconstruction(**settings)
    with pytest.raises(UserError, match="perhaps 'fspool'"):
        Reconstruction(pool="fspol")
    with pytest.raises(UserError):
        Classification(start="warm")
