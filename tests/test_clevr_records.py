"""CLEVR's JSON, read as a stream."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fspool.checks import UserError
from fspool.data.clevr import (
    records,
)

from . import clevr

pytestmark = pytest.mark.usefixtures("one_thread")
elsewhere, root = clevr.elsewhere, clevr.root
ZIPPED = gzip.compress(b'{"things": []}', mtime=0)  # the name of a test must not hold the time


def stream(path, content, key="things"):
    path.write_bytes(content)
    return list(records.records(path, key))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=3), values, max_size=3)


@given(st.lists(objects, max_size=5), objects, objects, st.integers(1, 40), st.booleans())
def test_records_come_one_after_another(tmp_path, items, before, after, piece, packed):
    before.pop("things", None), after.pop("things", None)
    text = json.dumps({**before, "things": items, **after}, indent=piece % 3 or None).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE", piece)
        content = gzip.compress(text) if packed else text
        assert stream(tmp_path / "a.json", content) == items


def test_a_file_that_was_cut_off_is_noticed_wherever_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "PIECE", 16)
    text = json.dumps({"info": [1, {"a": 2.5}], "things": [{"a": "b"}, {"c": 3}], "x": 1}).encode()
    assert len(stream(tmp_path / "a.json", text)) == 2
    for size in range(len(text)):
        with pytest.raises(UserError, match=r"a\.json.*; expected .*, so fetch it again\.$"):
            stream(tmp_path / "a.json", text[:size])


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"", " ends too early; expected an object"),
        (b"[]", " has '[]'; expected an object"),
        (b"<html>", " has '<html>'; expected an object"),
        (b'{"info": {}}', " has no list of things; expected {..., 'things': [...]}"),
        (b'{"things": 3}', " has '3}'; expected a list of things"),
        (b'{"things": [{}, 7]}', ", record 1 of things, has '7'; expected an object"),
        (b'{"things": [{}, {"a": tru}]}', ", record 1 of things, is cut off or damaged ("),
        (b'{"things": [{} {}]}', ", record 1 of things, has '{}]}'; expected a comma or the end"),
        (b'{"things": [{}]} {}', " goes on after its end; expected one object"),
        (b'{"things": [{}], 5', " has '5'"),
    ],
)
def test_foreign_json_is_named(tmp_path, content, sentence):
    path = tmp_path / "a.json"
    with pytest.raises(UserError) as error:
        stream(path, content)
    if sentence != " has '5'":
        assert str(error.value).startswith(f"{path}{sentence}")
    assert str(error.value).endswith(", so fetch it again.")


def test_only_little_of_a_file_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "PIECE", 100)
    monkeypatch.setattr(records, "LARGEST", 1000)
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"things": [{"a": i} for i in range(1000)]}))
    with open(path, encoding="utf-8") as text:
        reader = records._Reader(path, "things", text)
        sizes = [len(reader.piece) for _ in reader.records()]
    assert len(sizes) == 1000 and max(sizes) < 300
    path.write_text('{"things": [{"a": "' + "x" * 5000)
    with open(path, encoding="utf-8") as text:
        with pytest.raises(UserError, match="record 0 of things, is cut off or damaged"):
            list(records._Reader(path, "things", text).records())
        assert text.tell() < 1500  # it does not read to the end of what is no record


@pytest.mark.parametrize(
    "content, sentence",
    [
        (ZIPPED[:-3], "is not a whole gzip file (.*); remove it and"),
        (ZIPPED[:-8] + bytes(8), "is not a whole gzip file"),
        (b'{"things": [{"a": "\xff"}]}', "is not text (invalid start byte); fetch it again"),
    ],
)
def test_broken_bytes_are_named(tmp_path, content, sentence):
    with pytest.raises(UserError, match=sentence.replace("(", r"\(").replace(")", r"\)").replace(
        r"\(.*\)", ".*"
    )):  # fmt: skip
        stream(tmp_path / "a.json", content)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="cannot be read .*directory.*; make it readable, or fetch"):
        list(records.records(tmp_path, "things"))
    with pytest.raises(UserError, match=r"no\.json cannot be read \(No such file"):
        list(records.records(tmp_path / "no.json", "things"))
