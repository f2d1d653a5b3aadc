"""What ``import fspool`` costs over ``import torch``: ``python -m benchmarks.imports``.

Each measurement is a process of its own, in which torch is imported first. What counts is the
median of its processor time, which is that of the clock where nothing else runs. More than the
budget is an error.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median

BUDGET = 150.0  # milliseconds
ROUNDS = 11
SCRIPT = """
from time import process_time
import numpy, torch
start = process_time()
import fspool
print(1e3 * (process_time() - start))
"""


def measure(rounds: int = ROUNDS) -> list[float]:
    """Milliseconds, after one process that fills the caches of the disk and of Python."""
    command = [sys.executable, "-c", SCRIPT]
    times = [float(subprocess.check_output(command, text=True)) for _ in range(rounds + 1)]
    return sorted(times[1:])


def main() -> None:
    times = measure()
    text = f"import fspool: {median(times):.0f} ms over torch ({times[0]:.0f} to {times[-1]:.0f})"
    print(f"{text}, {BUDGET:.0f} ms allowed")
    if median(times) > BUDGET:
        raise SystemExit("import fspool is too slow; see python -X importtime -c 'import fspool'.")


if __name__ == "__main__":
    main()
