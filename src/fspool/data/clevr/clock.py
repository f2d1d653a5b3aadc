"""Where the time goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Clock(Counter):
    """Seconds by what they were used for; clocks can be added."""

    @contextmanager
    def on(self, purpose: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self[purpose] += time.perf_counter() - start
