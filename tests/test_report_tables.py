"""The tables of a report: the rule of its verdicts, and what stands in each place."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from fspool import report
from fspool.experiments import find
from fspool.experiments.experiment import Published, published
from fspool.report.grids import NONE, Grid, digits_for, show
from fspool.report.markdown import markdown
from fspool.report.page import page
from fspool.report.verdicts import Sample, against_closed_form, against_published

from .folders import flat, write_all, write_run
from .grids import grids_of, row_of, terminal

POLYGONS = find("polygons")
RESULTS = Path(__file__).parent.parent / "results"


def grid_of(collection, title: str) -> Grid:
    return grids_of(POLYGONS, collection)[title]


# --------------------------------------------------------------------------------------------------
# Verdicts


@pytest.mark.parametrize(
    ("values", "printed", "verdict"),
    [
        ((0.002, 0.002), "0.001", "level"),  # exactly one unit
        ((0.0020001, 0.0020001), "0.001", "behind"),
        ((0.0, 0.0), "0.001", "level"),
        ((0.0, 0.0), "0.0011", "ahead"),  # eleven units
        ((1.0, 3.0), "4.9", "level"),  # mean 2, standard deviation sqrt(2): 2.83 + 0.1 allowed
        ((1.0, 3.0), "5.0", "ahead"),
        ((1.0, 3.0), "-0.9", "level"),
        ((1.0, 3.0), "-1.0", "behind"),
        ((2.0,), "2.1", "level"),  # one run: nothing is known of its spread
        ((2.0,), "2.2", "ahead"),
        ((0.0, None), "5.0", "behind"),  # a run that diverged
    ],
)
def test_verdict(values, printed, verdict):
    assert against_published(Sample(values), Published.read(printed), trained=True) == verdict


def test_what_is_not_trained_shares_its_error_with_the_published_evaluation():
    sample = Sample((1.0, 3.0))  # 2 sqrt(2 + 2) + 0.1 = 4.1 allowed
    near, far = Published.read("6.1"), Published.read("6.2")
    assert against_published(sample, near, trained=False) == "level"
    assert against_published(sample, far, trained=False) == "ahead"
    assert against_published(sample, near, trained=True) == "ahead"


def test_a_closed_form_is_compared_by_the_standard_error():
    sample = Sample((1.0, 3.0))  # 2 sqrt(2) / sqrt(2) + 0.1 = 2.1 allowed
    assert against_closed_form(sample, 4.1, digits=1) == "level"
    assert against_closed_form(sample, 4.11, digits=1) == "below"
    assert against_closed_form(sample, -0.11, digits=1) == "above"


def test_every_published_number_has_a_place():
    for table in POLYGONS.tables:
        if table.published:
            assert published(table.published).keys() == table.rows.keys()
            for row in published(table.published).values():
                assert row.keys() <= set(table.columns)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100.3234, "100.323"),
        (0.0104, "0.010"),
        (0.00456, "0.0046"),
        (0.000456, "0.00046"),
        (0.0000456, "0.00005"),
        (1e-9, "<0.00001"),
        (0.0, "0.000"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_numbers_keep_two_digits(value, text):
    assert show(value, digits_for(value, 3)) == text


# --------------------------------------------------------------------------------------------------
# Tables


def test_values_of_a_table(tmp_path):
    values = [0.0100, 0.0115, 0.0136]
    write_run(tmp_path, "fspool-n4", [0, 1, 2], {"chamfer": values})
    write_run(tmp_path, "random-n4", [0, 1, 2], {"chamfer": [0.195, 0.199, 0.203]})
    grid = grid_of(report.collect(tmp_path), "Chamfer loss")
    assert grid.columns == ["4"]
    labels = [row.label for row in grid.rows]
    assert labels == ["FSPool & FSUnpool", "Random", "Random, closed form"]
    (place,) = grid.rows[0].places
    assert place.value == f"{100 * statistics.mean(values):.3f}" == "1.170"
    assert place.spread == f"{100 * statistics.stdev(values):.3f}" == "0.181"
    assert (place.worst, place.runs, place.reached) == ("1.360", 3, "")
    assert (place.published, place.verdict) == ("0.001", "behind")
    assert (grid.rows[1].places[0].published, grid.rows[1].places[0].verdict) == ("19.866", "level")
    assert (grid.rows[2].places[0].value, grid.rows[2].places[0].verdict) == ("19.937", "level")


def test_only_tables_with_something_new(tmp_path):
    write_all(tmp_path, (4, 16))
    titles = list(grids_of(POLYGONS, report.collect(tmp_path)))
    assert titles[:4] == [
        "Direct mean squared error",
        "Chamfer loss",
        "Linear assignment loss",
        "The worst run of FSPool & FSUnpool",
    ]
    assert not any("hard sort" in title or "bypass" in title for title in titles)
    write_run(tmp_path, "fspool-hard-n16", [0, 1, 2], flat(0.1))
    title, grid = grids_of(POLYGONS, report.collect(tmp_path)).popitem()
    assert "hard sort" in title
    assert grid.columns == ["4", "16"]
    row = row_of(grid, "hard")
    assert [place.value for place in row.places] == [NONE, "10.000"]


def test_runs_that_never_arrive(tmp_path):
    curve = [{"step": 64, "loss": [1e-9] * 7 + [1.0] * 3}]
    write_run(tmp_path, "fspool-n4", list(range(10)), {"mse": [0.0] * 10}, curve=curve)
    never = [{"step": 64, "loss": [1.0] * 10}]
    write_run(tmp_path, "mlp-chamfer-n4", list(range(10)), {"chamfer": [0.0] * 10}, curve=never)
    found = report.collect(tmp_path)
    grid = next(g for t, g in grids_of(POLYGONS, found).items() if t.startswith("Steps until"))
    (place,) = row_of(grid, "FSPool & FSUnpool").places
    assert (place.value, place.spread, place.reached) == ("64", "0", "7/10")
    (place,) = row_of(grid, "MLP + Chamfer").places
    assert (place.value, place.reached) == (NONE, "0/10")
    assert "7/10 reached" in page(found)
    assert "| reached | 7/10 |" in markdown(found)


def test_a_diverged_run_shows(tmp_path):
    write_run(tmp_path, "fspool-n4", [0, 1], {"mse": [0.0, None]})
    grid = grid_of(report.collect(tmp_path), "Direct mean squared error")
    (place,) = grid.rows[0].places
    assert (place.value, place.reached, place.worst) == ("0.000", "1/2", "∞")
    assert place.verdict == "behind"


def test_the_worst_seed_is_reported(tmp_path):
    write_run(tmp_path, "fspool-n4", [0, 1], {"mse": [1e-5, 9e-5]})
    write_run(tmp_path, "fspool-n64", [0, 1], {"mse": [2e-5, 3e-5]})
    grid = grid_of(report.collect(tmp_path), "The worst run of FSPool & FSUnpool")
    assert grid.columns == ["4", "64"]
    assert [place.value for place in grid.rows[0].places] == ["0.0090", "0.0030"]
    assert "among 2 runs" in grid.note


def test_one_run_has_no_worst_and_columns_may_have_different_numbers_of_runs(tmp_path):
    write_run(tmp_path, "fspool-n4", [0, 1], {"mse": [1e-5, 9e-5]})
    write_run(tmp_path, "fspool-n16", [0], {"mse": [2e-5]})
    write_run(tmp_path, "fspool-n64", [0, 1, 2], {"mse": [2e-5, 3e-5, 2e-5]})
    grid = grid_of(report.collect(tmp_path), "The worst run of FSPool & FSUnpool")
    assert [place.value for place in grid.rows[0].places] == ["0.0090", NONE, "0.0030"]
    assert "among 2 to 3 runs" in grid.note


def test_verdicts_are_counted(tmp_path):
    write_run(tmp_path, "fspool-n4", [0, 1], {"mse": [1e-5, 1e-5], "chamfer": [1.0, 1.0]})
    write_run(tmp_path, "mlp-chamfer-n4", [0, 1], {"chamfer": [0.0, 0.0]})
    sentence = (
        "Beside the paper's 3 numbers for these cells: 1 level, 1 ahead, 1 behind. "
        "FSPool & FSUnpool alone: 1 level, 1 behind."
    )
    found = report.collect(tmp_path)
    assert sentence in terminal(found)
    assert sentence in markdown(found)
    assert sentence in unescape(page(found))


def test_a_narrow_terminal_cuts_no_number(tmp_path):
    write_all(tmp_path, (2, 4, 8, 16, 32, 64))
    found = report.collect(tmp_path)
    text = terminal(found, width=80)
    assert "…" not in text
    for row in grid_of(found, "Direct mean squared error").rows:
        assert all(place.value in text for place in row.places)


def test_a_choice_from_a_part_of_a_grid_takes_no_verdict_from_other_choices():
    found = report.collect(RESULTS / "graphs" / "paper.json")
    records = [record for record in found if record.name != "sum-PTC-d32-b128-p0.5"]
    grids = grids_of(find("graphs"), replace(found, records=records))
    grid = grids["Accuracy, molecules and proteins"]
    places = [grid.columns.index(name) for name in ("MUTAG", "PTC")]
    verdicts = {r.label: [bool(r.places[i].verdict) for i in places] for r in grid.rows[:2]}
    assert verdicts == {"GIN-FSPool": [True, True], "GIN-Base": [True, False]}
