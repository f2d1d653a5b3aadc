"""Files that are whole or not there: atomic writes, checksums, and damaged files set aside."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

KEY = "sha256"
# Of dtypes that torch cannot look at byte by byte it says so in a RuntimeError.
UNREADABLE = (SafetensorError, ValueError, KeyError, TypeError, RecursionError, RuntimeError)


class Damaged(Exception):
    """A file that is there but does not hold what was written."""


def write(path: Path, content: bytes) -> None:
    """Replace a file as a whole: whoever is killed or runs out of disk here leaves the old one."""
    part = part_of(path)
    try:
        part.write_bytes(content)
        give_name(part, path)
    finally:
        part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """Where a file is written until it is whole: no other process does, of any machine."""
    return path.with_name(f".{path.name}.{platform.node()}-{os.getpid()}.part")


def give_name(part: Path, path: Path) -> None:
    """Rename a file that is whole, once its content is on the disk."""
    with open(part, "r+b") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name survives a power cut too
    finally:
        os.close(folder)


def write_json(path: Path, data: dict) -> None:
    """With a checksum of its content; numbers that JSON does not have become null."""
    data = plain(data)
    write(path, (json.dumps({**data, KEY: digest(data)}, indent=1) + "\n").encode())


def read_json(path: Path) -> dict:
    """What :func:`write_json` wrote, or :class:`Damaged`."""
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict) or data.pop(KEY, None) != digest(data):
            raise Damaged(f"{path} does not match its checksum")
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is not JSON: {error}") from None
    return data


def write_tensors(path: Path, tensors: dict[str, Tensor], notes: dict | None = None) -> None:
    """Tensors by name with a note in JSON, in safetensors format with a checksum."""
    form = torch.contiguous_format  # copies: safetensors does not take tensors that share memory
    tensors = {name: t.detach().cpu().clone(memory_format=form) for name, t in tensors.items()}
    text = json.dumps(plain(notes or {}))
    write(path, _ordered(save(tensors, {"notes": text, KEY: _digest_tensors(tensors, text)})))


def _ordered(content: bytes) -> bytes:
    """The library puts its notes in random order; what is equal shall be so byte by byte."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # tensors begin at multiples of 8
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict]:
    """What :func:`write_tensors` wrote, or :class:`Damaged`."""
    content = path.read_bytes()
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])["__metadata__"]
        tensors, text, wanted = load(content), header["notes"], header[KEY]
        notes, found = json.loads(text), _digest_tensors(tensors, text)
    except UNREADABLE as error:
        raise Damaged(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if wanted != found or not isinstance(notes, dict):
        raise Damaged(f"{path} does not match its checksum")
    return tensors, notes


def set_aside(path: Path) -> Path:
    """Rename a damaged file out of the way, never over another one."""
    count = 0
    while (aside := path.with_name(f"{path.name}.damaged-{count}")).exists():
        count += 1
    path.rename(aside)
    return aside


def read_or_set_aside(path: Path, reader: Callable[[Path], object], say: Callable[[str], None]):
    """The content of a file, or None where there is none or it was damaged and set aside."""
    if not path.exists():
        return None
    try:
        return reader(path)
    except Damaged as damage:
        say(f"{damage}; it is now {set_aside(path).name}.")
        return None


def plain(value):
    """Only what JSON has; null for the numbers that it has not."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def digest(data: dict) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _digest_tensors(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
