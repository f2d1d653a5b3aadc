"""Files that are whole or not there, and damage that is noticed."""

import errno
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch

from fspool import storage
from fspool.storage import Damaged

JSON = {"step": 3, "loss": [0.1, -2.5e-8], "name": 'ü " \\', "none": None, "yes": True, "in": {}}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --------------------------------------------------------------------------------------------------
# All or nothing


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch, call, error
):
    def fail(*_):
        raise error

    path = tmp_path / "a.json"
    storage.write(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, call, fail)
        with pytest.raises(type(error)):
            storage.write(path, b"new")
    assert names(tmp_path) == ["a.json"] and path.read_bytes() == b"old"
    storage.write(path, b"new")
    assert names(tmp_path) == ["a.json"] and path.read_bytes() == b"new"


def test_the_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    events = []
    for call in ("fsync", "replace"):
        real = getattr(os, call)

        def record(*arguments, call=call, real=real):
            events.append(call)
            return real(*arguments)

        monkeypatch.setattr(storage.os, call, record)
    storage.write(tmp_path / "a", b"content")
    assert events == ["fsync", "replace", "fsync"]  # the file, its name, the folder


FILL = """
import os, sys
from pathlib import Path
from fspool import storage
path = Path(sys.argv[1]) / "a"
storage.write(path, b"old")
try:
    storage.write(path, bytes(1 << 20))
except OSError as error:
    print(error.strerror, os.listdir(path.parent), path.read_bytes())
"""
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\n"


def test_a_disk_that_is_full(tmp_path):
    """A file system of 64 KiB where one can be mounted, a limit on files of as much elsewhere."""
    own = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=64k none {tmp_path} && "$@"', "-"]
    if (
        shutil.which("unshare")
        and subprocess.run([*own, "true"], capture_output=True).returncode == 0
    ):
        before, script, reason = own, FILL, "No space left on device"
    else:
        before, script, reason = [], LIMIT + FILL, "File too large"
    command = [*before, sys.executable, "-c", script, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.stdout == f"{reason} ['a'] b'old'\n", result.stderr


# --------------------------------------------------------------------------------------------------
# There and back


def test_json_comes_back(tmp_path):
    path = tmp_path / "a.json"
    storage.write_json(path, JSON)
    assert storage.read_json(path) == JSON


def test_numbers_that_json_does_not_have_become_null(tmp_path):
    path = tmp_path / "a.json"
    storage.write_json(path, {"a": [math.nan, {"b": (math.inf, -math.inf)}], 1: 2.0})
    assert storage.read_json(path) == {"a": [None, {"b": [None, None]}], "1": 2.0}
    assert b"NaN" not in path.read_bytes() and b"Infinity" not in path.read_bytes()


def test_tensors_come_back_to_the_bit(tmp_path):
    tensors = {
        "float32": torch.tensor([[1.5, math.nan], [-math.inf, -0.0]]),
        "float64": torch.randn(2, 3, dtype=torch.float64),
        "bfloat16": torch.randn(5).bfloat16(),
        "half": torch.randn(3).half(),
        "int64": torch.tensor([[-(2**63), 2**63 - 1]]),
        "uint8": torch.arange(4, dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "scalar": torch.tensor(3.25),
        "empty": torch.zeros(0, 3),
        "transposed": torch.randn(2, 3).T,
        "parameter": torch.nn.Parameter(torch.randn(2)),
    }
    notes = {"step": 7, "curve": [{"loss": [0.1, math.nan]}]}
    path = tmp_path / "a.safetensors"
    storage.write_tensors(path, tensors, notes)
    got, found = storage.read_tensors(path)
    assert found == {"step": 7, "curve": [{"loss": [0.1, None]}]}
    assert got.keys() == tensors.keys()
    for name, value in tensors.items():
        torch.testing.assert_close(got[name], value.detach(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got["float32"].signbit(), tensors["float32"].signbit())


def test_no_tensors_and_tensors_that_share_memory(tmp_path):
    path, x = tmp_path / "a.safetensors", torch.arange(6.0)
    storage.write_tensors(path, {})
    assert storage.read_tensors(path) == ({}, {})
    storage.write_tensors(path, {"all": x, "again": x, "part": x[2:4]})
    got, _ = storage.read_tensors(path)
    assert torch.equal(got["again"], x) and torch.equal(got["part"], x[2:4])


# --------------------------------------------------------------------------------------------------
# Damage


def small_json(path):
    storage.write_json(path, {"seeds": [0, 1], "loss": 0.25, "a": None})


def small_tensors(path):
    tensors = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([True, False]).view(2, 1)}
    storage.write_tensors(path, tensors, {"step": 64})


def shown(content):
    """Of JSON, or of tensors and notes, whose order in a file means nothing."""
    return repr(content if isinstance(content, dict) else (sorted(content[0].items()), content[1]))


def damaged_or_harmless(path, content, reader, expected):
    path.write_bytes(content)
    try:
        got = reader(path)
    except Damaged:
        return True
    assert shown(got) == expected, content
    return False


readers = pytest.mark.parametrize(
    "make, reader",
    [(small_json, storage.read_json), (small_tensors, storage.read_tensors)],
    ids=["json", "tensors"],
)


@readers
def test_every_flipped_byte_is_noticed_or_harmless(tmp_path, make, reader):
    path = tmp_path / "a"
    make(path)
    good, expected, noticed, tried = path.read_bytes(), shown(reader(path)), 0, 0
    for place in range(len(good)):
        for change in (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF, good[place]):
            bad = bytearray(good)
            bad[place] ^= change
            noticed += damaged_or_harmless(path, bytes(bad), reader, expected)
            tried += 1
    assert noticed > 0.9 * tried  # the rest is white space, or upper case in a number


@readers
def test_every_truncation_is_noticed_or_harmless(tmp_path, make, reader):
    path = tmp_path / "a"
    make(path)
    good, expected = path.read_bytes(), shown(reader(path))
    noticed = [
        damaged_or_harmless(path, good[:length], reader, expected) for length in range(len(good))
    ]
    assert all(noticed[:-1])  # without its last newline a JSON file is still whole


@readers
@pytest.mark.parametrize("content", [b"{}", b"[]", b"null", b'{"a": 1}', b"\0" * 64, b"\xff" * 64])
def test_other_files_are_damaged_and_the_error_names_them(tmp_path, make, reader, content):
    path = tmp_path / "name"
    for text in (content, len(content).to_bytes(8, "little") + content):
        path.write_bytes(text)
        with pytest.raises(Damaged, match=str(path)):
            reader(path)


def test_the_files_of_a_good_writer_do_not_pass_for_one_another(tmp_path):
    path = tmp_path / "a"
    small_json(path)
    with pytest.raises(Damaged):
        storage.read_tensors(path)
    small_tensors(path)
    with pytest.raises(Damaged):
        storage.read_json(path)


def test_what_is_set_aside_never_overwrites(tmp_path):
    path = tmp_path / "a.json"
    for number in range(3):
        path.write_text(str(number))
        assert storage.set_aside(path).name == f"a.json.damaged-{number}"
        assert not path.exists()
    assert [(tmp_path / f"a.json.damaged-{i}").read_text() for i in range(3)] == ["0", "1", "2"]


def test_reading_sets_a_damaged_file_aside_and_says_so(tmp_path):
    path, said = tmp_path / "a.json", []
    assert storage.read_or_set_aside(path, storage.read_json, said.append) is None and not said
    storage.write_json(path, JSON)
    assert storage.read_or_set_aside(path, storage.read_json, said.append) == JSON and not said
    path.write_text("{")
    assert storage.read_or_set_aside(path, storage.read_json, said.append) is None
    assert len(said) == 1 and said[0].startswith(f"{path} is not JSON")
    assert said[0].endswith("; it is now a.json.damaged-0.") and names(tmp_path) == [
        "a.json.damaged-0"
    ]


def test_the_same_tensors_are_the_same_bytes(tmp_path):
    """The library alone would put its two notes in either order."""
    contents = set()
    for _ in range(30):
        small_tensors(tmp_path / "a")
        contents.add((tmp_path / "a").read_bytes())
    assert len(contents) == 1
