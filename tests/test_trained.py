"""Trained models, taken from run folders."""

from dataclasses import replace

import pytest
import torch

from fspool import experiments, storage
from fspool.checks import UserError
from fspool.lab.launch import Options, perform

from . import tiny
from .tiny import CPU, TINY, job

pytestmark = pytest.mark.usefixtures("one_thread")
quick = tiny.quick
SEEDS = (3, 4)


@pytest.fixture
def folder(quick, tmp_path):
    path = tmp_path / "fspool-n3" / "seeds-3-4"
    perform([job(path, seeds=SEEDS)], Options(), lambda event: None)
    return path


def test_each_seed_has_the_model_that_it_was_judged_by(folder):
    metrics = storage.read_json(folder / "result.json")["metrics"]
    for place, seed in enumerate(SEEDS):
        model = experiments.load(folder, seed)
        assert not model.training
        for parameter in model.parameters():  # evaluated as a group of one run
            parameter.data = parameter.data.unsqueeze(0)
        found = TINY.evaluate(model, [seed], CPU).metrics
        assert found["chamfer"] == pytest.approx([metrics["chamfer"][place]], rel=1e-5)
    assert metrics["chamfer"][0] != metrics["chamfer"][1]


def test_without_a_seed_it_is_the_first(folder):
    first, same = experiments.load(folder).state_dict(), experiments.load(str(folder), 3)
    for name, tensor in same.state_dict().items():
        torch.testing.assert_close(tensor, first[name], rtol=0, atol=0)


def test_what_is_no_trained_model_is_a_sentence(folder, tmp_path):
    with pytest.raises(UserError, match=r"seeds-3-4 has no seed 0; expected one of 3, 4\.$"):
        experiments.load(folder, 0)
    for empty in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="has no trained model .*; expected the folder of fin"):
            experiments.load(empty)
    wider = {"experiment": "polygons", "cell": replace(TINY, hidden=64).settings()}
    for config, sentence in (
        (wider, r"is of another version \(.*\); run polygons again\.$"),
        ({"experiment": "chess", "cell": {}}, "names no experiment that is known here"),
        ({"experiment": "polygons", "cell": 3}, "names no experiment that is known here"),
    ):
        storage.write_json(folder / "config.json", config)
        with pytest.raises(UserError, match=sentence):
            experiments.load(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UserError, match="has no trained model"):
        experiments.load(folder)
