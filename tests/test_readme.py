"""What the README shows comes out of the committed results."""

import runpy
from pathlib import Path

import pytest

from benchmarks import __main__ as runner

ROOT = Path(__file__).parent.parent
PICTURES = runpy.run_path(str(ROOT / "docs" / "pictures.py"))


def test_the_table_of_the_readme_is_that_of_the_results():
    text = (ROOT / "README.md").read_text()
    filled = PICTURES["filled"](text, PICTURES["BLOCK"], PICTURES["results_block"]())
    assert filled == text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_tables_of_speed_are_those_of_the_results(device, tmp_path):
    for name in runner.PAGES[device]:
        text = (ROOT / name).read_text()
        copy = tmp_path / Path(name).name
        copy.write_text(text)
        runner.main(["--device", device, "--readme", str(copy)])
        assert copy.read_text() == text


def test_a_readme_without_its_block_is_refused():
    with pytest.raises(SystemExit, match="results:polygons"):
        PICTURES["filled"]("# nothing here", PICTURES["BLOCK"], "table")


def test_results_md_is_made_from_the_results(tmp_path):
    from fspool import report

    report.write_markdown(report.collect(ROOT / "results"), tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == (ROOT / "RESULTS.md").read_text()
