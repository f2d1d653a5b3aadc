"""``fspool doctor`` looks at the data: what is missing, right, wrong, or too large for a moment."""

import hashlib

import pytest

from fspool.data import mnist, tu

from . import data_files, mnist_sets, tu_sets
from .doctor import findings
from .tu_sets import TWO, as_tu, zipped

pytestmark = pytest.mark.usefixtures("one_thread")
elsewhere = data_files.elsewhere
packed, arrays, digits = mnist_sets.packed, mnist_sets.arrays, mnist_sets.root
archives, graphs = tu_sets.archives, tu_sets.root


@pytest.fixture
def said(fspool, monkeypatch):
    """What is said of one thing, line by line."""

    def lines(what, root, code=0):
        found = findings(fspool, monkeypatch, "--data", root, code=code)
        return [finding for name, finding in found if name == what]

    return lines


def test_data_that_is_missing_comes_with_the_command_that_gets_it(said, tmp_path):
    root = tmp_path / "my data"
    do = f"fspool data mnist --data '{root}'"
    assert said("MNIST", root) == [("missing", f"4 of 4 files in {root}: {do}")]
    count, do = len(tu.SOURCES), f"fspool data tu --data '{root}'"
    assert said("TU graphs", root) == [("missing", f"{count} of {count} sets in {root}: {do}")]
    do = f"fspool data clevr --scenes 70000 --out '{root}/clevr'"
    assert said("CLEVR", root) == [("missing", f"2 of 2 splits in {root}: {do}")]


# --------------------------------------------------------------------------------------------------
# MNIST


def test_digits_that_are_right(said, digits):
    assert said("MNIST", digits) == [("ok", f"in {digits}, found and verified")]


@pytest.mark.parametrize("whole", [False, True])
def test_every_damaged_file_is_named_with_its_checksums(said, digits, packed, whole):
    first, *_, last = mnist._all()
    for source in (first, last):
        other = mnist_sets.pack(mnist_sets.small_images("test")) if whole else b"\x1f\x8b"
        (digits / "mnist" / source.gz.name).write_bytes(other)
    found = said("MNIST", digits, code=1)
    assert [state for state, _ in found] == ["wrong", "wrong"]
    kind = hashlib.sha256 if whole else hashlib.md5
    for (_, text), source in zip(found, (first, last), strict=True):
        assert text.startswith(f"{digits / 'mnist' / source.gz.name}")
        assert f"{kind.__name__.removeprefix('openssl_')} {kind(other).hexdigest()}" in text
        assert f"expected {source.sha256 if whole else f'md5 {source.gz.checksum}'}" in text
        assert f"fspool data mnist --data {digits}" in text


def test_what_is_missing_is_said_beside_what_is_wrong(said, digits):
    first, second, *_ = mnist._all()
    (digits / "mnist" / first.gz.name).unlink()
    assert [state for state, _ in said("MNIST", digits)] == ["missing"]
    (digits / "mnist" / second.gz.name).write_bytes(b"")
    (wrong, text), (missing, _) = said("MNIST", digits, code=1)
    assert (wrong, missing) == ("wrong", "missing") and second.gz.name in text


# --------------------------------------------------------------------------------------------------
# Graphs


def graphs_line(count, root):
    return "ok", f"{count} of {len(tu.SOURCES)} sets in {root}, found and verified"


def test_archives_as_published_need_not_be_read(said, graphs, monkeypatch):
    (graphs / "tu" / "dataset.zip").unlink()  # the only one without a checksum
    monkeypatch.setattr(tu, "_read", None)
    good, missing = said("TU graphs", graphs)
    assert good == graphs_line(3, graphs)
    assert missing[1] == f"1 of 4 sets in {graphs}: fspool data tu PTC --data {graphs}"


def test_other_files_are_read_where_they_are_small(said, graphs):
    assert said("TU graphs", graphs) == [graphs_line(4, graphs)]  # PTC too
    repack(graphs, TWO)
    assert said("TU graphs", graphs) == [graphs_line(4, graphs)]
    (graphs / "tu" / "MUTAG.zip").unlink()
    data_files.put(as_tu("MUTAG", TWO), graphs / "MUTAG" / "raw")
    assert said("TU graphs", graphs) == [graphs_line(4, graphs)]


def test_large_ones_are_left_to_a_command_that_is_then_believed(said, graphs, monkeypatch, fspool):
    monkeypatch.setattr(tu, "MOMENT", 1)
    repack(graphs, TWO)
    do = f"fspool data tu MUTAG PTC --data {graphs}"
    unknown = ("ok", f"in {graphs}, found, not verified; this does it: {do}")
    assert said("TU graphs", graphs) == [graphs_line(2, graphs), unknown]
    assert fspool(*do.split()[1:])[0] == 0
    assert said("TU graphs", graphs) == [graphs_line(4, graphs)]
    repack(graphs, TWO[::-1])  # of these nothing is kept
    assert unknown[1].replace(" PTC", "") in said("TU graphs", graphs)[1]


def test_wrong_graphs_are_named_with_their_checksums(said, graphs):
    repack(graphs, TWO[:1])
    (state, text), good = said("TU graphs", graphs, code=1)
    assert state == "wrong" and text.startswith(f"{graphs / 'tu' / 'MUTAG.zip'} is not MUTAG")
    assert f"remove it and run fspool data tu MUTAG --data {graphs}; " in text
    assert text.endswith(checksums(graphs)) and good == graphs_line(3, graphs)


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "is not a whole zip archive"),
        (zipped({"a.txt": b""}), "has no MUTAG_graph_indicator.txt; expected one, so"),
    ],
)
def test_broken_archives_come_with_what_to_do(said, graphs, content, why):
    (graphs / "tu" / "MUTAG.zip").write_bytes(content)
    (state, text), _ = said("TU graphs", graphs, code=1)
    assert state == "wrong" and f"{graphs / 'tu' / 'MUTAG.zip'} {why}" in text
    assert f"remove it and fetch it again by fspool data tu MUTAG --data {graphs}; " in text
    assert text.endswith(checksums(graphs))


def repack(root, drawn):
    """MUTAG as somebody else packs it."""
    (root / "tu" / "MUTAG.zip").write_bytes(zipped(as_tu("MUTAG", drawn), "other/"))


def checksums(root):
    found = hashlib.sha256((root / "tu" / "MUTAG.zip").read_bytes()).hexdigest()
    return f"MUTAG.zip has sha256 {found}; expected {tu.SOURCES['MUTAG'].archive.checksum}."


# --------------------------------------------------------------------------------------------------
# CLEVR


def test_scenes_are_left_to_a_command(said, tmp_path):
    for split in ("train", "val"):
        (tmp_path / f"compact-{split}.safetensors").touch()
    do = f"fspool data clevr --data {tmp_path}"
    text = f"in {tmp_path}, found, not verified; this does it: {do}"
    assert said("CLEVR", tmp_path) == [("ok", text)]
