"""Where reports go."""

from __future__ import annotations

from pathlib import Path

from .. import storage
from ..checks import UserError


def save(path: Path | str, text: str) -> None:
    """Whole or not at all; but what is no file, such as a pipe, is written to."""
    path, content = Path(path), text.encode(errors="replace")  # names of files may be of any bytes
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        path = path.resolve()  # a link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write(path, content)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written: {error.strerror}.") from None
