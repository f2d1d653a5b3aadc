"""The experiments of the paper, one file each: settings, presets, which tables they fill."""

from pathlib import Path

from torch import nn

from ..checks import UserError, nearest
from . import clevr, dspn, graphs, mnist_classification, mnist_reconstruction, polygons
from .experiment import Experiment
from .trained import model_of, read_trained

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (polygons, mnist_reconstruction, mnist_classification, clevr, graphs, dspn)
}


def find(name: str) -> Experiment:
    return EXPERIMENTS[nearest("experiment", name, EXPERIMENTS)]


def load(folder: Path | str, seed: int | None = None) -> nn.Module:
    """The trained model of a run folder, such as ``runs/polygons-quick/fspool-n4/seeds-0-2``, in
    ``eval()`` mode: that of one of its seeds, or of the first."""
    found = read_trained(folder)
    if found.experiment not in EXPERIMENTS or found.settings is None:
        raise UserError(f"{found.folder / 'config.json'} names no experiment that is known here.")
    return model_of(found, EXPERIMENTS[found.experiment].cell, seed)
