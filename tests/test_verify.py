"""What the README, RESULTS.md and the docs quote comes out of the committed results."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VERIFY = runpy.run_path(str(ROOT / "tools" / "verify.py"))
PICTURES = runpy.run_path(str(ROOT / "docs" / "pictures.py"))


def test_every_figure_is_what_the_results_give():
    assert VERIFY["problems"]() == []


@pytest.fixture
def copy(tmp_path):
    """The files that are verified, to be changed."""
    for name in ("README.md", "RESULTS.md"):
        shutil.copy(ROOT / name, tmp_path)
    left_out = shutil.ignore_patterns("_build", "jupyter_execute", "report.html")
    for name in ("docs", "results", "benchmarks/results"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    return tmp_path


def test_a_changed_figure_is_found_wherever_it_stands(copy):
    figures = {  # how a figure of each page looks
        "README.md": r"\| \d+\.\d{3} \(",
        "RESULTS.md": r"\d+\.\d{3} ",
        "docs/speed.md": r"\| \d+\.\dx ",
        "docs/_static/sweep.svg": r"d=\"M \d+\.\d",
        "docs/mnist.md": r"# \d+ MB, verified",
    }
    places = {}
    for name, figure in figures.items():
        text = (copy / name).read_text()
        first = re.search(figure, text)
        places[name] = f"{name}:{text[: first.start()].count(chr(10)) + 1}: "
        another = re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), first[0])
        (copy / name).write_text(text[: first.start()] + another + text[first.end() :])
    found = VERIFY["problems"](copy)
    for name, place in places.items():
        assert any(problem.startswith(place) for problem in found), (name, found)
    assert "docs/mnist.md: does not say '# 12 MB, verified'." in found
    assert len(found) == len(figures) + 1


@pytest.mark.parametrize(
    "text, measure",
    [
        ("It takes 3.5 ms.", "3.5 ms"),
        ("one\n\ntwo is 40 % of it", "40 %"),
        ("- it is 12.5x faster", "12.5x"),
        ("```sh\nfspool run  # 3 minutes\n```", "3 minutes"),
        ("```python\n# 5 ms\n```\nand 6 ms", "6 ms"),
    ],
)
def test_a_measurement_that_is_typed_in_is_named(text, measure):
    (problem,) = VERIFY["typed"]("docs/new.md", text, [])
    line = text[: text.index(measure)].count("\n") + 1
    assert problem.startswith(f"docs/new.md:{line}: {measure!r} is typed in")


@pytest.mark.parametrize(
    "text",
    [
        "pictures of 128 x 128, with 16 points",
        "`3 ms` and $4 s$ and [here](a 5 ms)",
        "```python\nlimit = 5  # 5 ms\n```",
        "<!-- bench:cuda:all -->\n| 5 ms |\n<!-- /bench:cuda:all -->",
        "about 1.7 times\nas large",
    ],
)
def test_what_is_made_or_set_may_stand(text):
    assert [*VERIFY["typed"]("docs/new.md", text, ["about 1.7 times as large"])] == []


def test_a_readme_without_its_block_is_refused():
    with pytest.raises(SystemExit, match="results:polygons"):
        PICTURES["filled"]("# nothing here", "results:polygons", "table")
