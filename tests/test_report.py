"""What a report reads: folders of runs and compact files, whole and damaged."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import unescape

import pytest

from fspool import report, storage
from fspool.checks import UserError
from fspool.experiments import find
from fspool.report.grids import NONE
from fspool.report.markdown import markdown
from fspool.report.page import page

from .folders import PROVENANCE, flat, write_all, write_plan, write_run
from .grids import grids_of, row_of, terminal

POLYGONS = find("polygons")

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
    row = row_of(grids_of(POLYGONS, found)["Chamfer loss"], "MLP + Chamfer")
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


def test_a_result_of_another_configuration_is_left_out(tmp_path):
    write_run(tmp_path, "fspool-n4", [0], {"mse": [0.1]})
    write_run(tmp_path, "fspool-n8", [0], {"mse": [0.1]})
    path = tmp_path / "fspool-n8" / "seeds-0-0" / "result.json"
    config = storage.read_json(path.with_name("config.json"))
    storage.write_json(path, storage.read_json(path) | {"config": storage.digest(config)})
    assert len(report.collect(tmp_path)) == 2
    storage.write_json(path, storage.read_json(path) | {"config": "of another"})
    found = report.collect(tmp_path)
    assert len(found) == 1 and "of another configuration" in found.damaged[0]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_report_goes_through_links_and_into_pipes(tmp_path, kind):
    write_run(tmp_path / "runs", "fspool-n4", [0], {"mse": [0.1]})
    found, path = report.collect(tmp_path / "runs"), tmp_path / "out.md"
    if kind == "link":
        path.symlink_to(tmp_path / "target.md")
        report.write_markdown(found, path)
        assert path.is_symlink() and (tmp_path / "target.md").read_text() == markdown(found)
    else:
        os.mkfifo(path)
        with ThreadPoolExecutor(1) as thread:
            text = thread.submit(path.read_text)
            report.write_markdown(found, path)
            assert text.result(timeout=30) == markdown(found)
        assert path.is_fifo()


def test_cells_may_have_been_asked_for_with_other_numbers_of_seeds(tmp_path):
    for name in ("random-n2", "random-n4"):
        write_run(tmp_path, name, [0, 1], {"mse": [0.1, 0.1]})
    plan = {"experiment": "polygons", "preset": "quick", "seeds": 4}
    plan |= {"cells": ["random-n2", "random-n4"], "runs": {"random-n4": 2}}
    storage.write_json(tmp_path / "plan.json", plan)
    found = report.collect(tmp_path)
    report.compact(found, tmp_path / "small.json")
    for each in (found, report.collect(tmp_path / "small.json")):
        assert each.missing == ["random-n2: 2 of 4 runs are finished."]


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
    assert grids_of(POLYGONS, found)["Chamfer loss"].rows[0].places[0].value != NONE


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
    assert again.problems == ["fspool-n4 is there twice; the second one is left out."]
