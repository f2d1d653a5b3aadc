"""The command fspool in several processes of one training."""

import os
import subprocess
import sys


def torchrun(processes, *arguments):
    """As torchrun starts them."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", "fspool", *arguments]
    return subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, timeout=300
    )
