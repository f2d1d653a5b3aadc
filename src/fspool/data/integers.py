"""Text files with a few integers a line, such as ``3, 17``: millions of lines in a second or two.

The text is looked at as an array of bytes, a piece at a time, and every line is checked. Nothing
that numpy reads itself is as strict: a line too short would shift all numbers after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from ..checks import UserError

PIECE = 1 << 20  # bytes that are parsed at a time; they stay in the cache
STEP = 1 << 14  # bytes that are asked for at a time; a small request limits what can unpack at once
DIGITS = 18  # more may not fit into 64 bits
ALPHABET = b"0123456789-, \t\r\n"
NEWLINE, COMMA, MINUS, ZERO = b"\n,-0"


def read(stream: BinaryIO, columns: int, where: str) -> np.ndarray:
    """The numbers of a file, int64 ``(lines, columns)``; ``where`` names it in errors."""
    pieces, lines = [], 0
    for text in _pieces(stream, where):
        numbers = _parse(text, columns)
        if numbers is None:
            raise _bad_line(text, columns, where, lines)
        lines += len(numbers)
        pieces.append(numbers)
    if not pieces:
        raise UserError(f"{where} is empty; expected {_form(columns)} a line, so fetch it again.")
    return np.concatenate(pieces)


def _pieces(stream: BinaryIO, where: str) -> Iterator[bytes]:
    """Whole lines; what is blank at the end of the file is left out."""
    rest = bytearray()
    while chunk := stream.read(STEP):
        rest += chunk
        if len(rest) >= PIECE:
            if not (cut := rest.rstrip().rfind(b"\n") + 1):
                raise UserError(f"{where} has {PIECE} bytes without a line; fetch it again.")
            yield bytes(rest[:cut])
            del rest[:cut]
    if text := bytes(rest.rstrip()):
        yield text + b"\n"


def _parse(text: bytes, columns: int) -> np.ndarray | None:
    """The numbers of some lines; None if there is anything else in any of them."""
    if text.translate(None, ALPHABET):
        return None
    text = np.frombuffer(b"\n" + text, np.uint8)
    inside = text > COMMA  # a digit or a minus
    turns = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    starts, ends = turns[::2], turns[1::2]
    marks = np.flatnonzero((text == NEWLINE) | (text == COMMA))
    if not _fit(text[marks], columns, len(starts)):
        return None
    if (starts < marks[:-1]).any() or (ends > marks[1:]).any():  # two numbers, then none
        return None
    negative = text[starts] == MINUS
    if np.count_nonzero(text == MINUS) != np.count_nonzero(negative):
        return None
    numbers = _numbers(text, starts + negative, ends)
    if numbers is None:
        return None
    return np.where(negative, -numbers, numbers).reshape(-1, columns)


def _fit(marks: np.ndarray, columns: int, count: int) -> bool:
    """Whether newlines and commas, a newline before them all, part so many numbers as they should.

    ``marks`` are the bytes themselves.
    """
    if len(marks) != count + 1 or count % columns:
        return False
    newlines = marks == NEWLINE
    return newlines[::columns].all() and np.count_nonzero(newlines) == count // columns + 1


def _numbers(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray | None:
    """The numbers whose digits lie there; None if one has none, or too many."""
    lengths = ends - starts
    if lengths.min() < 1 or lengths.max() > DIGITS:
        return None
    numbers = np.zeros(len(starts), np.int64)
    for place in range(lengths.max()):
        digits = text[ends - 1 - place] - np.uint8(ZERO)
        digits[lengths <= place] = 0
        numbers += digits * np.int64(10**place)
    return numbers


def _bad_line(text: bytes, columns: int, where: str, before: int) -> UserError:
    """The first line of the text that is not as it should be."""
    lines = text.split(b"\n")[:-1]

    def bad(index: int) -> bool:
        return _parse(b"\n".join(lines[: index + 1]) + b"\n", columns) is None

    index = bisect_left(range(len(lines)), True, key=bad)
    return UserError(
        f"{where} has {quoted(lines[index])} in line {before + index + 1}; "
        f"expected {_form(columns)}, so fetch it again."
    )


def quoted(line: bytes) -> str:
    """A line, or its beginning, for an error."""
    text = line[:80].decode(errors="replace").strip()
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _form(columns: int) -> str:
    return "an integer" if columns == 1 else f"{columns} integers with commas between them"
