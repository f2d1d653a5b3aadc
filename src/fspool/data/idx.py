"""Arrays of unsigned bytes in the idx format of MNIST, compressed with gzip or not.

Four bytes of magic (two zeros, the type code, the number of dimensions), then every dimension as
a big-endian uint32, then the entries.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import zlib
from pathlib import Path

import numpy as np

from ..checks import UserError

GZIP = b"\x1f\x8b"
LARGEST = 1 << 26  # bytes that a file may unpack to; the largest of MNIST has 47 million
UBYTE = 0x08  # the only type code that is read


def content(path: Path) -> bytes:
    """What is in a file, decompressed; its first bytes decide, since browsers unzip some files."""
    try:
        raw = path.read_bytes()
        if not raw.startswith(GZIP):
            return raw
        with gzip.open(path) as file:
            data = file.read(LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path}, with md5 {hashlib.md5(raw).hexdigest()}, is not a whole gzip file ({error}); "
            "remove it and fetch it again."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); make it readable, or fetch it again."
        ) from None
    if len(data) > LARGEST:
        raise _wrong(path, f"unpacks to more than {LARGEST} bytes", "fewer")
    return data


def parse(data: bytes, dimensions: int, path: Path) -> np.ndarray:
    """The array of an idx file; the path is for the errors."""
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise _wrong(path, f"has {len(data)} bytes", f"a header of {start}")
    if data[:2] != b"\0\0":
        raise _wrong(path, f"begins with 0x{data[:4].hex()}", "0x0000, as every idx file")
    if data[2] != UBYTE:
        raise _wrong(path, f"has type code 0x{data[2]:02x}", f"0x{UBYTE:02x}, unsigned bytes")
    if data[3] != dimensions:
        raise _wrong(path, f"has {data[3]} dimensions", f"{dimensions}")
    shape = [int(size) for size in np.frombuffer(data[4:start], ">u4")]
    if len(data) != start + math.prod(shape):
        sizes = " x ".join(map(str, shape))
        raise _wrong(
            path, f"has {len(data)} bytes", f"{start + math.prod(shape)} for {sizes} entries"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _wrong(path: Path, found: str, expected: str) -> UserError:
    return UserError(f"{path} {found}; expected {expected}, so fetch it again.")
