"""Where paper and released code differ: every switch is there, and does what the list says."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from fspool import report
from fspool.experiments import EXPERIMENTS, find
from fspool.report.deviations import deviations
from fspool.report.markdown import markdown

RESULTS = Path(__file__).parent.parent / "results"
LISTED = [name for name, experiment in EXPERIMENTS.items() if experiment.deviations]
# An epoch of other batches has other steps; what a cell also measures, and a digest, are no choice.
FOLLOWING = {"steps", "assigned_sets", "auto_encoder"}

listed = pytest.mark.parametrize("name", LISTED)


@cache
def settings(name: str, preset: str) -> dict[str, dict]:
    return {key: cell.settings() for key, cell in find(name).preset(preset).items()}


def changed(own: dict, other: dict) -> set[str]:
    return {key for key in own if own[key] != other[key]}


def of_presets(name: str) -> set[str]:
    """Settings that differ between the presets, in cells of the same name."""
    ours, theirs = settings(name, "paper"), settings(name, "released")
    return set().union(*(changed(ours[key], theirs[key]) for key in ours.keys() & theirs.keys()))


@cache
def results(name: str):
    return report.collect(RESULTS / name / "paper.json")


def test_digits_and_graphs_have_lists():
    assert LISTED == ["mnist-reconstruction", "mnist-classification", "graphs"]


@listed
def test_a_switch_is_a_setting_or_a_metric(name):
    experiment = find(name)
    known = {field.name for field in fields(experiment.cell)}
    known |= {e.metric for table in experiment.tables for row in table.rows.values() for e in row}
    for own in experiment.deviations:
        assert not own.switch or own.switch in known, own.what


@listed
def test_what_sets_a_switch_sets_it(name):
    experiment = find(name)
    usual, cells = experiment.cell().settings(), settings(name, "paper")
    for own in experiment.deviations:
        for way in own.by:
            if way == "released":
                assert own.switch in of_presets(name), own.what
            elif way == "--set":
                assert own.switch in experiment.settable, own.what
            else:
                found = [cell for key, cell in cells.items() if fnmatchcase(key, way)]
                assert found, way
                assert all(cell[own.switch] != usual[own.switch] for cell in found), way


@listed
def test_whatever_differs_between_the_presets_is_listed(name):
    switches = {own.switch for own in find(name).deviations if "released" in own.by}
    assert switches <= of_presets(name) <= switches | FOLLOWING


@listed
def test_an_effect_is_that_of_the_switch_alone(name):
    cells = settings(name, "paper")
    for own in find(name).deviations:
        for first, second in (pair for entries in own.seen.values() for pair in pairwise(entries)):
            if first.cell == second.cell:
                assert own.switch == second.metric != first.metric
            else:
                found = changed(cells[first.cell], cells[second.cell])
                assert own.switch in found and found - FOLLOWING <= {own.switch}, own.what
                assert first.metric == second.metric


@listed
def test_every_effect_is_in_the_results(name):
    experiment, collection = find(name), results(name)
    text = deviations(experiment, collection)
    for own in experiment.deviations:
        assert text.count(f"\n| {own.what} |") == 1
        assert text.count(f"\n- **{own.what}**") == bool(own.seen)
        assert all(text.count(f" {label}: ") for label in own.seen)
    assert text in (RESULTS.parent / "RESULTS.md").read_text()
    assert text in markdown(collection)


def test_numbers_are_those_of_the_tables():
    text = deviations(find("mnist-reconstruction"), results("mnist-reconstruction"))
    cells = results("mnist-reconstruction").of("mnist-reconstruction")
    names = ("sum-mlp-s0.05", "sum-mlp-fair-s0.05")
    ours, other = (1000 * fmean(cells[name].metrics["chamfer"]) for name in names)
    assert re.search(rf"Sum \+ MLP, noise 0.05: {ours:.3f} ± [\d.]+ → {other:.3f} ± ", text)
    text = deviations(find("mnist-classification"), results("mnist-classification"))
    assert ", in the paper 25.7 ± 3.6 (*Accuracy after 1 and 10 epochs, noise 0.05" in text


def test_what_is_not_there_is_not_listed():
    collection = results("mnist-reconstruction")
    few = [record for record in collection if record.name == "fspool-s0.05"]
    text = deviations(find("mnist-reconstruction"), replace(collection, records=few))
    assert text.count("\n- **") == text.count("\n- **What a Chamfer loss is divided by**") == 1
    text = deviations(find("mnist-reconstruction"), replace(collection, records=[]))
    assert "\n- " not in text and "Measured" not in text


@pytest.mark.parametrize("preset", ["released", "quick"])
def test_other_presets_have_no_list(preset):
    collection = results("mnist-classification")
    plans = [replace(plan, preset=preset) for plan in collection.plans]
    assert not deviations(find("mnist-classification"), replace(collection, plans=plans))
    assert not deviations(find("polygons"), report.collect(RESULTS / "polygons" / "paper.json"))
