"""What a shell offers for a word that is not finished; nothing where it cannot know."""

from __future__ import annotations

import typer

from ..checks import UserError
from ..data import tu
from ..experiments import EXPERIMENTS, Experiment
from ..experiments.experiment import PRESETS


def experiments() -> list[str]:
    """A function, so that the list is complete."""
    return list(EXPERIMENTS)


def presets(context: typer.Context) -> list[tuple[str, str]]:
    """With what they are, which some shells show."""
    experiment = _experiment(context)
    if experiment is None:
        return list(PRESETS.items())
    return [(name, experiment.what(name)) for name in experiment.seeds]


def datasets(context: typer.Context) -> list[str]:
    return _values(context, "dataset")


def readouts(context: typer.Context) -> list[str]:
    experiment = _experiment(context)
    if experiment is None or experiment.others is None:
        return []
    return [*_values(context, "readout"), *experiment.others[0]]


def tasks(context: typer.Context) -> list[str]:
    return _values(context, "task")


def cells(context: typer.Context) -> list[str]:
    """Of what was chosen in the words before."""
    experiment, given = _experiment(context), context.params
    if experiment is None:
        return []
    try:
        found = experiment.preset(
            given.get("preset") or "quick", given.get("dataset") or [], given.get("readout") or []
        )
    except UserError:  # the command says so, once it is given
        return []
    wanted = given.get("task")
    return [n for n, cell in found.items() if not wanted or getattr(cell, "task", None) in wanted]


def graph_sets(context: typer.Context) -> list[str]:
    """The parts of a data set: only tu has any."""
    return list(tu.SOURCES) if context.params.get("name") == "tu" else []


def _experiment(context: typer.Context) -> Experiment | None:
    """Behind an option that has no value yet, arguments have not been given their names."""
    name = context.params.get("name") or next(iter(context.args), "")
    return EXPERIMENTS.get(name)


def _values(context: typer.Context, setting: str) -> list[str]:
    """What a setting is in the cells of the preset, each once."""
    experiment, preset = _experiment(context), context.params.get("preset") or "quick"
    if experiment is None or preset not in experiment.seeds:
        return []
    found = experiment.cells(preset).values()
    return list(dict.fromkeys(getattr(c, setting) for c in found if hasattr(c, setting)))
