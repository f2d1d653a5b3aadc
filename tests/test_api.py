"""The public interface: as it is written down, on the API page, and cheap to import."""

import difflib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")

ROOT = Path(__file__).parent.parent
API = runpy.run_path(str(ROOT / "tools" / "api.py"))


def test_the_interface_is_the_one_that_is_written_down():
    kept, now = (ROOT / "tests" / "api.txt").read_text().splitlines(), [*API["surface"]()]
    changes = "\n".join(difflib.unified_diff(kept, now, "tests/api.txt", "now", lineterm="", n=0))
    assert not changes, (
        f"the public interface has changed:\n{changes}\n"
        "If that is meant, say so in CHANGELOG.md, and: python tools/api.py > tests/api.txt"
    )


def test_a_change_is_seen():
    def before(x: int, *, kind: str = "a") -> None: ...

    assert API["signature"](before) == "(x: int, *, kind: str = 'a') -> None"

    class Thing:
        __module__ = "fspool.made_up"

        def method(self, x: "list[int]") -> None: ...

        @property
        def size(self) -> int: ...

        @classmethod
        def read(cls, path: str) -> None: ...

        def _private(self) -> None: ...

    assert [*API["described"]("a.Thing", Thing)] == [
        "a.Thing()",
        "a.Thing.method(self, x: list[int]) -> None",
        "a.Thing.read(cls, path: str) -> None",
        "a.Thing.size (property)",
    ]


def test_every_public_name_is_on_the_page_of_the_api():
    page = (ROOT / "docs" / "api.md").read_text()
    shown = set(re.findall(r"auto(?:class|function):: ([\w.]+)", page))
    shown = {name.rpartition(".")[2] for name in shown}
    public = {line.partition("(")[0].strip() for line in API["surface"]() if "(module)" not in line}
    public = {name for name in public if name.startswith("fspool.")}
    classes = {name for name in public if name.rpartition(".")[2][0].isupper()}
    methods = {name for name in public if any(name.startswith(f"{kind}.") for kind in classes)}
    internal = {"place", "make_aggregation"}  # for experiments of the package
    missing = {name.rpartition(".")[2].partition(":")[0] for name in public - methods} - shown
    assert missing <= internal


# --------------------------------------------------------------------------------------------------
# What an import costs. A clock would tell another story on every machine; modules are counted.

MOST = 80  # of our own; each is a file to find and to read
HEAVY = (  # what takes long to import, or is an extra; torch's own parts that it leaves for later
    *("torch._dynamo", "torch._inductor", "torch.onnx", "torch.distributed.tensor", "sympy"),
    *("triton", "scipy", "matplotlib", "torch_geometric", "safetensors", "typer", "rich", "ray"),
)


def imported(statement):
    """The modules that come with it, beyond those of torch and numpy."""
    script = (
        "import sys, torch, numpy; before = set(sys.modules);"
        f"{statement}; print(*sorted(set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return out.stdout.split()


def test_an_import_is_light():
    modules = imported("import fspool")
    assert [name for name in modules if name.startswith(HEAVY)] == []
    assert {name.partition(".")[0] for name in modules} == {"fspool"}
    assert len(modules) <= MOST
    rooms = ("lab", "experiments", "report", "cli", "integrations", "kernels.cuda")
    assert not [name for name in modules if name.startswith(tuple(f"fspool.{r}" for r in rooms))]


def test_the_measure_sees_what_is_heavy():
    assert "scipy" in imported("import fspool, scipy")
