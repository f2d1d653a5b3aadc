"""Several experiments in one report, what each adds to the page, and what it all cost."""

from __future__ import annotations

import re
from html import unescape

import pytest

from fspool import report, storage
from fspool.experiments import EXPERIMENTS
from fspool.report.cost import cost, families_of
from fspool.report.markdown import markdown
from fspool.report.page import page
from fspool.report.pages import PAGES
from fspool.report.parts import Parts

from . import digits as fake
from .folders import PROVENANCE, flat, write_all, write_plan, write_run
from .grids import terminal

TITLES = ["Rotating polygons: reconstruct the corners of a regular polygon", "Digits as sets"]


@pytest.fixture
def both(tmp_path, monkeypatch):
    """Compact results of two experiments; the first by name is the second in the paper."""
    monkeypatch.setitem(EXPERIMENTS, "digits", fake.experiment())
    write_all(tmp_path / "polygons", (4,))
    write_plan(tmp_path / "polygons", ["fspool-n4", "fspool-n8"], seeds=3)
    for pool in fake.POOLS.values():
        fake.write(tmp_path / "digits", f"{pool}-frozen", [80.0, 81.0])
    plan = {"experiment": "digits", "preset": "paper", "seeds": 2, "cells": ["fspool-late"]}
    storage.write_json(tmp_path / "digits" / "plan.json", plan)
    for name in ("polygons", "digits"):
        found = report.collect(tmp_path / name)
        report.compact(found, tmp_path / "results" / name / "paper.json")
    return report.collect(tmp_path / "results")


def test_results_of_two_experiments_are_read_together(both):
    assert [experiment.title for experiment in both.experiments] == TITLES
    assert (len(both.of("polygons")), len(both.of("digits"))) == (4, 4)
    assert both.damaged == []
    assert sorted(both.missing) == [
        "digits, fspool-late: 0 of 2 runs are finished.",
        "polygons, fspool-n8: 0 of 3 runs are finished.",
    ]


def test_what_is_unfinished_in_one_place_may_be_finished_in_another(tmp_path):
    one, other, small = tmp_path / "one", tmp_path / "other", tmp_path / "one.json"
    write_run(one, "fspool-n4", [0, 1], flat(1.0, 2))
    write_run(one, "random-n4", [0, 1], {}, finished=False)
    write_plan(one, ["fspool-n4", "random-n4", "random-n8"], seeds=2)
    report.compact(report.collect(one), small)
    write_run(other, "random-n4", [0, 1], flat(1.0, 2))
    for first in (one, small):
        assert len(report.collect(first).unfinished) == 1
        found = report.collect(first, other)
        assert [record.name for record in found] == ["fspool-n4", "random-n4"]
        assert found.unfinished == found.damaged == []
        assert found.missing == ["random-n8: 0 of 2 runs are finished."]
    twice = report.collect(one, small)
    assert twice.problems == ["fspool-n4 is there twice; the second one is left out."]
    assert len(twice.unfinished) == 2
    report.compact(twice, small)  # keeps one, and nobody asks later whether there was another
    assert report.collect(small).problems == []


def test_markdown_has_a_section_for_each(both):
    text = markdown(both)
    assert re.findall("^## (.*)", text, re.MULTILINE) == [*TITLES, "What is missing"]
    polygons, accuracies = text.split("## Digits as sets")
    assert "Made by `fspool run polygons --preset quick --seeds 3`." in polygons
    assert "Made by `fspool run digits --preset paper --seeds 2`." in accuracies
    assert "### Chamfer loss" in polygons and "### Chamfer loss" not in accuracies
    assert "### Accuracy" in accuracies and "### Accuracy" not in polygons
    assert all(part.count("### What it cost") == 1 for part in (polygons, accuracies))


def test_the_terminal_has_both(both):
    text = terminal(both)
    places = [text.index(title) for title in (*TITLES, "In %; more is better.")]
    assert places == sorted(places)


def test_the_page_has_an_article_for_each(both):
    text = page(both)
    assert re.findall(r'<article id="(\w+)">', text) == ["polygons", "digits"]
    assert [unescape(title) for title in re.findall("<h1>(.*?)</h1>", text)] == TITLES
    identities = re.findall(r'\bid="([^"]+)"', text)
    assert len(identities) == len(set(identities))
    assert text.count("<h2>What it cost</h2>") == 2
    second = text.split('<article id="digits">')[1]
    assert 'class="data">{}</script>' in second  # no figures of its own
    assert "Turn a square" not in second


def test_an_experiment_can_add_to_its_page(both, monkeypatch):
    def parts(records):
        return Parts("<p>First</p>", f"<p>{len(records)} figures</p>", {"some": "data"})

    monkeypatch.setitem(PAGES, "digits", parts)
    text = page(both).split('<article id="digits">')[1]
    assert text.index("<p>First</p>") < text.index("<table>") < text.index("<p>4 figures</p>")
    assert 'class="data">{"some":"data"}</script>' in text


# --------------------------------------------------------------------------------------------------
# What it cost


def test_families_are_the_shortest_names_before_a_number():
    names = {
        "fspool-n2": "fspool",
        "fspool-zero-latent-n16": "fspool",
        "mlp-chamfer-n2": "mlp-chamfer",
        "mlp-chamfer-sum-h16-n16": "mlp-chamfer",
        "mlp-assignment-lr0.01-n16": "mlp-assignment",
        "fspoolish": "fspoolish",
        "4-points": "4-points",
        "": "",
    }
    assert families_of(list(names)) == names


def test_many_families_are_told_apart_by_their_first_word():
    names = [f"{pool}-{start}-n4" for pool in ("fspool", "sum", "max") for start in "abc"]
    assert families_of(names[:8])["fspool-a-n4"] == "fspool-a"
    assert families_of(names) == {name: name.partition("-")[0] for name in names}


def write_costs(out, name, seconds, **origin):
    provenance = PROVENANCE | {"seconds": seconds} | origin
    write_run(out, name, [0, 1], flat(0.1, 2), provenance=provenance)


def texts(grid) -> dict[str, list[str]]:
    return {row.label: [place.value for place in row.places] for row in grid.rows}


def test_costs_are_added_up(tmp_path):
    write_costs(tmp_path, "fspool-n4", {"training": 10.4, "evaluation": 1.0})
    write_costs(tmp_path, "fspool-n8", {"training": 20.2, "evaluation": 2.0})
    write_costs(tmp_path, "random-n4", {"training": 0.001, "evaluation": 5.0})
    grid = cost(list(report.collect(tmp_path)))
    assert grid.columns == ["cells", "runs", "seconds", "seconds a run", "device"]
    assert texts(grid) == {
        "fspool": ["2", "4", "34", "8.40", "A machine"],
        "random": ["1", "2", "5", "2.50", "A machine"],
        "all": ["3", "6", "39", "6.43", "A machine"],
    }


def test_devices_are_kept_apart(tmp_path):
    write_costs(tmp_path, "fspool-n4", {"training": 10.0}, device="A GPU")
    write_costs(tmp_path, "fspool-n8", {"training": 20.0})
    grid = cost(list(report.collect(tmp_path)))
    assert [(row.label, *(place.value for place in row.places)) for row in grid.rows] == [
        ("fspool", "1", "2", "10", "5.00", "A GPU"),
        ("fspool", "1", "2", "20", "10.00", "A machine"),
        ("all", "2", "4", "30", "7.50", "A GPU, A machine"),
    ]


def test_what_ran_at_once_shares_the_time(tmp_path):
    """By the clock: from 0 to 10 alone, from 10 to 30 two at once, a stop, and from 50 to 60."""
    long = {"clock": [[0.0, 30.0], [50.0, 60.0]]}
    write_costs(tmp_path, "fspool-n4", {"training": 999.0}, **long)
    write_costs(tmp_path, "random-n4", {"training": 999.0}, clock=[[10.0, 30.0]])
    write_costs(tmp_path, "mlp-n4", {"training": 999.0}, clock=[[0.0, 8.0]], device="A GPU")
    found = report.collect(tmp_path)
    report.compact(found, tmp_path / "all.json")
    for results in (found, report.collect(tmp_path / "all.json")):
        seconds = {row.label: row.places[2].value for row in cost(list(results)).rows}
        assert seconds == {"fspool": "30", "random": "10", "mlp": "8", "all": "48"}
        assert "6 runs; they took 48 seconds" in markdown(results)


def test_devices_of_one_name_do_not_share_the_time(tmp_path):
    """As of a machine with many GPUs, or of many such machines."""
    for unit, name in enumerate(("fspool-n4", "random-n4", "mlp-n4")):
        own = {"unit": f"number {min(unit, 1)}", "clock": [[0.0, 10.0]]}
        write_costs(tmp_path, name, {"training": 999.0}, **own)
    found = report.collect(tmp_path)
    report.compact(found, tmp_path / "all.json")
    for results in (found, report.collect(tmp_path / "all.json")):
        seconds = {row.label: row.places[2].value for row in cost(list(results)).rows}
        assert seconds == {"fspool": "10", "random": "5", "mlp": "5", "all": "20"}


def test_what_may_have_moved_to_another_device_costs_at_most_so_much(tmp_path):
    """Which device the first part was on is not written down."""
    write_costs(tmp_path, "fspool-n4", {}, unit="second", clock=[[0.0, 10.0], [50.0, 60.0]])
    write_costs(tmp_path, "random-n4", {}, unit="second", clock=[[50.0, 60.0]])
    found = report.collect(tmp_path)
    assert "that the sum is the time that passed" in cost(list(found)).note
    assert "4 runs; they took 20 seconds" in markdown(found)
    write_costs(tmp_path, "mlp-n4", {}, unit="first", clock=[[0.0, 10.0]])
    found = report.collect(tmp_path)
    assert "that the sum is at least the time that passed" in cost(list(found)).note
    assert "6 runs; they took at most 30 seconds" in markdown(found)


def test_costs_that_are_not_known_are_not_invented(tmp_path):
    folder = write_run(tmp_path, "fspool-n4", [0], {"mse": [0.1]})
    (folder / "provenance.json").unlink()
    found = report.collect(tmp_path)
    assert cost(list(found)) is None
    assert "What it cost" not in markdown(found) + page(found)
