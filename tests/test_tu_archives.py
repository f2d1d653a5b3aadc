"""Graph sets in archives, which are read where they lie, and may be broken."""

import re
import struct
import zipfile

import pytest

from fspool.checks import UserError
from fspool.data import integers, tu_files, tu_text
from fspool.data.tu_files import Archive, Folder

from . import data_files
from .data_files import put
from .fuzz.running import limits
from .tu_sets import TWO, Drawn, as_tu, check, graphs_of, zipped

pytestmark = pytest.mark.usefixtures("one_thread")
elsewhere = data_files.elsewhere
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("inside", ["", "X/", "deep/er/"])
def test_archives_are_read_where_they_lie(tmp_path, method, inside):
    others = {"README.txt": b"Read me.", "Y_A.txt": b"nonsense"}
    put({"X.zip": zipped(as_tu("X", TWO) | others, inside, method)}, tmp_path)
    check(graphs_of(Archive(tmp_path / "X.zip"), "X", "label"), TWO, "label")
    assert [path.name for path in tmp_path.iterdir()] == ["X.zip"]


def test_an_archive_that_asks_for_too_much_memory(tmp_path):
    """The size of LZMA's dictionary stands in front of the data: here 4 GB."""
    good = zipped(as_tu("X", TWO), "", zipfile.ZIP_LZMA)
    properties = good.index(bytes([9, 4, 5, 0]))  # a version, and that five bytes follow
    put({"X.zip": good[: properties + 5] + b"\xff" * 4 + good[properties + 9 :]}, tmp_path)
    sentence = r"X\.zip is not a whole zip archive \(MemoryError\)"
    with limits(), pytest.raises(UserError, match=sentence):
        tu_text.read(Archive(tmp_path / "X.zip"), "X", True)


@pytest.mark.parametrize("method", METHODS)
def test_every_broken_archive_is_noticed(tmp_path, method):
    """Whatever was cut or flipped: an error in a sentence, or exactly what was packed."""
    path, small = tmp_path / "X.zip", [Drawn(1, [3], [(0, 0)])]
    files = {name: text for name, text in as_tu("X", small).items() if "node" not in name}
    good = zipped(files, "X/", method)
    broken = [good[:length] for length in range(len(good))]
    broken += [
        good[:i] + bytes([good[i] ^ bit]) + good[i + 1 :]
        for i in range(len(good))
        for bit in (1, 0x80)
    ]
    noticed = 0
    for content in broken:
        path.write_bytes(content)
        try:
            check(graphs_of(Archive(path), "X", "degree"), small, "degree")
        except UserError as error:
            noticed += 1
            assert str(path) in str(error) and str(error).endswith("fetch it again.")
    assert noticed > len(good)  # all that were cut, and many more
    assert list(tmp_path.iterdir()) == [path]


def test_an_archive_that_is_cut(tmp_path):
    path = tmp_path / "X.zip"
    path.write_bytes(zipped(as_tu("X", TWO))[:-30])
    with pytest.raises(UserError) as error:
        tu_text.read(Archive(path), "X", True)
    assert str(error.value) == (
        f"{path} is not a whole zip archive (File is not a zip file); remove it and fetch it again."
    )


@pytest.mark.parametrize(
    "name", ["../X_A.txt", "X/../../X_A.txt", "/etc/X_A.txt", "..\\X_A.txt", "C:\\X_A.txt"]
)
def test_members_outside_the_archive(tmp_path, name):
    put({"X.zip": zipped(as_tu("X", TWO) | {name: b"1, 2\n"})}, tmp_path / "in")
    with pytest.raises(UserError) as error:
        tu_text.read(Archive(tmp_path / "in" / "X.zip"), "X", True)
    assert str(error.value) == (
        f"{tmp_path}/in/X.zip has a member {name!r}; expected paths inside the archive, "
        "so fetch it again."
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["in", "X.zip"]


def test_too_many_members(tmp_path):
    put({"X.zip": zipped(as_tu("X", TWO) | {f"{i}": b"" for i in range(1000)})}, tmp_path)
    with pytest.raises(UserError, match="X.zip has 1004 members; expected at most 1000, so fetch"):
        tu_text.read(Archive(tmp_path / "X.zip"), "X", True)


@pytest.mark.parametrize("packed", [False, True])
def test_a_text_that_is_too_large(tmp_path, packed, monkeypatch):
    monkeypatch.setattr(tu_files, "LARGEST", 100)
    files = as_tu("X", TWO) | {"X_A.txt": b"1, 2\n" * 21}
    put({"X.zip": zipped(files)} if packed else files, tmp_path)
    place = Archive(tmp_path / "X.zip") if packed else Folder(tmp_path)
    sentence = f"{re.escape(place.where('X_A.txt'))} has 105 bytes; expected at most 100, so fetch"
    with pytest.raises(UserError, match=sentence):
        tu_text.read(place, "X", True)
    monkeypatch.setattr(tu_files, "LARGEST", 105)
    assert len(tu_text.read(place, "X", True).edges) == 21


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_bomb_that_lies_about_its_size_is_not_unpacked(tmp_path, method, monkeypatch):
    """Its directory says 30 bytes where there are three million: only so much is looked at."""
    bomb = zipped(as_tu("X", TWO) | {"X_A.txt": b"1, 2\n" * 600_000}, method=method)
    size = struct.pack("<I", 3_000_000)
    assert bomb.count(size) == 2
    put({"X.zip": bomb.replace(size, struct.pack("<I", 30))}, tmp_path)
    seen = []
    parse = integers._parse
    monkeypatch.setattr(
        integers, "_parse", lambda *given: seen.append(len(given[0])) or parse(*given)
    )
    with pytest.raises(UserError, match="X.zip is not a whole zip archive .Bad CRC-32 for file"):
        tu_text.read(Archive(tmp_path / "X.zip"), "X", True)
    assert sum(seen) < 100


@pytest.mark.parametrize("count, sentence", [(0, "has no X_A.txt"), (2, "has 2 X_A.txt")])
def test_a_member_that_is_there_twice_or_not_at_all(tmp_path, count, sentence):
    files = as_tu("X", TWO)
    edges = files.pop("X_A.txt")
    put({"X.zip": zipped(files | {f"{i}/X_A.txt": edges for i in range(count)})}, tmp_path)
    with pytest.raises(UserError, match=f"X.zip {sentence}; expected one, so fetch it again"):
        tu_text.read(Archive(tmp_path / "X.zip"), "X", True)


def test_an_archive_that_is_encrypted(tmp_path):
    content = bytearray(zipped(as_tu("X", TWO)))
    for at in (match.start() for match in re.finditer(b"PK\1\2", bytes(content))):
        content[at + 8] |= 1
    put({"X.zip": bytes(content)}, tmp_path)
    with pytest.raises(UserError, match="X_graph_indicator.txt in .*X.zip is encrypted; fetch it"):
        tu_text.read(Archive(tmp_path / "X.zip"), "X", True)


def test_names_of_members_that_cannot_be_read(tmp_path):
    content = zipped({"ä": b""}).replace("ä".encode(), b"\xff\xff")
    put({"X.zip": content}, tmp_path)
    with pytest.raises(UserError, match="X.zip is not a whole zip archive .*decode"):
        Archive(tmp_path / "X.zip").has("X_A.txt")


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "X.zip").mkdir()
    for call in (lambda archive: archive.has("X"), lambda archive: archive.digest([])):
        with pytest.raises(UserError, match=r"X.zip cannot be read \(Is a directory\); make it"):
            call(Archive(tmp_path / "X.zip"))
    put(as_tu("X", TWO), tmp_path)
    (tmp_path / "X_A.txt").unlink()
    with pytest.raises(UserError, match=f"^{tmp_path} has no X_A.txt; fetch it again"):
        tu_text.read(Folder(tmp_path), "X", True)
    (tmp_path / "X_A.txt").mkdir()
    with pytest.raises(UserError, match=r"X_A.txt cannot be read \(Is a directory\); make it"):
        tu_text.read(Folder(tmp_path), "X", True)
