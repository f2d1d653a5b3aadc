"""Files from the web: mirrors in turn, resumed where they were cut, named only once they are right.

What has arrived lies in ``NAME.part``. Size and checksum say what a file is, so every mirror can
go on with what another one began, in this process or a later one. Where nobody has published the
size, the server says it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from ..checks import UserError
from ..storage import give_name

TIMEOUT = 30.0  # seconds in which a server has to say something
TRIES = 20  # connections to one server that may be cut, as long as each brings something
CHUNK = 1 << 16

Progress = Callable[[str, int, int | None], None]  # name, bytes so far, bytes in all if known


class Wanted(NamedTuple):
    """A file by its content; None where nobody has published it."""

    name: str
    size: int | None
    checksum: str | None  # md5 or sha256, in hexadecimal

    def fault(self, path: Path) -> str | None:
        """What is wrong with a file, if its checksum is."""
        if self.checksum is None:
            return None
        kind = "md5" if len(self.checksum) == 32 else "sha256"
        with open(path, "rb") as file:
            new = partial(hashlib.new, kind, usedforsecurity=False)
            found = hashlib.file_digest(file, new).hexdigest()
        return None if found == self.checksum else f"{kind} {found}; expected {self.checksum}"


class Unfit(Exception):
    """A mirror that cannot be reached, or does not send the file."""


def download(
    wanted: Wanted,
    folder: Path,
    mirrors: Sequence[str],
    progress: Progress = lambda *_: None,
    say: Callable[[str], None] = print,
) -> Path:
    """Fetch a file into a folder; mirrors are addresses that end with a slash."""
    transfer = Transfer(wanted, folder / wanted.name, progress, say)
    reasons = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for mirror in mirrors:
            try:
                return transfer.run(mirror + wanted.name)
            except Unfit as error:
                reasons.append(f"{mirror}: {error}")
    except OSError as error:  # of the network there are none: they are Unfit
        raise UserError(f"{folder} cannot take {wanted.name} ({error}); choose another.") from None
    raise UserError(
        f"{wanted.name} could not be downloaded ({'; '.join(reasons)}); "
        f"connect to the internet, or put the file into {folder}."
    )


@dataclass
class Transfer:
    """One file on its way to a path."""

    wanted: Wanted
    path: Path
    progress: Progress
    say: Callable[[str], None]

    @property
    def part(self) -> Path:
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return self.part.stat().st_size if self.part.exists() else 0

    def run(self, url: str) -> Path:
        """Fetch what is left; afresh if what was there before turns out to be wrong."""
        fresh = not self.size
        while not self._finish(url):
            if fresh:
                raise Unfit("sends another file")
            fresh = True
        return self.path

    def _finish(self, url: str) -> bool:
        """Whether all bytes, once they are there, are the right ones; wrong ones are removed."""
        if self.wanted.size is None or self.size < self.wanted.size:
            self._fill(url)
        fault = self.wanted.fault(self.part)
        if fault is None:
            give_name(self.part, self.path)
            return True
        self.part.unlink()
        self.say(f"{self.part} had {fault}, so it was removed.")
        return False

    def _fill(self, url: str) -> None:
        """Connect until all bytes are there, or a connection brings nothing new."""
        for _ in range(TRIES):
            before = self.size
            try:
                return self._connect(url, before)
            except Unfit as error:
                reason = error
                if self.size <= before:
                    break
        raise reason

    def _connect(self, url: str, start: int) -> None:
        self.progress(self.wanted.name, start, self.wanted.size)
        with closing(_receive(url, start, self.wanted.size)) as chunks:
            for place, chunk, size in chunks:
                with open(self.part, "ab") as file:
                    file.truncate(place)  # a server that cannot resume begins at 0
                    file.write(chunk)
                self.progress(self.wanted.name, place + len(chunk), size)


def _receive(url: str, start: int, size: int | None) -> Iterator[tuple[int, bytes, int | None]]:
    """Bytes, their places in the file, and its size; whatever goes wrong on the way is Unfit."""
    headers = {"User-Agent": "fspool"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as answer:
            place, size = _place(answer, start, size)
            while chunk := answer.read1(CHUNK):
                if size is not None and place + len(chunk) > size:
                    raise Unfit(f"sends more than {size} bytes")
                yield place, chunk, size
                place += len(chunk)
    except HTTPError as error:
        error.close()
        if size is None and start and error.code == 416:  # there is nothing from there on
            if error.headers.get("Content-Range") != f"bytes */{start}":
                yield from _receive(url, 0, None)  # nor is what is there a part of it
            return
        raise Unfit(f"{error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise Unfit(str(reason) or type(reason).__name__) from None
    if place < (size or 1):  # http.client is silent about it
        raise Unfit(f"stopped after {place} of {size or 'some'} bytes")


def _place(answer: HTTPResponse, start: int, size: int | None) -> tuple[int, int | None]:
    """Where in the file an answer begins, and the size of the file if one of us knows it.

    Login pages and the like are recognised by their size.
    """
    given = answer.headers.get("Content-Range", "")
    if answer.status == 206 and not given.startswith(f"bytes {start}-"):
        raise Unfit(f"sends {given or 'some part'} where bytes from {start} on were asked for")
    place = start if answer.status == 206 else 0
    if answer.length is None:
        return place, size
    if size not in (None, place + answer.length):
        raise Unfit(f"has {place + answer.length} bytes; expected {size}")
    return place, place + answer.length
