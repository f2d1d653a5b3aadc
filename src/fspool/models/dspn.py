"""Deep set prediction: which set has this vector? Found by gradient steps through a set encoder.

An image encoder makes a vector z of a picture. The set starts as a learned one and takes T steps
down the gradient of a distance between its own vector and z (Zhang et al., 2019). The steps are
part of the model: :class:`DSPN` is trained through all of them, :class:`ImplicitDSPN` (Zhang et
al., 2022) only at the last one, so that its memory does not grow with T.

Sets are ``(B, N, c + 1)``; the last channel is the mask, 1 for elements. All works with a replica
axis in front too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from ..checks import check_count
from ..layouts import transforms
from .set_encoder import PairEncoder

RATE, BATCH = 800.0, 32  # of the released code: a rate for the mean over a batch of so many


class DSPN(nn.Module):
    """Vectors ``(B, dim)`` to sets ``(B, slots, channels + 1)``, by gradient steps.

    Args:
        encoder: Of sets with ``channels + 1`` channels.
        rate: Of a step. The distance is the mean over features and the sum over the batch, so that
            a step does not depend on the other sets of a batch; 800 / 32 is what the original does
            in batches of 32.
        original: Take the mean over the batch with rate 800, as the original does.
    """

    def __init__(
        self,
        encoder: PairEncoder,
        channels: int,
        slots: int = 10,
        *,
        iterations: int = 10,
        rate: float = RATE / BATCH,
        original: bool = False,
    ) -> None:
        super().__init__()
        self.slots = check_count("slots", slots, 1, "elements of the largest set")
        self.iterations = check_count("iterations", iterations, 1, "steps")
        self.encoder, self.rate, self.original = encoder, rate, original
        self.start = nn.Parameter(torch.rand(slots, channels))
        self.start_mask = nn.Parameter(torch.full((slots, 1), 0.5))

    def forward(self, z: Tensor, noise: Tensor | None = None) -> Tensor:
        """The set after the last step. ``noise`` is for :class:`ImplicitDSPN`."""
        return self.descend(z, {self.iterations})[0]

    def descend(
        self, z: Tensor, wanted: Collection[int], noise: Tensor | None = None
    ) -> list[Tensor]:
        """The sets after so many steps, of each number that is wanted; 0 is the start."""
        x = torch.cat((self.start, self.start_mask.clamp(0, 1)), -1).unsqueeze(-3)
        x = x.expand(*z.shape[:-1], *x.shape[-2:])
        rate = RATE / z.shape[-2] if self.original else self.rate
        found = [x] if 0 in wanted else []
        for step in range(1, max(wanted, default=0) + 1):
            x = x - rate * self.slope(x, z)
            x = torch.cat((x[..., :-1], x[..., -1:].clamp(0, 1)), -1)
            if step in wanted:
                found.append(x)
        return found

    def slope(self, x: Tensor, z: Tensor) -> Tensor:
        """The gradient to the set of the Huber distance, sum over sets and mean over features."""
        y, seen = self.encoder.encode(x)
        return self.encoder.vjp((y - z).clamp(-1, 1) / z.shape[-1], seen)


class ImplicitDSPN(nn.Module):
    """DSPN that is differentiated where it ends, not along the way: the default for new models.

    The set minimises half the squared distance of vectors, mean over features. At a minimum its
    gradient is zero whatever the weights are, which says how the minimum moves with them: by the
    inverse Hessian times the mixed derivative. Here the inverse is replaced by the identity, which
    leaves one vector-Jacobian product; ``exact=True`` solves for it by conjugate gradients.

    Args:
        rate: Of a step, the largest one where steps are adaptive.
        momentum: Nesterov's, in the inner steps.
        adaptive: Take shorter steps where the gradient changes fast, by what it changed along the
            way so far: training makes the objective steeper, and a fixed rate leaves its minima in
            the end.
        clip: How far a set moves in a step at most, but for its momentum.
        learned: Start from a learned set, and keep near it (``keep`` times half the squared
            distance); else from 0.1 times the noise that is given.
        damping: Added to the Hessian by the exact solver.
    """

    def __init__(
        self,
        encoder: PairEncoder,
        channels: int,
        slots: int = 10,
        *,
        iterations: int = 20,
        rate: float = 1.0,
        momentum: float = 0.9,
        clip: float = 10.0,
        adaptive: bool = True,
        learned: bool = False,
        keep: float = 0.1,
        exact: bool = False,
        damping: float = 1e-6,
        solver_steps: int = 50,
    ) -> None:
        super().__init__()
        self.slots = check_count("slots", slots, 1, "elements of the largest set")
        self.iterations = check_count("iterations", iterations, 1, "steps")
        self.encoder, self.channels = encoder, channels
        self.rate, self.momentum, self.clip, self.adaptive = rate, momentum, clip, adaptive
        self.learned, self.keep = learned, keep if learned else 0.0
        self.exact, self.damping, self.solver_steps = exact, damping, solver_steps
        if learned:
            self.start = nn.Parameter(0.1 * torch.randn(slots, channels + 1))

    def forward(self, z: Tensor, noise: Tensor | None = None) -> Tensor:
        """The set after the last step; ``noise (B, slots, channels + 1)`` where none is learned."""
        found = self.descend(z, {self.iterations}, noise)[0]
        if not torch.is_grad_enabled():
            return found
        return self.implicit(found, z)

    def implicit(self, found: Tensor, z: Tensor) -> Tensor:
        """A set that was found, with the gradient of the minimum that it is taken for."""
        found = found.detach()
        slope = self.slope(found, z)
        result = found - (slope - slope.detach())
        if self.exact:
            if transforms():
                raise ValueError(
                    "exact is True, and z is inside of vmap, grad or another transform, which the "
                    "solver cannot see through; expected exact=False there."
                )
            result = _Solved.apply(result, self._solver(found, z.detach()))
        return result

    @torch.no_grad()
    def descend(
        self, z: Tensor, wanted: Collection[int], noise: Tensor | None = None
    ) -> list[Tensor]:
        """The sets after so many steps, of each number that is wanted; 0 is the start."""
        x = self._start(z, noise)
        speed, steep, before = torch.zeros_like(x), 0.0, None
        found = [x] if 0 in wanted else []
        for step in range(1, max(wanted, default=0) + 1):
            slope = self.slope(x, z)
            if self.adaptive and before is not None:
                turn = _norm(slope - before[1]) / _norm(x - before[0]).clamp(min=1e-12)
                steep = torch.maximum(turn, steep * torch.ones_like(turn))
            before = x, slope
            move = slope / (1 / self.rate + steep)
            move = move * (self.clip / _norm(move).clamp(min=self.clip))
            speed = self.momentum * speed + move
            x = x - (move + self.momentum * speed)
            if step in wanted:
                found.append(x)
        return found

    def slope(self, x: Tensor, z: Tensor) -> Tensor:
        """The gradient of the inner objective to the set."""
        y, seen = self.encoder.encode(x)
        slope = self.encoder.vjp((y - z) / z.shape[-1], seen)
        return slope + self.keep * (x - self.start.unsqueeze(-3)) if self.learned else slope

    def _start(self, z: Tensor, noise: Tensor | None) -> Tensor:
        if self.learned:
            start = self.start.unsqueeze(-3)
            return start.expand(*z.shape[:-1], *start.shape[-2:])
        shape = (*z.shape[:-1], self.slots, self.channels + 1)
        if noise is None:
            noise = torch.randn(shape, dtype=z.dtype, device=z.device)
        if noise.shape != shape:
            raise ValueError(f"noise has shape {tuple(noise.shape)}; expected {shape}.")
        return 0.1 * noise

    def _solver(self, x: Tensor, z: Tensor) -> Callable[[Tensor], Tensor]:
        """Solves (Hessian + damping) u = v, set by set, by conjugate gradients."""

        def product(u: Tensor) -> Tensor:
            with torch.enable_grad():
                at = x.detach().requires_grad_()
                (hessian,) = torch.autograd.grad(self.slope(at, z), at, u)
            return hessian + self.damping * u

        return lambda v: conjugate_gradients(product, v, self.solver_steps)


def _norm(x: Tensor) -> Tensor:
    """Of every set, (..., 1, 1)."""
    return x.flatten(-2).norm(dim=-1)[..., None, None]


class _Solved(torch.autograd.Function):
    """The same value; its gradient goes through a solver, which has no gradient itself."""

    @staticmethod
    def forward(ctx, x: Tensor, solve: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.solve = solve
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():
            raise ValueError(
                "a gradient of the gradient was asked for (create_graph=True), which exact=True "
                "does not have; expected exact=False there."
            )
        return ctx.solve(g), None


@torch.no_grad()
def conjugate_gradients(product: Callable[[Tensor], Tensor], v: Tensor, steps: int) -> Tensor:
    """u with product(u) = v for sets (..., N, C), each on its own; product is symmetric."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((-1, -2), keepdim=True)

    u, rest = torch.zeros_like(v), v.clone()
    along, size = rest, dot(rest, rest)
    tiny = torch.finfo(v.dtype).tiny
    for _ in range(steps):
        image = product(along)
        far = size / dot(along, image).clamp(min=tiny)
        u, rest = u + far * along, rest - far * image
        before, size = size, dot(rest, rest)
        along = rest + size / before.clamp(min=tiny) * along
    return u
