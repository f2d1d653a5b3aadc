"""A few broken files for every reader; `make fuzz` has as many as one likes."""

from functools import cache

import pytest

from .fuzz.readers import begun, compact_file, readers, reported
from .fuzz.running import Hang, fuzz, limits, try_one
from .tu_sets import TWO, as_tu

EXAMPLES = {
    "idx": 40,
    "TU text": 40,
    "GIN text": 40,
    "TU archives": 40,
    "CLEVR records": 30,
    "CLEVR scenes": 30,
    "CLEVR questions": 30,
    "CLEVR pictures": 30,
    "CLEVR compact form": 30,
    "MNIST sets": 30,
    "TU graphs": 30,
    "JSON files": 40,
    "safetensors files": 40,
    "run folders to go on": 4,
    "plans": 30,
    "run folders, tables": 6,
    "run folders, page": 3,
    "results, tables": 30,
    "results, page": 10,
}


@cache
def known():
    return {reader.name: reader for reader in readers()}


def test_every_reader_has_examples():
    assert list(known()) == list(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.usefixtures("one_thread")
def test_a_valid_value_or_a_sentence(name):
    tried, _ = fuzz(known()[name], EXAMPLES[name], seed=0)
    assert tried >= EXAMPLES[name] - 1


def test_a_valid_file_is_accepted():
    """Or else the examples would say little."""
    assert try_one(known()["TU text"], as_tu("X", TWO))
    assert try_one(known()["results, tables"], {"a.json": compact_file()})
    assert try_one(known()["run folders to go on"], begun())
    assert try_one(known()["run folders, tables"], reported())


def test_too_much_memory_and_too_much_time_are_noticed(monkeypatch):
    with pytest.raises(MemoryError), limits():
        bytearray(4 << 30)
    monkeypatch.setattr("tests.fuzz.running.SECONDS", 1)
    with pytest.raises(Hang), limits():
        while True:
            pass
