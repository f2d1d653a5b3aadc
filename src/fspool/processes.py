"""What every process that works for another one does."""

from __future__ import annotations

import multiprocessing
import os
from threading import Thread


def end_with_parent() -> None:
    """End when the parent does, however that came: nobody is left to work for, and others may want
    what this process holds."""

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()
