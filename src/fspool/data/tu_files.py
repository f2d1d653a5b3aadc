"""The text files of a graph set, in a folder or in a zip archive.

An archive is never unpacked: its members are read where they lie, and only so much of them as the
archive says there is.
"""

from __future__ import annotations

import hashlib
import lzma
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from ..checks import UserError

MEMBERS = 1000  # the largest archive that is read has some 200
LARGEST = 1 << 30  # bytes of a text; the largest has 363 million
BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    UnicodeDecodeError,
    MemoryError,  # a broken LZMA header asks for gigabytes
)


@dataclass(frozen=True)
class Folder:
    """Text files that lie side by side."""

    path: Path

    @property
    def folder(self) -> Path:
        """Where there is room for what is made of them."""
        return self.path

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def where(self, name: str) -> str:
        """The file, for an error."""
        return str(self.path / name)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        path = self.path / name
        try:
            with open(path, "rb") as file:
                if path.stat().st_size > LARGEST:
                    raise _too_large(str(path), path.stat().st_size)
                yield file
        except FileNotFoundError:
            raise UserError(f"{self.path} has no {name}; fetch it again.") from None
        except OSError as error:
            raise _unreadable(path, error) from None

    def size(self, names: Iterable[str]) -> int:
        """Bytes of text in those files."""
        return sum((self.path / name).stat().st_size for name in names)

    def digest(self, names: Iterable[str]) -> str:
        """A checksum of those files."""
        digests = []
        for name in names:
            with self.open(name) as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()


@dataclass(frozen=True)
class Archive:
    """A zip archive with those files, in whatever folder in it."""

    path: Path

    @property
    def folder(self) -> Path:
        return self.path.parent

    def has(self, name: str) -> bool:
        with self._opened() as archive:
            return bool(self._members(archive, name))

    def where(self, name: str) -> str:
        return f"{name} in {self.path}"

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with self._opened() as archive:
            members = self._members(archive, name)
            if len(members) != 1:
                count = "no" if not members else str(len(members))
                raise UserError(f"{self.path} has {count} {name}; expected one, so fetch it again.")
            if members[0].file_size > LARGEST:
                raise _too_large(self.where(name), members[0].file_size)
            if members[0].flag_bits & 1:
                raise UserError(f"{self.where(name)} is encrypted; fetch it again.")
            with archive.open(members[0]) as file:
                yield file

    def size(self, names: Iterable[str]) -> int:
        """Bytes of text in those files, as the archive says."""
        with self._opened() as archive:
            return sum(m.file_size for name in names for m in self._members(archive, name))

    def digest(self, names: Iterable[str]) -> str:
        """A checksum of the archive, whatever is asked for."""
        try:
            with open(self.path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(self.path, error) from None

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self.path) as archive:
                yield archive
        except BROKEN as error:
            raise UserError(
                f"{self.path} is not a whole zip archive ({str(error) or type(error).__name__}); "
                "remove it and fetch it again."
            ) from None
        except OSError as error:
            raise _unreadable(self.path, error) from None

    def _members(self, archive: zipfile.ZipFile, name: str) -> list[zipfile.ZipInfo]:
        """Those of that name; whoever made an archive with odd ones cannot be trusted at all."""
        members = archive.infolist()
        if len(members) > MEMBERS:
            raise UserError(
                f"{self.path} has {len(members)} members; expected at most {MEMBERS}, "
                "so fetch it again."
            )
        for member in members:
            path = PurePosixPath(member.filename.replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or ":" in member.filename:
                raise UserError(
                    f"{self.path} has a member {member.filename!r}; expected paths inside the "
                    "archive, so fetch it again."
                )
        return [member for member in members if PurePosixPath(member.filename).name == name]


def _too_large(where: str, size: int) -> UserError:
    return UserError(f"{where} has {size} bytes; expected at most {LARGEST}, so fetch it again.")


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path} cannot be read ({error.strerror or error}); make it readable, or fetch it again."
    )
