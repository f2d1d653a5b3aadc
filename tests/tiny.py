"""A run of polygons that takes a moment."""

import pytest
import torch

from fspool.experiments import polygons as experiment
from fspool.experiments.polygons import Polygons
from fspool.lab import trainer
from fspool.lab.launch import Job

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
