"""Deep Sets with another pool: are these numbers normal or uniform?

A set has 5 to 30 numbers, of mean 0 and variance 1 either way. The network is that of Deep Sets: an
MLP on every element, a pool, an MLP on the vector. Only the pool is replaced.

    python examples/deep_sets.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fspool import FSPool
from fspool.nn import MeanPool, SumPool

WIDTH, LARGEST = 32, 30
POOLS = {"sum": SumPool, "mean": MeanPool, "FSPool": lambda: FSPool(WIDTH, knots=10)}


class DeepSets(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.element = nn.Sequential(nn.Linear(1, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.pool = pool
        self.classify = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))

    def forward(self, x: Tensor, sizes: Tensor) -> Tensor:
        return self.classify(self.pool(self.element(x), sizes=sizes))


def draw(count: int, source: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sets in slots of the same length, elements first; their sizes; their kinds."""
    kinds = torch.randint(2, (count,), generator=source)
    sizes = torch.randint(5, LARGEST + 1, (count,), generator=source)
    normal = torch.randn(count, LARGEST, 1, generator=source)
    uniform = (torch.rand(count, LARGEST, 1, generator=source) - 0.5) * 12**0.5
    return torch.where(kinds[:, None, None] == 1, uniform, normal), sizes, kinds


def train(pool: nn.Module, steps: int) -> float:
    """The share of new sets that are told right."""
    source = torch.Generator().manual_seed(0)
    model = DeepSets(pool)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for _ in range(steps):
        x, sizes, kinds = draw(64, source)
        loss = F.cross_entropy(model(x, sizes), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x, sizes, kinds = draw(4000, source)
        return float((model(x, sizes).argmax(-1) == kinds).float().mean())


def main(steps: int = 400) -> dict[str, float]:
    found = {}
    for name, make in POOLS.items():
        torch.manual_seed(0)
        found[name] = train(make(), steps)
        print(f"{name:7} {found[name]:.1%} right")
    return found


if __name__ == "__main__":
    main()
