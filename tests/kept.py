"""What is kept beside data: whatever becomes of the file, the data comes out right.

``load`` loads what is kept in ``path`` and checks it; what it is called with takes what is said.
"""

import pytest
import torch

from fspool import storage


def flip(path, good):
    path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])


def swap(path, good):
    """For the other file that is kept there."""
    (other,) = set(path.parent.glob("*.safetensors")) - {path}
    other.rename(path)


def empty_of_most(path, good):
    """One tensor of those that there were, under the same notes."""
    tensors, notes = storage.read_tensors(path)
    storage.write_tensors(path, {min(tensors): torch.zeros(2)}, notes)


SPOILS = {
    "cut": lambda path, good: path.write_bytes(good[:-1]),
    "header": lambda path, good: path.write_bytes(good[:40]),
    "empty": lambda path, good: path.write_bytes(b""),
    "flipped": flip,
    "text": lambda path, good: path.write_text("something else"),
    "foreign": lambda path, good: storage.write_tensors(path, {"a": torch.zeros(2)}),
    "another": swap,
    "other-tensors": empty_of_most,
}
every_spoil = pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)


def is_set_aside_and_made_again(path, load, spoil):
    said = []
    spoil(path, path.read_bytes())
    spoilt = path.read_bytes()
    load(said.append)
    aside = path.with_name(f"{path.name}.damaged-0")
    assert len(said) == 1 and said[0].startswith(f"{path} ")
    assert said[0].endswith(f"; it is now {aside.name}.") and aside.read_bytes() == spoilt
    storage.read_tensors(path)  # whole again
    load(said.append)
    assert len(said) == 1


every_failure = pytest.mark.parametrize(
    "call, error",
    [(call, e) for call in ("fsync", "replace") for e in (OSError("full"), KeyboardInterrupt())],
)


def leaves_nothing_where_it_cannot_be_written(path, load, monkeypatch, call, error):
    def fail(*_):
        raise error

    before = sorted(path.parent.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(storage.os, call, fail)
        if isinstance(error, OSError):  # the data is there all the same
            load()
        else:
            with pytest.raises(KeyboardInterrupt):
                load()
    assert sorted(path.parent.iterdir()) == before
    load()
    assert sorted(path.parent.iterdir()) == sorted([*before, path])


def does_not_count_before_it_has_its_name(path, load):
    """As a process leaves it that is killed while it writes."""
    load()
    path.rename(path.with_name(f".{path.name}.1.part"))
    load()
    assert path.exists()
