"""The written forms of a report: how it says where its numbers are from, and its page."""

from __future__ import annotations

import json
import re
from html import unescape
from xml.etree import ElementTree

import pytest
import torch

from fspool import report, storage
from fspool.experiments import find
from fspool.report import figures
from fspool.report.markdown import markdown
from fspool.report.page import embed, page

from .folders import PROVENANCE, write_all, write_plan, write_run
from .grids import grids_of, terminal

POLYGONS = find("polygons")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """All models at three sizes."""
    return report.collect(write_all(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def whole_page(whole):
    return page(whole)


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


def test_terminal_markdown_and_page_agree(whole, whole_page):
    found = whole
    plain = " ".join(terminal(found).split())
    spaced, text = " ".join(markdown(found).replace("&lt;", "<").split()), unescape(whole_page)
    for grid in grids_of(POLYGONS, found).values():
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


def test_runs_that_fill_no_table_are_a_sentence_too(whole, monkeypatch):
    monkeypatch.setattr("fspool.report.terminal.fill_all", lambda *_: [])
    assert "The finished runs fill no table yet; run more seeds" in terminal(whole)
