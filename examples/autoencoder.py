"""A set auto-encoder by FSPool and FSUnpool: polygons with 3 to 8 corners, through three numbers.

The pool remembers how it sorted, the unpool undoes it: every output stands where its input stood,
and a plain squared error compares them, with nothing to match.

    python examples/autoencoder.py
"""

import torch
from torch import Tensor

from fspool.losses import chamfer
from fspool.models import set_autoencoder
from fspool.sets import sizes_to_mask

LARGEST = 8


def polygons(count: int) -> tuple[Tensor, Tensor]:
    """Regular ones, turned at random, corners in random order ``(count, LARGEST, 2)``; sizes."""
    sizes = torch.randint(3, LARGEST + 1, (count,))
    mask = sizes_to_mask(sizes, LARGEST)
    shuffled = torch.rand(count, LARGEST).masked_fill(~mask, 2).argsort(1).argsort(1)
    angle = 2 * torch.pi * (shuffled / sizes[:, None] + torch.rand(count, 1))
    return torch.stack((angle.cos(), angle.sin()), -1) * mask[..., None], sizes


def main(steps: int = 400) -> tuple[float, float]:
    """The squared error of the first step, and of polygons that come after the last one."""
    torch.manual_seed(0)
    model = set_autoencoder(channels=2, hidden=32, latent=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def error(x: Tensor, sizes: Tensor) -> Tensor:
        mask = sizes_to_mask(sizes, LARGEST)
        return (model(x, sizes=sizes) - x)[mask].square().mean()

    losses = []
    for step in range(1, steps + 1):
        loss = error(*polygons(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step == 1 or step % (steps // 5) == 0:
            print(f"step {step:4}  squared error {losses[-1]:.4f}")
    with torch.no_grad():
        x, sizes = polygons(500)
        last, mask = float(error(x, sizes)), sizes_to_mask(sizes, LARGEST)
        between = float(chamfer(model(x, sizes=sizes), x, mask_a=mask, mask_b=mask).mean())
    print(f"new polygons: squared error {last:.4f}, Chamfer loss {between:.4f}")
    return losses[0], last


if __name__ == "__main__":
    main()
