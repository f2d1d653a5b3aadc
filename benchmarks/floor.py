"""The read-once floor: no kernel can be done before it has read its inputs once.

The bytes of the inputs over the bandwidth of the device, measured in the same run: the better of
a sum of a large tensor (which only reads) and a copy of it (bytes read plus bytes written).
"""

from __future__ import annotations

from functools import cache
from statistics import median

import torch

from .case import Case
from .replays import clock

COUNT = 1 << 29  # floats: 2 GiB, many times the cache


def seconds(case: Case) -> dict[str, float]:
    """The floor of every layout."""
    layouts = dict.fromkeys(variant.layout for variant in case.variants)
    return {layout: case.draw(layout, 0, "cuda").nbytes / bandwidth() for layout in layouts}


@cache
def bandwidth() -> float:
    """Bytes per second."""
    x, y = torch.rand(COUNT, device="cuda"), torch.empty(COUNT, device="cuda")
    ways = {x.sum: x.nbytes, lambda: y.copy_(x): 2 * x.nbytes}
    found = max(moved / median(clock(go, 4) for _ in range(7)) for go, moved in ways.items())
    print(f"bandwidth of the memory: {found / 1e12:.2f} TB/s", flush=True)
    return found
