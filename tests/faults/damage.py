"""What a disk, a cable or a careless hand does to a file."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path


def truncate(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def flip(content: bytes, draw: random.Random) -> bytes:
    """One bit."""
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def blank(content: bytes, draw: random.Random) -> bytes:
    """Zeros for up to a block, as file systems leave them after a power cut."""
    place = draw.randrange(len(content))
    end = min(len(content), place + draw.randint(1, 512))
    return content[:place] + bytes(end - place) + content[end:]


def other(content: bytes, draw: random.Random) -> bytes:
    """Something else of the same length."""
    return draw.randbytes(len(content))


def empty(content: bytes, draw: random.Random) -> bytes:
    return b""


WAYS = (truncate, truncate, flip, flip, blank, other, empty)


def damage(path: Path, draw: random.Random, noticed: Callable[[Path], bool]) -> bool:
    """Until somebody could notice: an upper-case letter in a number, say, changes nothing."""
    good = path.read_bytes()
    for _ in range(100 if good else 0):
        path.write_bytes(draw.choice(WAYS)(good, draw))
        if noticed(path):
            return True
    path.write_bytes(good)
    return False
