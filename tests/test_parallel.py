"""Two processes of one training: this one is the first, and starts the other."""

import os
import socket
import subprocess
import sys

import pytest
import torch

from fspool.lab import parallel

CPU = torch.device("cpu")
OTHER = """
import sys, torch
from fspool.lab import parallel
with parallel.joined(torch.device("cpu")) as device:
    assert parallel.team() == (1, 2)
    tensors = [torch.full((2, 2), 10.0), torch.full((3,), 20.0)]
    parallel.add_up(tensors)
    assert tensors[0].eq(11).all() and tensors[1].eq(22).all()
    turned = torch.zeros(3, 2).T
    parallel.make_same([turned])
    assert turned.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert parallel.agreed("nothing") == {"cells": ["a", "ä"], "step": None}
    found = parallel.first_then_others(lambda: open(sys.argv[1]).read())
    assert found == "made", found
"""


@pytest.fixture
def other(tmp_path, monkeypatch):
    """The second process, which waits for the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    for name, value in (shared | {"RANK": "0", "LOCAL_RANK": "0"}).items():
        monkeypatch.setenv(name, value)
    environment = os.environ | {"RANK": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OTHER, str(tmp_path / "file")]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_what_two_processes_share(other, tmp_path):
    def make():
        (tmp_path / "file").write_text("made")
        return "made here"

    with parallel.joined(CPU) as device:
        assert device == CPU and parallel.team() == (0, 2)
        tensors = [torch.full((2, 2), 1.0), torch.full((3,), 2.0)]
        parallel.add_up(tensors)
        assert tensors[0].eq(11).all() and tensors[1].eq(22).all()
        parallel.add_up([])
        given = torch.arange(6.0).view(2, 3)
        parallel.make_same([given])
        assert given.flatten().tolist() == [0, 1, 2, 3, 4, 5]
        said = {"cells": ["a", "ä"], "step": None}
        assert parallel.agreed(said) == said
        assert parallel.first_then_others(make) == "made here"
    _, errors = other.communicate(timeout=60)
    assert other.returncode == 0, errors
    assert parallel.team() == (0, 1)


def test_alone_nothing_is_shared():
    tensors = [torch.ones(2)]
    with parallel.joined(CPU) as device:
        parallel.add_up(tensors)
        parallel.make_same(tensors)
        assert device == CPU and parallel.agreed([1]) == [1]
    assert tensors[0].tolist() == [1, 1]
