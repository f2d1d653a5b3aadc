"""Relative errors against a float64 run of the plain definition: max |t - t64| / max |t64|.

The package puts ties in the order of their positions, and so does the reference. The plain forms
leave them to ``torch.sort``: where float32 inputs have ties, their gradients differ there.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .case import Case, Inputs, Variant

SEED = 1 << 20  # inputs that no timed round uses


class Errors(NamedTuple):
    """The largest relative error among the outputs, and among the gradients."""

    values: float
    gradients: float


def check(case: Case, device: str = "cpu") -> dict[Variant, Errors]:
    """The errors of every variant that computes the operator; stops where the package is wrong.

    What the compiler of torch cannot do here is left out.
    """
    found = {}
    for variant in case.variants:
        try:
            if variant.name != "sum":
                found[variant] = errors(case, variant, device)
        except Exception as problem:
            if variant.name != "compiled":
                raise
            print(f"compiled, {variant.layout}: {type(problem).__name__}: {problem}", flush=True)
    for variant, error in found.items():
        if variant.name == "fspool" and not max(error) <= case.tolerance:  # NaN fails too
            raise SystemExit(
                f"{case.title}: {variant.layout} relative error {error.values:.1e} of values, "
                f"{error.gradients:.1e} of gradients; expected at most {case.tolerance:.0e}."
            )
    return found


def errors(case: Case, variant: Variant, device: str = "cpu") -> Errors:
    inputs = case.draw(variant.layout, SEED, device)
    outputs = variant.step(inputs)
    exact = _features(inputs, case.checked).map(Tensor.double)
    expected = Variant("reference", case.reference).step(exact)
    gradients = [(leaf.grad, exact.leaves[name].grad) for name, leaf in inputs.leaves.items()]
    return Errors(_largest(zip(outputs, expected, strict=True)), _largest(gradients))


def _largest(pairs) -> float:
    return max(relative_error(_like(found, expected), expected) for found, expected in pairs)


def relative_error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


# Every feature is pooled on its own, so a few of them can be checked without the others. They are
# the last axis everywhere but in weights (D, k).


def _features(inputs: Inputs, count: int | None) -> Inputs:
    def first(name: str, t: Tensor) -> Tensor:
        return t[:count] if name.startswith("weight") else t[..., :count]

    leaves = {name: first(name, leaf) for name, leaf in inputs.leaves.items()}
    return Inputs(leaves, inputs.sets, tuple(t[..., :count] for t in inputs.upstream))


def _like(found: Tensor, expected: Tensor) -> Tensor:
    return found[tuple(slice(n) for n in expected.shape)]
