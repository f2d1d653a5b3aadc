"""The experiments of the paper, one file each: settings, presets, which tables they fill."""

from ..checks import nearest
from . import clevr, dspn, graphs, mnist_classification, mnist_reconstruction, polygons
from .experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (polygons, mnist_reconstruction, mnist_classification, clevr, graphs, dspn)
}


def find(name: str) -> Experiment:
    return EXPERIMENTS[nearest("experiment", name, EXPERIMENTS)]
