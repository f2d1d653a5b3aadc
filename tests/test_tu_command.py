"""``fspool data tu``."""

from pathlib import Path

import pytest

from fspool.data import tu

from . import data_files, downloads, tu_sets
from .data_files import put
from .mirror import Mirror, serve
from .tu_sets import SETS, TWO, as_gin, as_tu, left, zipped

pytestmark = pytest.mark.usefixtures("one_thread")
elsewhere, archives, root = data_files.elsewhere, tu_sets.archives, tu_sets.root


@pytest.fixture
def mirror(archives, monkeypatch):
    with serve(Mirror(dict(archives))) as server:
        for name, source in tu.SOURCES.items():
            monkeypatch.setitem(tu.SOURCES, name, source._replace(mirrors=(server.url,)))
        yield server


LINES = {
    "MUTAG": "MUTAG: 3 graphs of 1 to 3 nodes, 2.00 on average; 2 classes",
    "IMDB-BINARY": "IMDB-BINARY: 2 graphs of 2 to 4 nodes, 3.00 on average; 2 classes",
    "REDDIT-BINARY": "REDDIT-BINARY: 2 graphs of 2 to 3 nodes, 2.50 on average; 2 classes",
    "PTC": "PTC: 2 graphs of 2 to 3 nodes, 2.50 on average; 2 classes",
}


def test_the_command_downloads_verifies_and_makes_the_graphs(fspool, mirror, tmp_path, monkeypatch):
    code, out, error = fspool("data", "tu", "--data", "some where")
    first, *rest = out.splitlines()
    assert (code, error) == (0, "") and rest == list(LINES.values())
    assert first == "Graphs in some where: 4 of 4 files downloaded; all are as published."
    folder = tmp_path / "some where" / "tu"
    names = {name for name, _ in mirror.asked}
    assert names == set(mirror.files) == {path.name for path in folder.glob("*.zip")}
    assert left(folder) == sorted(f"graphs-{name}.safetensors" for name in SETS)

    monkeypatch.setenv("FSPOOL_DATA", "some where")
    code, out, _ = fspool("data", "tu", "PTC", "MUTAG", "PTC")
    assert code == 0 and out.splitlines()[1:] == [LINES["PTC"], LINES["MUTAG"]]
    assert out.startswith("Graphs in some where: everything is there already; all are as published")
    assert len(mirror.asked) == 4


@pytest.mark.parametrize("folder", ["tu", "."])
def test_only_what_is_missing_is_downloaded_to_where_the_rest_is(fspool, mirror, archives, folder):
    put({"MUTAG.zip": archives["MUTAG.zip"]}, Path("data") / folder)
    code, out, _ = fspool("data", "tu", "MUTAG", "PTC")
    assert code == 0 and "1 of 2 files downloaded" in out
    assert mirror.asked == [("dataset.zip", None)]
    assert (Path("data") / folder / "dataset.zip").read_bytes() == archives["dataset.zip"]


def test_the_command_goes_on_with_a_download(fspool, mirror, archives):
    put({"MUTAG.zip.part": archives["MUTAG.zip"][:99]}, Path("data/tu"))
    mirror.cut = [50]
    assert fspool("data", "tu", "MUTAG")[0] == 0
    assert mirror.asked == [("MUTAG.zip", 99), ("MUTAG.zip", 149)]


def test_the_command_in_a_terminal_has_bars(fspool, mirror, monkeypatch):
    downloads.has_bars(fspool, monkeypatch, mirror, "tu")


def test_the_command_names_altered_files_and_touches_none(fspool, root, mirror):
    path = root / "tu" / "MUTAG.zip"
    path.write_bytes(zipped(as_tu("MUTAG", TWO[1:])))
    before = path.read_bytes()
    code, out, error = fspool("data", "tu", "IMDB-BINARY", "MUTAG", "--data", root)
    assert code == 1 and out == "" and error.startswith(f"{path} is not MUTAG as published: ")
    assert path.read_bytes() == before and mirror.asked == []


def test_the_command_offline(fspool, mirror):
    downloads.says_that_it_is_offline(fspool, mirror, "MUTAG.zip", "tu", "MUTAG")


def test_a_wrong_download_is_told_and_not_kept(fspool, mirror, archives):
    mirror.files["MUTAG.zip"] = archives["IMDB-BINARY.zip"]
    downloads.refuses_another_file(fspool, Path("data/tu"), [], "tu", "MUTAG")


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"<html>Please log in</html>", "dataset.zip is not a whole zip archive"),
        (zipped(as_gin("MUTAG", TWO)), "dataset.zip has no PTC_graph_indicator.txt"),
        (zipped(as_gin("PTC", TWO)), "dataset.zip is not PTC as published: it has 3 graphs"),
    ],
)
def test_what_has_no_checksum_is_kept_only_if_its_content_is_right(
    fspool, mirror, content, sentence
):
    mirror.files["dataset.zip"] = content
    code, out, error = fspool("data", "tu", "PTC")
    path = Path("data/tu/dataset.zip")
    assert code == 1 and out == f"{path} was not what was expected, so it was removed.\n"
    assert sentence in error and list(path.parent.iterdir()) == []


def test_a_damaged_archive_is_named_with_the_command_that_fetches_it(fspool, archives):
    path = Path("data/tu/MUTAG.zip")
    path.parent.mkdir(parents=True)
    path.write_bytes(archives["MUTAG.zip"][:100])
    code, _, error = fspool("data", "tu", "MUTAG")
    assert code == 1 and "is not a whole zip archive (File is not a zip file); remove it" in error
    assert "fetch it again by fspool data tu MUTAG --data data; MUTAG.zip has sha256" in error


def test_ctrl_c_while_it_downloads(fspool, mirror, monkeypatch):
    downloads.goes_on_after_ctrl_c(fspool, monkeypatch, tu, "tu", "MUTAG")
