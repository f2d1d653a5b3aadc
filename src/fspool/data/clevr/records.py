"""Records of a large JSON file one after another, so that only few of them are in memory.

A file is an object, and the records are the list under one of its keys. Python's reader wants a
whole text, so it is given a piece; where it fails it is given more.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from ...checks import UserError

GZIP = b"\x1f\x8b"
PIECE = 1 << 20  # characters that are read at once
LARGEST = 1 << 24  # characters of one record; those of v1.0 have a few thousand
SPACE = " \t\n\r"
FOLLOWS = set(",:]}" + SPACE)  # a value

_decode = json.JSONDecoder().raw_decode


def records(path: Path, key: str) -> Iterator[dict]:
    """The records of a file, compressed with gzip or not; its first bytes decide."""
    try:
        with open(path, "rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            with gzip.open(raw) if packed else raw as content:
                text = io.TextIOWrapper(content, encoding="utf-8")
                yield from _Reader(path, key, text).records()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path} is not a whole gzip file ({error}); remove it and fetch it again."
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text ({error.reason}); fetch it again.") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}); make it readable, or fetch it "
            "again."
        ) from None


@contextmanager
def in_record(path: Path, kind: str, number: int) -> Iterator[None]:
    """An error says in which record of which file it is."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}, {kind} {number}: {error}") from None


class _Reader:
    """A piece of a text, and a place in it."""

    def __init__(self, path: Path, key: str, text: TextIO) -> None:
        self.path, self.key, self.text = path, key, text
        self.piece, self.at = "", 0
        self.count: int | None = None  # of the records so far, once they have begun

    def records(self) -> Iterator[dict]:
        self._expect("{", "an object")
        while True:
            name = self._value()
            self._expect(":", "a colon")
            if name == self.key:
                break
            self._value()
            if self._next(",}", "a comma or the end") == "}":
                raise self._wrong(f"has no list of {self.key}", f"{{..., {self.key!r}: [...]}}")
        self._expect("[", f"a list of {self.key}")
        yield from self._list()
        while self._next(",}", "a comma or the end") == ",":  # it has to be whole
            self._value()
            self._expect(":", "a colon")
            self._value()
        if self._look():
            raise self._wrong("goes on after its end", "one object")

    def _list(self) -> Iterator[dict]:
        self.count = 0
        if self._look() == "]":
            self.at += 1
            return
        while True:
            record = self._value()
            if not isinstance(record, dict):
                raise self._wrong(f"has {str(record)[:40]!r}", "an object")
            yield record
            self.count += 1
            if self._next(",]", "a comma or the end of the list") == "]":
                self.count = None
                return

    def _value(self) -> object:
        """The next value. It is whole if something follows; a number may go on in what is not."""
        self._look()
        while True:
            try:
                value, end = _decode(self.piece, self.at)
                damage = ""
            except (ValueError, RecursionError) as error:
                value, end, damage = None, self.at, str(error).partition(":")[0]
            if not damage and self.piece[end : end + 1] in FOLLOWS:
                break
            if len(self.piece) - self.at > LARGEST or not self._more():
                break
        if damage:
            raise self._wrong(f"is cut off or damaged ({damage})", "whole JSON")
        self.at = end
        return value

    def _look(self) -> str:
        """The next character that is not space; nothing at the end."""
        for _ in range(LARGEST // PIECE):
            while self.at < len(self.piece) and self.piece[self.at] in SPACE:
                self.at += 1
            if self.at < len(self.piece):
                return self.piece[self.at]
            if not self._more():
                return ""
        raise self._wrong(f"has {LARGEST} characters of space", "whole JSON")

    def _more(self) -> bool:
        """Drop what was read, and add a piece if there is one."""
        new = self.text.read(PIECE)
        if new:
            self.piece, self.at = self.piece[self.at :] + new, 0
        return bool(new)

    def _next(self, valid: str, meaning: str) -> str:
        found = self._look()
        if not found or found not in valid:
            what = "ends too early" if not found else f"has {self.piece[self.at :][:20]!r}"
            raise self._wrong(what, meaning)
        self.at += 1
        return found

    def _expect(self, character: str, meaning: str) -> None:
        self._next(character, meaning)

    def _wrong(self, found: str, expected: str) -> UserError:
        where = "" if self.count is None else f", record {self.count} of {self.key},"
        return UserError(f"{self.path}{where} {found}; expected {expected}, so fetch it again.")
