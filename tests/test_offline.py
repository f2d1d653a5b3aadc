"""Every Triton kernel compiles for a GPU, also where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize(
    "stem",
    [
        "pool",
        "relaxed_sort",
        "chamfer",
        "assignment",
        "rays",
        "recurrence",
        "lstm",
        "neighbours",
        "perceptron",
        "row_norm",
        "normed_layers",
        "draws",
        "graph_batches",
    ],
)
def test_kernels_compile_for_a_gpu(stem, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    here = Path(__file__).parent.parent
    subprocess.run(
        [sys.executable, "-m", "tests.offline", stem], env=environment, cwd=here, check=True
    )
    assert list(tmp_path.rglob("*.cubin"))
