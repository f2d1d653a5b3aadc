"""The report: what it reads, the rule of its verdicts, and that all its forms say the same."""

from __future__ import annotations

import io
import json
import math
import re
import statistics
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console

from fspool import report, storage
from fspool.checks import UserError
from fspool.experiments import find
from fspool.experiments.experiment import Published, published
from fspool.report import figures
from fspool.report.grids import NONE, Grid, digits_for, show
from fspool.report.markdown import markdown
from fspool.report.page import embed, page
from fspool.report.tables import fill_all
from fspool.report.verdicts import Sample, against_closed_form, against_published

from .folders import PROVENANCE, flat, write_all, write_plan, write_run

POLYGONS = find("polygons")


def terminal(collection) -> str:
    console = Console(file=io.StringIO(), width=200)
    report.render_terminal(collection, console)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All models at three sizes."""
    return report.collect(write_all(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def whole_page(whole):
    return page(whole)


def grid_of(collection, title: str) -> Grid:
    return next(grid for grid in fill_all(POLYGONS, collection) if grid.title == title)


def row_of(grid: Grid, label: str):
    return next(row for row in grid.rows if row.label == label)


# --------------------------------------------------------------------------------------------------
# Reading


def test_groups_of_seeds_become_one_record_in_order(tmp_path):
    write_run(tmp_path, "fspool-n4", [3, 4], {"mse": [0.3, 0.4]})
    write_run(tmp_path, "fspool-n4", [0, 1, 2], {"mse": [0.0, 0.1, 0.2]})
    (record,) = report.collect(tmp_path)
    assert record.seeds == [0, 1, 2, 3, 4]
    assert record.metrics["mse"] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert [origin["runs"] for origin in record.origins] == [3, 2]
    assert record.folder.name == "seeds-0-2"
    assert record.weights["encoder.pool.weight"].shape == (3, 16, 20)
    assert record.arrays["sweep"].shape == (720, 4, 2)


def test_a_seed_counts_once(tmp_path):
    write_run(tmp_path, "fspool-n4", [0, 1], {"mse": [1.0, 2.0]})
    write_run(tmp_path, "fspool-n4", [1, 2], {"mse": [2.0, 3.0]})
    (record,) = report.collect(tmp_path)
    assert record.seeds == [0, 1, 2]
    assert record.metrics["mse"] == [1.0, 2.0, 3.0]


def test_the_curve_is_summed_up_over_seeds_without_the_diverged(tmp_path):
    curve = [{"step": 64, "loss": [1.0, 3.0, None]}, {"step": 128, "loss": [None] * 3}]
    write_run(tmp_path, "fspool-n4", [0, 1, 2], {"mse": [1.0, 1.0, None]}, curve=curve)
    (record,) = report.collect(tmp_path)
    assert record.curve == [(64, 2.0, 1.0, 3.0)]


def test_steps_to_a_mark_come_from_the_curve(tmp_path):
    curve = [{"step": 64 * i, "loss": [0.5**i, 1.0]} for i in range(1, 160)]
    write_run(tmp_path, "fspool-n4", [0, 1], {"mse": [0.0, 0.0]}, curve=curve)
    (record,) = report.collect(tmp_path)
    assert record.metrics["steps to 1.0"] == [64 * 7, None]


def test_unfinished_and_missing_cells_are_named(tmp_path):
    write_run(tmp_path, "fspool-n4", [0, 1, 2], flat(0.1))
    write_run(tmp_path, "mlp-chamfer-n4", [0, 1, 2], {}, finished=False)
    write_plan(tmp_path, ["fspool-n4", "mlp-chamfer-n4", "random-n4"], seeds=3)
    found = report.collect(tmp_path)
    assert [record.name for record in found] == ["fspool-n4"]
    assert found.unfinished == ["mlp-chamfer-n4/seeds-0-2 is at step 64 of 10240."]
    assert found.missing == [
        "mlp-chamfer-n4: 0 of 3 runs are finished.",
        "random-n4: 0 of 3 runs are finished.",
    ]
    row = row_of(grid_of(found, "Chamfer loss"), "MLP + Chamfer")
    assert [(place.value, place.published) for place in row.places] == [(NONE, "1.771")]
    for text in (terminal(found), markdown(found), unescape(page(found))):
        assert all(sentence in text for sentence in found.missing + found.unfinished)


def test_some_seeds_may_be_missing(tmp_path):
    write_run(tmp_path, "fspool-n4", [0, 1], flat(0.1, 2))
    write_plan(tmp_path, ["fspool-n4"], seeds=5)
    assert report.collect(tmp_path).missing == ["fspool-n4: 2 of 5 runs are finished."]


@pytest.mark.parametrize("name", ["result.json", "config.json"])
def test_a_damaged_file_is_named_and_left_out(tmp_path, name):
    write_run(tmp_path, "fspool-n4", [0, 1, 2], flat(0.1))
    folder = write_run(tmp_path, "mlp-chamfer-n4", [0, 1, 2], flat(0.1))
    path = folder / name
    path.write_text(path.read_text().replace("0", "1", 1))
    found = report.collect(tmp_path)
    assert [record.name for record in found] == ["fspool-n4"]
    assert found.damaged == [f"{path} does not match its checksum; it is left out."]
    assert path.exists()  # a report changes nothing
    assert "does not match its checksum" in page(found)


def test_a_result_of_the_wrong_form_is_left_out(tmp_path):
    write_run(tmp_path, "fspool-n4", [0, 1, 2], flat(0.1))
    write_run(tmp_path, "fspool-n2", [0, 1, 2], {"mse": [0.1]})
    found = report.collect(tmp_path)
    assert len(found) == 1
    assert "does not have one number for each of the 3 seeds" in found.damaged[0]


def test_a_run_without_its_configuration_is_named_and_left_out(tmp_path):
    write_run(tmp_path, "fspool-n4", [0], {"mse": [0.1]})
    folder = write_run(tmp_path, "fspool-n8", [0], {"mse": [0.1]})
    (folder / "config.json").unlink()
    begun = write_run(tmp_path, "fspool-n16", [0], {}, finished=False)  # it may just have begun
    (begun / "config.json").unlink()
    found = report.collect(tmp_path)
    assert len(found) == 1
    assert found.damaged == [f"{folder} has lost its config.json; it is left out."]


def test_a_damaged_tensor_file_costs_its_figures_only(tmp_path):
    write_all(tmp_path, (4,))
    path = tmp_path / "fspool-n4" / "seeds-0-2" / "arrays.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    found = report.collect(tmp_path)
    text = page(found)
    assert "the figures go without it" in text
    assert "they are not part of this report" in text
    assert grid_of(found, "Chamfer loss").rows[0].places[0].value != NONE


def test_groups_of_other_settings_are_left_out(tmp_path):
    write_run(tmp_path, "fspool-n4", [0], {"mse": [0.1]})
    write_run(tmp_path, "fspool-n4", [1], {"mse": [0.2]}, batch=7)
    found = report.collect(tmp_path)
    assert found.records[0].seeds == [0]
    assert "its batch is 7 there and 16 here" in found.damaged[0]


def test_a_plan_that_is_none_is_named(tmp_path):
    write_run(tmp_path, "fspool-n4", [0], {"mse": [0.1]})
    good = {"experiment": "polygons", "preset": "quick", "seeds": 3, "cells": ["fspool-n8"]}
    for plan in ({"cells": 3}, good | {"options": "--set steps=3"}):
        storage.write_json(tmp_path / "plan.json", plan)
        found = report.collect(tmp_path)
        assert found.missing == []
        assert "is not a plan; what is missing is not known" in found.damaged[0]


@pytest.mark.parametrize(
    ("config", "result", "text"),
    [
        ({"seeds": 3, "cell": {}}, {"metrics": {}, "curve": []}, "is not a configuration"),
        ({"seeds": [0, 0], "cell": {}}, {"metrics": {}, "curve": []}, "is not a configuration"),
        ({"seeds": [0], "cell": {}}, {"metrics": {}}, "has no metrics or no curve"),
        ({"seeds": [0], "cell": {}}, {"metrics": {}, "curve": [{}]}, "has no metrics or no curve"),
        (
            {"seeds": [0], "cell": {}},
            {"metrics": {"a": []}, "curve": []},
            "does not have one number",
        ),
    ],
)
def test_other_files_of_the_same_names_are_left_out(tmp_path, config, result, text):
    write_run(tmp_path, "fspool-n4", [0], {"mse": [0.1]})
    folder = write_run(tmp_path, "fspool-n8", [0], {"mse": [0.1]})
    storage.write_json(folder / "config.json", {"experiment": "polygons", **config})
    storage.write_json(folder / "result.json", result)
    found = report.collect(tmp_path)
    assert len(found) == 1
    assert text in found.damaged[0]


def test_an_unfinished_run_without_records_is_at_step_0(tmp_path):
    write_run(tmp_path, "fspool-n4", [0], {"mse": [0.1]})
    folder = write_run(tmp_path, "fspool-n8", [0], {}, finished=False)
    (folder / "metrics.jsonl").unlink()
    folder = write_run(tmp_path, "fspool-n16", [0], {}, finished=False)
    (folder / "metrics.jsonl").write_text("{")
    assert report.collect(tmp_path).unfinished == [
        "fspool-n8/seeds-0-0 is at step 0 of 10240.",
        "fspool-n16/seeds-0-0 is at step 0 of 10240.",
    ]


def test_an_unknown_experiment_is_left_out(tmp_path):
    write_run(tmp_path, "fspool-n4", [0], {"mse": [0.1]})
    write_run(tmp_path, "other", [0], {"mse": [0.1]}, experiment="pentagons")
    found = report.collect(tmp_path)
    assert len(found) == 1
    assert "the experiment 'pentagons', unknown here" in found.damaged[0]


def test_missing_provenance_is_not_invented(tmp_path):
    folder = write_run(tmp_path, "fspool-n4", [0], {"mse": [0.1]})
    (folder / "provenance.json").unlink()
    text = markdown(report.collect(tmp_path))
    assert "1 cell, 1 run;" in text
    assert " on " not in text.split("1 cell,")[1].split("\n")[0]


def test_nothing_to_report_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="is not there"):
        report.collect(tmp_path / "no")
    with pytest.raises(UserError, match="no finished runs"):
        report.collect(tmp_path)
    write_run(tmp_path / "out", "fspool-n4", [0], {}, finished=False)
    with pytest.raises(UserError, match="perhaps you mean .*out"):
        report.collect(tmp_path)
    with pytest.raises(UserError, match="1 wait for the command"):
        report.collect(tmp_path / "out")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        report.collect(tmp_path / "x.json")
    storage.write_json(tmp_path / "y.json", {"some": "thing"})
    with pytest.raises(UserError, match="no finished runs"):
        report.collect(tmp_path / "y.json")


def test_runs_that_fill_no_table_are_a_sentence_too(whole, monkeypatch):
    monkeypatch.setattr("fspool.report.terminal.fill_all", lambda *_: [])
    assert "The finished runs fill no table yet; run more seeds" in terminal(whole)


def test_a_place_where_nothing_can_be_written_is_one_sentence(tmp_path):
    write_run(tmp_path / "runs", "fspool-n4", [0], {"mse": [0.1]})
    found = report.collect(tmp_path / "runs")
    (tmp_path / "file").write_text("")
    for write in (report.compact, report.write_markdown, report.write_page):
        with pytest.raises(UserError, match="cannot be written: "):
            write(found, tmp_path / "file" / "x")


def test_cells_come_in_the_order_of_their_numbers(tmp_path):
    for n in (16, 2, 128):
        write_run(tmp_path, f"fspool-n{n}", [0], {"mse": [0.1]})
    names = [record.name for record in report.collect(tmp_path)]
    assert names == ["fspool-n2", "fspool-n16", "fspool-n128"]


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
    titles = [grid.title for grid in fill_all(POLYGONS, report.collect(tmp_path))]
    assert titles[:4] == [
        "Direct mean squared error",
        "Chamfer loss",
        "Linear assignment loss",
        "The worst run of FSPool & FSUnpool",
    ]
    assert not any("hard sort" in title or "bypass" in title for title in titles)
    write_run(tmp_path, "fspool-hard-n16", [0, 1, 2], flat(0.1))
    grid = fill_all(POLYGONS, report.collect(tmp_path))[-1]
    assert "hard sort" in grid.title
    assert grid.columns == ["4", "16"]
    row = row_of(grid, "hard")
    assert [place.value for place in row.places] == [NONE, "10.000"]


def test_runs_that_never_arrive(tmp_path):
    curve = [{"step": 64, "loss": [1e-9] * 7 + [1.0] * 3}]
    write_run(tmp_path, "fspool-n4", list(range(10)), {"mse": [0.0] * 10}, curve=curve)
    never = [{"step": 64, "loss": [1.0] * 10}]
    write_run(tmp_path, "mlp-chamfer-n4", list(range(10)), {"chamfer": [0.0] * 10}, curve=never)
    found = report.collect(tmp_path)
    grid = next(g for g in fill_all(POLYGONS, found) if g.title.startswith("Steps until"))
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


def test_terminal_markdown_and_page_agree(whole, whole_page):
    found = whole
    plain = " ".join(terminal(found).split())
    spaced, text = " ".join(markdown(found).replace("&lt;", "<").split()), unescape(whole_page)
    for grid in fill_all(POLYGONS, found):
        for row in grid.rows:
            line = " ".join(place.value for place in row.places)
            assert f"{row.label} {line}" in plain
            joined = " ± ".join  # a Markdown cell has both
            cells = [joined(filter(None, [place.value, place.spread])) for place in row.places]
            assert f"| **{row.label}** | {' | '.join(cells)} |" in spaced
            for place in row.places:
                assert f'<span class="value">{place.value}</span>' in text
            for word, of in (("±", "spread"), ("paper", "published"), ("verdict", "verdict")):
                texts = [getattr(place, of) for place in row.places]
                if all(texts):
                    assert f"{word} {' '.join(texts)}" in plain
                    assert of == "spread" or f"| {word} | {' | '.join(texts)} |" in spaced


def test_a_narrow_terminal_cuts_no_number(tmp_path):
    write_all(tmp_path, (2, 4, 8, 16, 32, 64))
    found = report.collect(tmp_path)
    console = Console(file=io.StringIO(), width=80)
    report.render_terminal(found, console)
    text = console.file.getvalue()
    assert "…" not in text
    for row in grid_of(found, "Direct mean squared error").rows:
        assert all(place.value in text for place in row.places)


# --------------------------------------------------------------------------------------------------
# Compact files


def test_a_compact_file_gives_the_same_tables(tmp_path):
    runs = write_all(tmp_path / "runs")
    values = [math.pi / 7, math.e / 9, 1 / 3]
    write_run(runs, "fspool-n8", [0, 1, 2], {"mse": values, "chamfer": [0.1, None, 0.2]})
    write_run(runs, "mlp-chamfer-n8", [0, 1, 2], {}, finished=False)
    write_plan(runs, ["fspool-n8", "mlp-chamfer-n8"], seeds=3)
    found = report.collect(runs)
    report.compact(found, tmp_path / "results" / "polygons" / "paper.json")
    path = tmp_path / "results" / "polygons" / "paper.json"
    for place in (path, path.parent, path.parent.parent):
        again = report.collect(place)
        assert markdown(again) == markdown(found)
        assert terminal(again) == terminal(found)
        assert [record.metrics for record in again] == [record.metrics for record in found]
        assert [record.settings for record in again] == [record.settings for record in found]
        assert [record.origins for record in again] == [record.origins for record in found]


def test_a_compact_file_is_small_and_its_curves_are_thin(tmp_path):
    seeds, metrics = list(range(10)), flat(math.pi / 10000, 10, spread=math.e / 1e6)
    steps = range(64, 64 * 161, 64)
    curve = [{"step": step, "loss": [math.pi / step + s / 997 for s in seeds]} for step in steps]
    write_run(tmp_path / "runs", "fspool-n64", seeds, metrics, curve=curve)
    found = report.collect(tmp_path / "runs")
    (full,) = found
    found.records.extend(replace(full, name=f"mlp-assignment-fspool-h128-n{i}") for i in range(62))
    path = tmp_path / "polygons.json"
    report.compact(found, path)
    assert path.stat().st_size < 300_000
    again = report.collect(path)
    assert len(again) == 63
    record = again.records[0]
    assert len(full.curve) == 160
    assert len(record.curve) == 64
    assert (record.curve[0].step, record.curve[-1].step) == (64, 64 * 160)
    assert record.curve[-1].mean == pytest.approx(full.curve[-1].mean, rel=1e-2)
    assert record.origins[0]["device"] == PROVENANCE["device"]


def test_a_damaged_compact_file_is_named(tmp_path):
    write_run(tmp_path / "runs", "fspool-n4", [0], {"mse": [0.1]})
    found = report.collect(tmp_path / "runs")
    report.compact(found, tmp_path / "a.json")
    report.compact(found, tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text()
    (tmp_path / "b.json").write_text(text.replace("fspool-n4", "fspool-n8"))
    again = report.collect(tmp_path)
    assert [record.name for record in again] == ["fspool-n4"]
    assert "does not match its checksum" in again.damaged[0]


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda cell: cell["groups"][0].update(machine=7), "a machine for fspool-n4"),
        (lambda cell: cell["curve"]["mean"].pop(), "a whole curve of fspool-n4"),
        (lambda cell: cell["metrics"].update(mse=[]), "one number for each of the seeds of fspool"),
        (
            lambda cell: cell["arrays"].update(a={"shape": [2], "values": [1]}),
            "arrays of fspool-n4",
        ),
        (
            lambda cell: cell.update(tallies={"a": {"shape": [1], "zlib": "eHh4"}}),
            "counts that can",
        ),
        (lambda cell: cell.update(name="\ud800"), "the right form"),
        (lambda cell: cell.update(settings={"a": [[[[[[[[[1]]]]]]]]]}), "the right form"),
    ],
)
def test_a_compact_file_whose_parts_do_not_fit_is_left_out(tmp_path, harm, sentence):
    write_run(tmp_path / "runs", "fspool-n4", [0], {"mse": [0.1]})
    report.compact(report.collect(tmp_path / "runs"), tmp_path / "a.json")
    data = storage.read_json(tmp_path / "a.json")
    harm(data["cells"][0])
    storage.write_json(tmp_path / "a.json", data)
    with pytest.raises(UserError, match=rf"lacks what a result file has \({sentence}"):
        report.collect(tmp_path / "a.json")


def test_a_compact_file_of_the_wrong_form_is_named(tmp_path):
    write_run(tmp_path / "runs", "fspool-n4", [0], {"mse": [0.1]})
    found = report.collect(tmp_path / "runs")
    found.records.append(replace(found.records[0], experiment="pentagons"))
    report.compact(found, tmp_path / "a.json")
    data = storage.read_json(tmp_path / "a.json")
    storage.write_json(tmp_path / "b.json", {"format": data["format"]})
    again = report.collect(tmp_path)
    assert len(again) == 1
    assert (
        "lacks what a result file has (plans and unfinished and damaged and machines and cells)"
        in again.damaged[0]
    )
    assert "the experiment 'pentagons', unknown here" in again.damaged[1]


def test_the_same_cell_in_two_files_counts_once(tmp_path):
    write_run(tmp_path / "runs", "fspool-n4", [0], {"mse": [0.1]})
    found = report.collect(tmp_path / "runs")
    report.compact(found, tmp_path / "a.json")
    report.compact(found, tmp_path / "b.json")
    again = report.collect(tmp_path)
    assert len(again) == 1
    assert again.damaged == ["fspool-n4 is there twice; the second one is left out."]


# --------------------------------------------------------------------------------------------------
# Markdown and the page


def test_how_it_was_made_is_said(tmp_path):
    write_all(tmp_path, (4,))
    write_plan(tmp_path, ["fspool-n4"], seeds=3, preset="paper")
    text = markdown(report.collect(tmp_path))
    assert "4 cells, 12 runs; added up, they took 55 seconds on A machine with torch 2.13.0" in text
    assert "at commit 0123456789ab, 2026-01-02." in text
    assert "Made by `fspool run polygons --preset paper --seeds 3`." in text


def test_every_command_is_named_with_the_cells_and_settings_it_asked_for(tmp_path):
    write_all(tmp_path, (4,))
    options = {"": 3, "--only 'fspool-n*' --set steps=64": 5}
    plan = {"experiment": "polygons", "preset": "paper", "seeds": 5, "cells": ["fspool-n4"]}
    storage.write_json(tmp_path / "plan.json", plan | {"options": options})
    found = report.collect(tmp_path)
    report.compact(found, tmp_path / "small.json")
    for each in (found, report.collect(tmp_path / "small.json")):
        assert markdown(each).split("Made by ")[1].split(".\n")[0] == (
            "`fspool run polygons --preset paper --seeds 3` and "
            "`fspool run polygons --preset paper --seeds 5 --only 'fspool-n*' --set steps=64`"
        )


def test_names_cannot_become_markup(tmp_path):
    evil = '<img src=x onerror="alert(1)">|&amp;`*'
    write_all(tmp_path, (4,))
    write_run(tmp_path, evil, [0], {"mse": [0.1]}, provenance=PROVENANCE | {"device": evil})
    write_run(tmp_path, evil + "2", [0], {}, finished=False)
    found = report.collect(tmp_path)
    text = page(found)
    assert "<img" not in text
    assert "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;|&amp;amp;`*" in text
    gap = markdown(found).split("## What is missing")[1]
    assert "<img" not in gap
    assert "\\|&amp;amp;\\`\\*" in gap
    assert evil + "2/seeds-0-0" in terminal(found)


def test_data_cannot_end_the_script(tmp_path):
    text = embed({"name": "</script><!--&\u2028"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": "</script><!--&\u2028"}


def test_the_page_needs_nothing_else(whole_page):
    text = whole_page
    assert len(text.encode()) < 3_000_000
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert not re.findall(r"<(?:link|img|iframe)\b|@import|url\((?!#)", text)
    identities = re.findall(r'\bid="([^"]+)"', text)
    assert len(identities) == len(set(identities))


def test_figures_are_whole_and_follow_the_page(whole):
    records = whole.of("polygons")
    panels = [
        *figures.loss_curves(records),
        *figures.slots_by_angle(records, 2, error=True),
        *figures.slots_by_angle(records, 4),
        *figures.reconstructions(records, 16),
        *figures.weight_functions(records["fspool-n16"]),
    ]
    assert len(panels) == 3 + 3 + 3 + 3 + 2
    for _, picture in panels:
        ElementTree.fromstring(picture)
        assert 'role="img"' in picture
        assert "var(--" in picture
        assert figures.INK not in picture
    assert figures.weight_functions(records["fspool-n16"]) == panels[-2:]  # the same every time


def test_a_page_without_run_folders_says_so(tmp_path):
    write_all(tmp_path / "runs", (8,))
    report.compact(report.collect(tmp_path / "runs"), tmp_path / "polygons.json")
    text = page(report.collect(tmp_path / "polygons.json"))
    assert "they are not part of this report" in text
    assert 'id="slider"' not in text
    assert "<h2>Training</h2>" in text
    assert "<h2>Reconstructions</h2>" not in text


def test_a_compact_file_keeps_the_turning_square(tmp_path):
    write_all(tmp_path / "runs", (4,))
    found = report.collect(tmp_path / "runs")
    report.compact(found, tmp_path / "polygons.json")
    again = report.collect(tmp_path / "polygons.json")
    assert 'id="slider"' in page(again)
    full, kept = (c.of("polygons")["fspool-n4"].arrays["sweep"] for c in (found, again))
    step = len(full) // len(kept)
    assert len(kept) == min(len(full), 360) and len(full) == step * len(kept)
    torch.testing.assert_close(kept, full[::step], rtol=0, atol=5.1e-4)
