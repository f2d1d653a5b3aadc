"""The scripts of ``examples/`` run as they stand, and show what they say; graphs: test_pyg."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")

FOLDER = Path(__file__).parent.parent / "examples"


def main(name):
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"]


def test_deep_sets(capsys):
    found = main("deep_sets")()
    assert found["FSPool"] > max(0.8, found["sum"], found["mean"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(found)


def test_point_clouds(capsys):
    found = main("point_clouds")()
    assert found["FSPool"][0] > 0.8 and found["maximum"][0] > 0.8  # a third by guessing
    assert found["FSPool"][8] > found["maximum"][8]  # strays are where a maximum looks
    assert "with 8 stray points" in capsys.readouterr().out


def test_autoencoder(capsys):
    first, last = main("autoencoder")()
    assert last < 0.01 * first
    assert "new polygons" in capsys.readouterr().out


def test_set_prediction(capsys):
    constant, loss = main("set_prediction")()
    assert loss < 0.2 * constant
    shown = capsys.readouterr().out.splitlines()
    true, found = (line.partition(": ")[2] for line in shown[-2:])
    assert true.count("(") == found.count("(") > 0  # as many dots as there are


def test_every_script_is_run_by_a_test():
    here = {"deep_sets", "point_clouds", "autoencoder", "set_prediction"}
    assert {path.stem for path in FOLDER.glob("*.py")} == here | {"graphs", "graph_classification"}
