import importlib
import os
import sys

import hypothesis
import pytest
import torch

from fspool.functional import dispatch

# Without a GPU the Triton kernels run in Triton's interpreter, on CPU tensors. It has to be said
# before a kernel is defined, that is before anything of fspool.kernels.cuda is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# Speed is measured in benchmarks, so no deadline; the same examples every time, so no surprises.
hypothesis.settings.register_profile(
    "fspool",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[
        hypothesis.HealthCheck.differing_executors,  # the battery is inherited
        hypothesis.HealthCheck.function_scoped_fixture,  # the fixtures below do not vary
    ],
)
hypothesis.settings.load_profile("fspool")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
    torch.compiler.reset()  # no test inherits another one's compiled code


@pytest.fixture
def definition(monkeypatch):
    """Run everything by the definitions, as if no operator were registered."""
    monkeypatch.setattr(dispatch, "_operators", {})


@pytest.fixture
def walking(monkeypatch):
    """Use the banded relaxed sort for small sets too."""
    relaxed = importlib.import_module("fspool.functional.relaxed_sort")
    monkeypatch.setattr(relaxed, "SMALL", -1)


@pytest.fixture
def one_thread(monkeypatch):
    """Here and in processes: with a test on every core, threads would wait for one another."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fspool(monkeypatch, capsys):
    """Type a command; its exit code, what it printed, and its errors."""

    from fspool import cli

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["fspool", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (ended.value.code or 0, *capsys.readouterr())

    return command
