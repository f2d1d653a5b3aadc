"""Accuracies in the report: more is better, what is published has a spread, a test for chance."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html import unescape

import pytest
from scipy.stats import ttest_ind

from fspool import report
from fspool.experiments import EXPERIMENTS
from fspool.experiments.experiment import Entry, Published, Table, published
from fspool.experiments.polygons import Polygons
from fspool.experiments.welch import p_value
from fspool.report.grids import NONE
from fspool.report.markdown import markdown
from fspool.report.page import page
from fspool.report.sentences import UNLIKE, verdict_sentence
from fspool.report.tables import fill_all
from fspool.report.verdicts import Sample, against_closed_form, against_published
from fspool.report.welch import compare, show_p

from . import digits as fake
from .grids import grids_of, row_of, terminal

WELCH = "Welch test, FSPool against the best other"


def grids_in(experiment, out) -> dict:
    return grids_of(experiment, report.collect(out))


# --------------------------------------------------------------------------------------------------
# Published numbers


@pytest.mark.parametrize(
    ("text", "value", "spread", "unit", "share"),
    [
        ("0.001", 0.001, None, 1e-3, 1),
        ("0.0001", 1e-4, None, 1e-4, 1),
        ("100.323", 100.323, None, 1e-3, 1),
        ("12", 12, None, 1, 1),
        ("82.2 ± 2.1", 82.2, 2.1, 0.1, 1),
        ("0.41 ± 0.00", 0.41, 0.0, 0.01, 1),
        ("268 ± 46 (8 of 10)", 268, 46, 1, 0.8),
    ],
)
def test_published_numbers_are_read(text, value, spread, unit, share):
    assert Published.read(text) == (text, value, spread, unit, share)


def test_where_not_all_published_runs_arrived_as_many_of_ours_need():
    paper, good = Published.read("268 ± 46 (8 of 10)"), (260.0, 270.0) * 4
    for values, verdict in (((*good, None, None), "level"), ((*good[1:], *[None] * 3), "behind")):
        assert against_published(Sample(values), paper, trained=True) == verdict


@pytest.mark.parametrize("text", ["", "82.2 ±", "82.2 +- 2.1", "82.2 ± 2.1 ± 1", "8 (of 10)"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError):
        Published.read(text)


def test_tables_of_mnist_as_printed():
    pairs = {"plain": "0.42 ± 0.06", "mask": "0.28 ± 0.03"}
    for name, first in pairs.items():
        table = published(f"mnist.reconstruction.{name}")
        assert list(table) == [
            "FSPool + FSUnpool",
            "Sum + MLP",
            "Sum + RNN",
            "Max + MLP",
            "Mean + MLP",
        ]
        assert all(list(row) == [f"0.0{i}" for i in range(6)] for row in table.values())
        assert table["FSPool + FSUnpool"]["0.00"].text == first
    for name in ("noise5", "noise0", "epochs100"):
        table = published(f"mnist.classification.{name}")
        assert list(table) == list(fake.POOLS)
        for row in table.values():
            assert all(0 < number.spread < 11 < number.value < 98 for number in row.values())
    assert published("mnist.classification.noise5")["Mean"]["1 unfrozen"].text == "32.2 ± 10.5"
    assert published("mnist.classification.epochs100")["Max"]["0.00 random"].value == 95.1


# --------------------------------------------------------------------------------------------------
# Verdicts


@pytest.mark.parametrize(
    ("values", "printed", "verdict"),
    [
        ((84.0,), "80.0 ± 2.0", "level"),  # one run: 2 * 2 + 0.1 allowed
        ((84.2,), "80.0 ± 2.0", "ahead"),
        ((75.9,), "80.0 ± 2.0", "level"),
        ((75.8,), "80.0 ± 2.0", "behind"),
        ((80.1,), "80.0 ± 0.0", "level"),
        ((80.2,), "80.0", "ahead"),
        ((99.0, None), "80.0 ± 2.0", "behind"),
    ],
)
def test_verdict_on_an_accuracy(values, printed, verdict):
    sample = Sample(values, higher_is_better=True)
    assert against_published(sample, Published.read(printed), trained=True) == verdict


@pytest.mark.parametrize(("higher", "words"), [(True, "ab"), (False, "ba")])
def test_both_spreads_count(higher, words):
    sample = Sample((80.0, 86.0), higher)  # 2 hypot(4, sqrt(18)) + 0.1 = 11.76 allowed
    verdicts = {
        printed: against_published(sample, Published.read(f"{printed} ± 4.0"), trained=True)
        for printed in ("71.2", "71.3", "94.7", "94.8")
    }
    assert [word[0] for word in verdicts.values()] == [words[0], "l", "l", words[1]]


def test_a_published_spread_counts_for_what_is_not_trained_too():
    sample = Sample((1.0, 3.0))  # 2 sqrt(2) + 0.1 = 2.93 allowed
    assert against_published(sample, Published.read("5.0 ± 0.0"), trained=False) == "ahead"


def test_the_worst_accuracy_is_the_smallest():
    assert Sample((0.8, 0.7, 0.9), higher_is_better=True).worst == 0.7
    assert Sample((0.8, 0.7, 0.9)).worst == 0.9
    assert Sample((0.8, None), higher_is_better=True).worst == -math.inf
    assert against_closed_form(Sample((0.8, None), higher_is_better=True), 0.5, 1) == "below"


# --------------------------------------------------------------------------------------------------
# Welch's test


def test_the_test_is_that_of_scipy():
    one, other = (82.1, 83.0, 81.2, 84.9), (80.2, 81.9, 79.0)
    expected = ttest_ind(one, other, equal_var=False).pvalue
    assert p_value(one, other) == pytest.approx(expected, rel=1e-12)


def test_the_best_other_depends_on_the_direction():
    samples = {"low": (1.0, 1.1), "high": (3.0, 3.1), "higher, diverged": (9.0, None)}
    for higher, name in ((True, "high, better mean"), (False, "low")):
        others = {label: Sample(values, higher) for label, values in samples.items()}
        assert compare(Sample((0.5, 0.6), higher), others).against == name


def test_no_test_without_two_runs_or_after_a_divergence():
    pair, single, broken = Sample((1.0, 2.0)), Sample((1.0,)), Sample((1.0, None, 2.0))
    for lead, others in (
        (None, {"a": pair}),
        (single, {"a": pair}),
        (pair, {"a": single}),
        (pair, {"a": single, "b": Sample((8.0, 9.0))}),  # the second best is not the best
        (broken, {"a": pair}),
        (pair, {"a": broken}),
        (pair, {}),
        (Sample((1.0, 1.0)), {"a": Sample((1.0, 1.0))}),  # 0 / 0
    ):
        assert compare(lead, others).value == NONE
    constant = compare(Sample((1.0, 1.0)), {"a": Sample((2.0, 2.0))})
    assert constant.value == NONE  # there is no chance to compare with


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (1e-9, "p < 0.001"),
        (0.0014, "p = 0.001"),
        (0.0096, "p = 0.010"),
        (0.031, "p = 0.03"),
        (0.5, "p = 0.50"),
        (1.0, "p = 1.00"),
    ],
)
def test_p_is_short(p, text):
    assert show_p(p) == text


# --------------------------------------------------------------------------------------------------
# Tables


@pytest.fixture
def digits(monkeypatch):
    made = fake.experiment()
    monkeypatch.setitem(EXPERIMENTS, made.name, made)
    return made


@pytest.fixture
def filled(digits, tmp_path):
    """FSPool wins when frozen and loses when not; from random weights there is one run of it."""
    fake.write(tmp_path, "fspool-frozen", [82.0, 83.0, 84.0])
    fake.write(tmp_path, "sum-frozen", [76.0, 76.4, 76.8])
    fake.write(tmp_path, "max-frozen", [60.0, 61.0, 62.0])
    fake.write(tmp_path, "fspool-unfrozen", [90.0, 95.0, 85.0])
    fake.write(tmp_path, "mean-unfrozen", [96.0, 97.0, 95.0])
    fake.write(tmp_path, "fspool-random", [84.0])
    fake.write(tmp_path, "sum-random", [30.0, 31.0])
    return digits, tmp_path


def test_values_of_a_table_of_accuracies(filled):
    grid = grids_in(*filled)["Accuracy"]
    places = row_of(grid, "FSPool").places
    assert [place.value for place in places] == ["83.0", "90.0", "84.0"]
    assert [place.worst for place in places] == ["82.0", "85.0", "84.0"]
    assert [place.published for place in places] == ["82.2 ± 2.1", "86.9 ± 1.3", "84.7 ± 1.9"]
    assert [place.verdict for place in places] == ["level"] * 3
    assert [place.verdict for place in row_of(grid, "Max").places] == ["behind", "", ""]
    assert [place.verdict for place in row_of(grid, "Mean").places] == ["", "ahead", ""]


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("steps, knots", [(10, 3), (10, 4), (99, 3)])
def test_what_is_read_on_the_way_is_judged_however_long_a_run_goes_on(steps, knots, tmp_path):
    own = replace(
        fake.experiment(fake.table(early=True), fake.table()),
        by_data=tuple({*fake.SETTINGS} - {"steps", "knots"}),
        cells=lambda preset: {"fspool-frozen": Polygons(points=4, steps=99, knots=3)},
    )
    fake.write(tmp_path, "fspool-frozen", [82.0, 83.0], steps=steps, knots=knots)
    early, late = (_first_place(replace(own, tables=(t,)), tmp_path) for t in own.tables)
    assert bool(early.verdict) == (knots == 3)
    assert bool(late.verdict) == (knots == 3 and steps == 99)


@pytest.mark.usefixtures("digits")
@pytest.mark.parametrize("judged", [True, False])
def test_only_what_could_be_judged_is_said_to_be_unlike_the_paper(judged, tmp_path):
    fake.write(tmp_path, "fspool-frozen", [82.0, 83.0], steps=7)
    own = replace(
        fake.experiment(fake.table(judged=judged)),
        by_data=tuple({*fake.SETTINGS} - {"steps"}),
        cells=lambda preset: {"fspool-frozen": Polygons(points=4, steps=99)},
    )
    grids = fill_all(own, report.collect(tmp_path))
    assert verdict_sentence(grids) == (UNLIKE if judged else "")


def _first_place(experiment, out):
    return grids_in(experiment, out)["Accuracy"].rows[0].places[0]


def test_the_worst_run_is_the_smallest_and_says_so(filled):
    grid = grids_in(*filled)["The worst run of FSPool"]
    assert grid.note == "The smallest value among 3 runs. In %; more is better."
    assert [place.value for place in grid.rows[0].places] == ["82.0", "85.0", NONE]


def test_a_diverged_run_is_the_worst(digits, tmp_path):
    fake.write(tmp_path, "fspool-frozen", [82.0, None])
    (place,) = grids_in(digits, tmp_path)["The worst run of FSPool"].rows[0].places
    assert place.value == "−∞"


def test_tables_that_cannot_stand_together_have_their_own_worst_runs(digits, tmp_path):
    late = Table(
        title="After 100 epochs",
        note="In %; more is better.",
        columns=("0.05 frozen",),
        rows={"FSPool": (Entry("fspool-late", "accuracy"),)},
        published="mnist.classification.epochs100",
        higher_is_better=True,
    )
    fake.write(tmp_path, "fspool-frozen", [82.0, 83.0])
    fake.write(tmp_path, "fspool-late", [70.0, 71.0])
    alike = replace(fake.table(), title="Again", rows={"FSPool": 3 * late.rows["FSPool"]})
    grids = grids_in(fake.experiment(fake.table(), late, alike), tmp_path)
    assert list(grids)[2:] == [
        "The worst run of FSPool: Accuracy",
        "The worst run of FSPool: After 100 epochs",
    ]
    grids = grids_in(fake.experiment(fake.table(), alike), tmp_path)
    assert list(grids)[2:] == ["The worst run of FSPool"]
    assert [row.label for row in grids["The worst run of FSPool"].rows] == ["Accuracy", "Again"]


def test_the_test_stands_under_the_table_in_every_form(filled):
    experiment, out = filled
    found = report.collect(out)
    row = grids_of(experiment, found)["Accuracy"].rows[-1]
    assert (row.label, row.measured) == (WELCH, False)
    assert [(place.value, place.against) for place in row.places] == [
        ("p = 0.003", "Sum"),
        ("p = 0.17", "Mean, better mean"),
        (NONE, ""),
    ]
    assert f"| **{WELCH}** | p = 0.003 (Sum) | p = 0.17 (Mean, better mean) | – |" in markdown(
        found
    )
    plain = " ".join(terminal(found).split())
    assert f"{WELCH} p = 0.003 p = 0.17 – best other Sum Mean, better mean" in plain
    text = unescape(page(found))
    assert '<span class="value">p = 0.003</span><span class="against">(Sum)</span>' in text
    assert re.search(rf'<tr class="known"><th scope="row">{WELCH}</th>', text)


def test_a_test_is_made_only_where_it_is_asked_for(filled):
    _, out = filled
    grid = grids_in(fake.experiment(fake.table(welch=False)), out)["Accuracy"]
    assert [row.label for row in grid.rows] == list(fake.POOLS)


def test_what_is_not_trained_is_no_rival(digits, tmp_path):
    fake.write(tmp_path, "fspool-frozen", [82.0, 83.0])
    fake.write(tmp_path, "sum-frozen", [99.0, 99.5], steps=0)
    assert row_of(grids_in(digits, tmp_path)["Accuracy"], "Sum").places[0].value == "99.2"
    assert [row.label for row in grids_in(digits, tmp_path)["Accuracy"].rows] == ["FSPool", "Sum"]
