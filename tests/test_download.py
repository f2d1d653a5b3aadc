"""Downloads: resumed, verified, from whichever mirror works."""

import hashlib
import re
import socket
from contextlib import ExitStack

import pytest

from fspool.checks import UserError
from fspool.data import download as module
from fspool.data.download import Wanted, download

from .mirror import Mirror, serve

CONTENT = bytes(range(251)) * 800  # several chunks
SIZE = len(CONTENT)
OTHER = CONTENT[::-1]
MD5 = hashlib.md5(CONTENT).hexdigest()
WANTED = Wanted("a.gz", SIZE, MD5)
UNSIZED = Wanted("a.gz", None, hashlib.sha256(CONTENT).hexdigest())
UNKNOWN = Wanted("a.gz", None, None)


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    """No proxy between the test and its own server, and less patience with it."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(module, "TIMEOUT", 5.0)


@pytest.fixture
def start():
    """Start a server that behaves as described."""
    with ExitStack() as stack:
        yield lambda content=CONTENT, **how: stack.enter_context(
            serve(Mirror({"a.gz": content}, **how))
        )


@pytest.fixture
def fetch(tmp_path):
    """Download from these servers into one folder; ``said`` and ``shown`` come with it."""

    def call(*mirrors, wanted=WANTED):
        urls = [mirror if isinstance(mirror, str) else mirror.url for mirror in mirrors]
        return download(
            wanted, tmp_path / "in", urls, lambda *now: call.shown.append(now), call.said.append
        )

    call.said, call.shown = [], []
    call.part = tmp_path / "in" / "a.gz.part"
    call.part.parent.mkdir()
    return call


@pytest.fixture
def nobody():
    """An address where nothing answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # taken, but nobody listens
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/"


def whole(path):
    """The file is there, right, and alone."""
    return path.read_bytes() == CONTENT and [p.name for p in path.parent.iterdir()] == ["a.gz"]


def nothing(fetch):
    return not list(fetch.part.parent.iterdir())


def test_a_file_arrives_and_is_shown_on_its_way(fetch, start):
    mirror = start()
    assert whole(fetch(mirror)) and mirror.asked == [("a.gz", None)] and fetch.said == []
    names, done, sizes = zip(*fetch.shown, strict=True)
    assert set(names) == {"a.gz"} and set(sizes) == {SIZE}
    assert list(done) == sorted(done) and (done[0], done[-1]) == (0, SIZE) and len(done) > 3


def test_a_folder_is_made_where_there_is_none(tmp_path, start):
    assert whole(download(WANTED, tmp_path / "x" / "y", [start().url]))


# --------------------------------------------------------------------------------------------------
# Cut, and resumed


def test_a_connection_that_is_cut_is_taken_up_again(fetch, start):
    mirror = start(cut=[70_000, 1])
    assert whole(fetch(mirror))
    assert mirror.asked == [("a.gz", None), ("a.gz", 70_000), ("a.gz", 70_001)]


def test_the_rest_of_what_an_earlier_process_began(fetch, start):
    fetch.part.write_bytes(CONTENT[:5000])
    mirror = start()
    assert whole(fetch(mirror)) and mirror.asked == [("a.gz", 5000)]
    assert fetch.shown[0] == ("a.gz", 5000, SIZE)


def test_another_mirror_goes_on_where_the_first_was_cut(fetch, start):
    first, second = start(cut=[70_000, 0]), start()
    assert whole(fetch(first, second)) and second.asked == [("a.gz", 70_000)]


@pytest.mark.parametrize("before", [CONTENT[:5000], OTHER[:5000]])
def test_a_server_that_cannot_resume_begins_again(fetch, start, before):
    fetch.part.write_bytes(before)
    mirror = start(resumes=False)
    assert whole(fetch(mirror)) and mirror.asked == [("a.gz", 5000)] and fetch.said == []


def test_a_server_that_is_cut_and_cannot_resume_is_given_up(fetch, start):
    mirror = start(resumes=False, cut=[70_000] * 9)
    with pytest.raises(UserError, match=f"{mirror.url}: stopped after 70000 of {SIZE} bytes"):
        fetch(mirror)
    assert len(mirror.asked) == 2 and fetch.part.read_bytes() == CONTENT[:70_000]


def test_a_server_that_is_always_cut_is_given_up(fetch, start):
    mirror = start(cut=[1] * 99)
    with pytest.raises(UserError, match="stopped after 20 of"):
        fetch(mirror)
    assert len(mirror.asked) == 20 and fetch.part.read_bytes() == CONTENT[:20]


def test_a_part_that_is_whole_needs_no_server(fetch, nobody):
    fetch.part.write_bytes(CONTENT)
    assert whole(fetch(nobody))


def test_whoever_is_stopped_leaves_a_part_and_no_file(fetch, start, tmp_path):
    def stop(name, done, size):
        if done:
            raise KeyboardInterrupt

    mirror = start()
    with pytest.raises(KeyboardInterrupt):
        download(WANTED, tmp_path / "in", [mirror.url], stop)
    there = fetch.part.stat().st_size
    assert 0 < there < SIZE and [p.name for p in fetch.part.parent.iterdir()] == ["a.gz.part"]
    assert whole(fetch(mirror)) and mirror.asked[1] == ("a.gz", there)


# --------------------------------------------------------------------------------------------------
# Wrong content


def test_another_file_of_the_same_size_is_removed_with_a_word(fetch, start):
    mirror = start(OTHER)
    with pytest.raises(UserError, match=f"{mirror.url}: sends another file"):
        fetch(mirror)
    found = hashlib.md5(OTHER).hexdigest()
    assert fetch.said == [f"{fetch.part} had md5 {found}; expected {MD5}, so it was removed."]
    assert nothing(fetch) and len(mirror.asked) == 1


def test_another_file_by_a_server_that_is_cut_is_fetched_once(fetch, start):
    mirror = start(OTHER, cut=[70_000])
    with pytest.raises(UserError, match="sends another file"):
        fetch(mirror)
    assert nothing(fetch) and len(mirror.asked) == 2


@pytest.mark.parametrize("before", [OTHER[:5000], OTHER, OTHER + b"x"])
def test_a_part_of_something_else_is_removed_and_fetched_afresh(fetch, start, before):
    fetch.part.write_bytes(before)
    mirror = start()
    assert whole(fetch(mirror)) and mirror.asked[-1] == ("a.gz", None)
    assert len(fetch.said) == 1 and "so it was removed" in fetch.said[0]


def test_the_next_mirror_after_another_file(fetch, start):
    first, second = start(OTHER), start()
    assert whole(fetch(first, second)) and second.asked == [("a.gz", None)]


@pytest.mark.parametrize("content", [b"<html>Please log in</html>", CONTENT + b"x", b""])
def test_another_size_does_not_even_touch_the_part(fetch, start, content):
    fetch.part.write_bytes(CONTENT[:5000])
    mirror = start(content, resumes=False)
    with pytest.raises(UserError, match=f"has {len(content)} bytes; expected {SIZE}"):
        fetch(mirror)
    assert fetch.part.read_bytes() == CONTENT[:5000]


def test_more_than_the_file(fetch, start):
    with pytest.raises(UserError, match=f"sends more than {SIZE} bytes"):
        fetch(start(CONTENT + b"x", length=False))
    assert not (fetch.part.parent / "a.gz").exists()


def test_a_server_that_does_not_say_how_much_it_sends(fetch, start):
    assert whole(fetch(start(length=False)))


def test_another_part_than_was_asked_for(fetch, start):
    fetch.part.write_bytes(CONTENT[:5000])
    mirror = start(shift=7)
    with pytest.raises(
        UserError, match=f"sends bytes 5007-{SIZE - 1}/{SIZE} where bytes from 5000"
    ):
        fetch(mirror)
    assert fetch.part.read_bytes() == CONTENT[:5000]


# --------------------------------------------------------------------------------------------------
# Nobody has published the size


def test_the_server_says_the_size(fetch, start):
    mirror = start()
    assert whole(fetch(mirror, wanted=UNSIZED)) and mirror.asked == [("a.gz", None)]
    assert fetch.shown[0] == ("a.gz", 0, None) and fetch.shown[-1] == ("a.gz", SIZE, SIZE)


@pytest.mark.parametrize("wanted", [UNSIZED, UNKNOWN])
def test_a_file_of_unknown_size_is_resumed(fetch, start, wanted):
    fetch.part.write_bytes(CONTENT[:5000])
    mirror = start(cut=[70_000])
    assert whole(fetch(mirror, wanted=wanted))
    assert mirror.asked == [("a.gz", 5000), ("a.gz", 75_000)]


@pytest.mark.parametrize("wanted", [UNSIZED, UNKNOWN])
def test_all_of_a_file_of_unknown_size_is_there(fetch, start, wanted):
    fetch.part.write_bytes(CONTENT)
    mirror = start()
    assert whole(fetch(mirror, wanted=wanted)) and mirror.asked == [("a.gz", SIZE)]


@pytest.mark.parametrize("wanted", [UNSIZED, UNKNOWN])
def test_more_than_all_of_a_file_of_unknown_size_is_fetched_afresh(fetch, start, wanted):
    fetch.part.write_bytes(CONTENT + b"x")
    mirror = start()
    assert whole(fetch(mirror, wanted=wanted))
    assert mirror.asked == [("a.gz", SIZE + 1), ("a.gz", None)] and fetch.said == []


@pytest.mark.parametrize("how", [{}, {"length": False}])
def test_a_wrong_file_of_unknown_size_is_removed_with_a_word(fetch, start, how):
    with pytest.raises(UserError, match="sends another file"):
        fetch(start(OTHER, **how), wanted=UNSIZED)
    found, expected = (hashlib.sha256(content).hexdigest() for content in (OTHER, CONTENT))
    sentence = f"{fetch.part} had sha256 {found}; expected {expected}, so it was removed."
    assert fetch.said == [sentence] and nothing(fetch)


def test_a_part_of_something_else_of_unknown_size_is_fetched_afresh(fetch, start):
    fetch.part.write_bytes(OTHER[:5000])
    mirror = start()
    assert whole(fetch(mirror, wanted=UNSIZED)) and len(fetch.said) == 1
    assert mirror.asked == [("a.gz", 5000), ("a.gz", None)]


@pytest.mark.parametrize("how", [{}, {"length": False}])
def test_nothing_is_not_a_file_of_unknown_size(fetch, start, how):
    with pytest.raises(UserError, match="stopped after 0 of some bytes"):
        fetch(start(b"", **how), wanted=UNKNOWN)
    assert nothing(fetch)


def test_a_server_that_has_no_bytes_at_all(fetch, start):
    with pytest.raises(UserError, match="416 Requested Range Not Satisfiable"):
        fetch(start(status=416), wanted=UNKNOWN)


# --------------------------------------------------------------------------------------------------
# No content


def test_the_second_mirror_after_the_first(fetch, start, nobody):
    for first in (start(status=503), nobody):
        second = start()
        path = fetch(first, second)
        assert whole(path) and second.asked == [("a.gz", None)]
        path.unlink()


def test_no_mirror_works_and_all_are_named(fetch, start, nobody, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    busy, empty, slow = start(status=503), start(), start(stalls=True)
    empty.files.clear()
    with pytest.raises(UserError) as error:
        fetch(busy, empty, slow, nobody, "http://nowhere.invalid/")
    text = str(error.value)
    reasons = re.fullmatch(r"a.gz could not be downloaded \((.*)\); (.*)\.", text)
    assert reasons and reasons[2].endswith(f"or put the file into {fetch.part.parent}")
    expected = [
        f"{busy.url}: 503 Service Unavailable",
        f"{empty.url}: 404 Not Found",
        f"{slow.url}: timed out",
        f"{nobody}: .*Connection refused",
        r"http://nowhere\.invalid/: .*",
    ]
    for found, wanted in zip(reasons[1].split("; "), expected, strict=True):
        assert re.fullmatch(wanted, found), (found, wanted)
    assert nothing(fetch)


def test_a_folder_that_cannot_be_written(fetch, start, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"file cannot take a.gz \(.*\); choose another\."):
        download(WANTED, tmp_path / "file", [start().url])
    fetch.part.mkdir()  # as if the disk were full, only once the first bytes are there
    with pytest.raises(UserError, match=r"in cannot take a.gz \(.*Is a directory.*\)"):
        fetch(start())
