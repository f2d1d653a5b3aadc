"""What a benchmark compares: variants of one operator, forward and backward, on the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

KNOTS = 20


@dataclass(frozen=True)
class Inputs:
    """What a variant gets: tensors with gradients, which rows are elements, and dL/d(outputs)."""

    leaves: dict[str, Tensor]
    sets: dict[str, Tensor]
    upstream: tuple[Tensor, ...]

    def map(self, function: Callable[[Tensor], Tensor]) -> Inputs:
        """New inputs, with new leaves, from all floating tensors."""
        leaves = {k: function(v.detach()).requires_grad_() for k, v in self.leaves.items()}
        return Inputs(leaves, self.sets, tuple(map(function, self.upstream)))

    @property
    def nbytes(self) -> int:
        """Bytes of the leaves: what has to be read at least."""
        return sum(leaf.nbytes for leaf in self.leaves.values())

    def forget(self) -> None:
        for leaf in self.leaves.values():
            leaf.grad = None


@dataclass(frozen=True)
class Variant:
    """One way to compute an operator. ``forward(**leaves, **sets)`` gives a tuple of outputs."""

    name: str  # "fspool", its plain form ("plain" or "dense"), "fixed", "compiled", "sum"
    forward: Callable[..., tuple[Tensor, ...]]
    layout: str = "full"

    def step(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Forward and backward, as in training: into .grad, so that a gradient that is only a view
        (that of a sum) is written out as it would be for the layer below."""
        outputs = self.forward(**inputs.leaves, **inputs.sets)
        torch.autograd.backward(outputs, inputs.upstream)
        return outputs


@dataclass(frozen=True)
class Case:
    """The variants that are timed together, at one shape."""

    benchmark: str
    shape: tuple[int, int, int]  # B, D, N
    make: Callable[..., Inputs]  # of shape, layout and a generator
    variants: tuple[Variant, ...]
    reference: Callable[..., tuple[Tensor, ...]]  # the plain definition, for a run in float64
    tolerance: float  # of the package's relative errors
    checked: int | None = None  # how many features the reference can afford; None: all
    brief: bool = False  # a point of a curve: few rounds, no memory, no eager calls

    def draw(self, layout: str, seed: int, device: str = "cpu") -> Inputs:
        """Fresh random inputs, made where they are needed; the same sets for every layout."""
        generator = torch.Generator(device).manual_seed(seed)
        return self.make(self.shape, layout, generator).map(lambda t: t)

    @property
    def title(self) -> str:
        layouts = ", ".join(dict.fromkeys(variant.layout for variant in self.variants))
        return f"{self.benchmark} (B, D, N) = {self.shape}, {layouts}"
