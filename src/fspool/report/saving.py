"""Where reports go."""

from __future__ import annotations

from pathlib import Path

from .. import storage
from ..checks import UserError


def save(path: Path | str, text: str) -> None:
    """Whole or not at all."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write(path, text.encode(errors="replace"))  # names of files may be of any bytes
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written: {error.strerror}.") from None
