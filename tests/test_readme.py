"""What the README shows comes out of the committed results."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PICTURES = runpy.run_path(str(ROOT / "docs" / "pictures.py"))


def test_the_table_of_the_readme_is_that_of_the_results():
    text = (ROOT / "README.md").read_text()
    filled = PICTURES["filled"](text, PICTURES["BLOCK"], PICTURES["results_block"]())
    assert filled == text


def test_a_readme_without_its_block_is_refused():
    with pytest.raises(SystemExit, match="results:polygons"):
        PICTURES["filled"]("# nothing here", PICTURES["BLOCK"], "table")


def test_results_md_is_made_from_the_results(tmp_path):
    from fspool import report

    report.write_markdown(report.collect(ROOT / "results"), tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == (ROOT / "RESULTS.md").read_text()
