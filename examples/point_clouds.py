"""A small PointNet with another pool: sphere, cube or cylinder, from points of its surface?

Every cloud has 64 points, turned at random. In some clouds a few points lie anywhere: a maximum
takes what sticks out farthest, so they are what it sees.

    python examples/point_clouds.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fspool import FSPool
from fspool.nn import MaxPool

WIDTH, POINTS = 64, 64
POOLS = {"maximum": MaxPool, "FSPool": lambda: FSPool(WIDTH, knots=10)}


class PointNet(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.pool = pool
        self.classify = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.pool(self.point(x)))


def draw(count: int, strays: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    """Clouds ``(count, POINTS, 3)`` with so many stray points each, and their shapes."""
    kinds = torch.arange(count) % 3
    x = torch.randn(count, POINTS, 3, generator=source)
    flat = x[..., :2] / x[..., :2].norm(dim=-1, keepdim=True)
    height = 2 * torch.rand(count, POINTS, 1, generator=source) - 1
    shapes = torch.stack(
        (
            x / x.norm(dim=-1, keepdim=True),
            x / x.abs().amax(-1, keepdim=True),
            torch.cat((flat, height), -1),
        )
    )
    x = shapes[kinds, torch.arange(count)]
    x = x / x.square().sum(-1).mean(-1).sqrt()[:, None, None]  # all of one size
    turn = torch.linalg.qr(torch.randn(count, 3, 3, generator=source)).Q
    x = x @ turn
    x[:, :strays] = 3 * (2 * torch.rand(count, strays, 3, generator=source) - 1)
    return x, kinds


@torch.no_grad()
def accuracy(model: PointNet, strays: int, source: torch.Generator) -> float:
    x, kinds = draw(3000, strays, source)
    return float((model(x).argmax(-1) == kinds).float().mean())


def main(steps: int = 400) -> dict[str, dict[int, float]]:
    found = {}
    for name, make in POOLS.items():
        torch.manual_seed(0)
        source = torch.Generator().manual_seed(0)
        model = PointNet(make())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
        slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for step in range(steps):
            x, kinds = draw(48, 8 * (step % 2), source)
            loss = F.cross_entropy(model(x), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            slower.step()
        found[name] = {strays: accuracy(model, strays, source) for strays in (0, 8)}
        print(f"{name:8} {found[name][0]:.1%} right, with 8 stray points {found[name][8]:.1%}")
    return found


if __name__ == "__main__":
    main()
