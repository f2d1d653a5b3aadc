"""What makes one vector of the nodes of a graph: the package's own pools, or one of PyG's.

PyG knows of no replicas. Its aggregations are called once for every run, with the weights of that
run, and with the graphs that are there: good for comparison, and not for speed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..checks import nearest
from ..functional import fspool
from ..nn import FSPool, MeanPool, SumPool

OWN = ("fspool", "sum", "mean")
PYG = ("max", "median", "quantile", "sort", "softmax", "attention", "deep-sets", "set-transformer")
READOUTS = OWN + PYG


def make_readout(name: str, width: int, knots: int) -> nn.Module:
    if nearest("pool", name, READOUTS) == "fspool":
        return FSPool(width, knots, init="ones")
    if name in OWN:
        return {"sum": SumPool, "mean": MeanPool}[name]()
    from ..integrations.pyg import make_aggregation  # needs PyG

    return RunByRun(make_aggregation(name, width))


def outputs_of(pool: nn.Module, width: int) -> int:
    """How many numbers it makes of a graph whose nodes have ``width`` of them."""
    if not isinstance(pool, RunByRun):
        return width
    with torch.no_grad():
        nodes = torch.zeros(1, 2, width)
        return read_out(pool, nodes, torch.tensor([[0, 2]])).shape[-1]


class RunByRun(nn.Module):
    """An aggregation of PyG, for one run or for several that are stacked."""

    def __init__(self, aggregation: nn.Module) -> None:
        super().__init__()
        self.aggregation = aggregation
        self.axes = {name: tensor.ndim for name, tensor in self._tensors()}

    def forward(self, x: Tensor, *, offsets: Tensor) -> Tensor:
        """x ``(G, T, D)``, offsets ``(G, B + 1)`` with graphs of no nodes last: zeros for those."""
        return torch.stack([self._one(*given) for given in enumerate(zip(x, offsets, strict=True))])

    def _one(self, run: int, given: tuple[Tensor, Tensor]) -> Tensor:
        nodes, sizes = given[0], given[1].diff()
        there, sizes = len(sizes), sizes[sizes > 0]
        index = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
        y = functional_call(
            self.aggregation,
            self._of_run(run),
            (nodes[: len(index)],),
            {"index": index, "dim_size": len(sizes)},
        )
        return nn.functional.pad(y, (0, 0, 0, there - len(sizes)))

    def _tensors(self) -> list[tuple[str, Tensor]]:
        return [*self.aggregation.named_parameters(), *self.aggregation.named_buffers()]

    def _of_run(self, run: int) -> dict[str, Tensor]:
        return {n: t[run] if t.ndim > self.axes[n] else t for n, t in self._tensors()}


def read_out(pool: nn.Module, x: Tensor, offsets: Tensor, longest: int | None = None) -> Tensor:
    """Pool the nodes of every graph: x ``(G, T, D)`` to ``(G, B, D)``."""
    if not isinstance(pool, FSPool):
        return pool(x, offsets=offsets)
    if pool.weight.ndim == 2:  # of a single run, which G counts too
        return fspool(x, pool.weight.unsqueeze(0), offsets=offsets, longest=longest)
    return pool(x, offsets=offsets, longest=longest)
