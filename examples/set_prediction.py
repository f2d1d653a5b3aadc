"""A set from a picture, by deep set prediction: where are the dots?

A picture of 16 x 16 pixels has one to four bright dots. A small network makes a vector of it, and
DSPN finds a set that has this vector, by steps down a gradient: no output is the first one.

    python examples/set_prediction.py
"""

import torch
from torch import Tensor, nn

from fspool.losses import assignment
from fspool.models import DSPN, PairEncoder

SIDE, SLOTS, WIDTH = 16, 4, 64


def pictures(count: int) -> tuple[Tensor, Tensor]:
    """Pictures ``(count, SIDE^2)``; their sets ``(count, SLOTS, 3)``: place, and 1 for a dot."""
    mask = (torch.arange(SLOTS) < torch.randint(1, SLOTS + 1, (count, 1)))[..., None].float()
    place = torch.rand(count, SLOTS, 2) * mask
    axis = torch.linspace(0, 1, SIDE)
    along = (-((axis - place[..., None]) ** 2) / 0.01).exp()  # (count, SLOTS, 2, SIDE)
    dots = along[:, :, 0, :, None] * along[:, :, 1, None, :] * mask[..., None]
    return dots.sum(1).flatten(1), torch.cat((place, mask), -1)


class Finder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, WIDTH),
        )  # fmt: skip
        encoder = PairEncoder(channels=3, dim=WIDTH, pool="fspool")
        # For many steps take ImplicitDSPN: its memory does not grow with them.
        self.sets = DSPN(encoder, channels=2, slots=SLOTS, iterations=8)

    def forward(self, x: Tensor) -> Tensor:
        return self.sets(self.look(x))


def main(steps: int = 250) -> tuple[float, float]:
    """The loss of a set that is the same for all pictures, and that of the model in the end."""
    torch.manual_seed(0)
    model = Finder()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        x, true = pictures(32)
        loss = assignment(model(x), true, cost="huber").mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        slower.step()
        if step % (steps // 5) == 0:
            print(f"step {step:4}  assignment loss {float(loss.detach()):.4f}")
    x, true = pictures(500)
    with torch.no_grad():
        found = model(x)
    constant = assignment(true.mean((0, 1)).expand_as(true), true, cost="huber").mean()
    loss = assignment(found, true, cost="huber").mean()
    print(
        f"new pictures: {float(loss):.4f}; the same answer for all of them: {float(constant):.4f}"
    )
    for name, dots in (("dots of one", true[0]), ("      found", found[0])):
        places = sorted(dots[dots[:, 2] > 0.5][:, :2].tolist())
        print(f"{name}:", *(f"({x:.2f}, {y:.2f})" for x, y in places))
    return float(constant), float(loss)


if __name__ == "__main__":
    main()
