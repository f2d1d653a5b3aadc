"""The linear assignment loss: pair the elements of two sets one to one, as cheaply as possible.

.. math:: L(A, B) = \\frac{1}{n} \\min_{\\pi} \\sum_i c(a_i, b_{\\pi(i)})
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from ..functional.dispatch import fitting, on_device, without_gradient
from ..functional.inputs import exact
from ..layouts import is_traced, transforms
from .pairs import Pairs, read_pairs

SMALL = 32  # elements up to which sets are paired on the device
ALONE = 1 << 10  # costs of a pair of sets below which threads only wait for each other


def assignment(
    a: Tensor,
    b: Tensor,
    *,
    mask_a: Tensor | None = None,
    mask_b: Tensor | None = None,
    cost: str = "squared",
    normalise: str | int = "mean",
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, tuple[Tensor, Tensor]]:
    """Linear assignment ("Hungarian") loss of every pair of sets.

    Sets of different sizes are allowed: all elements of the smaller one are paired. The pairing is
    exact and found on detached costs; the gradient flows through the paired costs.

    Args:
        a: ``(B, N, C)``, more leading axes allowed.
        b: ``(B, M, C)``.
        mask_a: ``(B, N)`` bool, True for elements.
        mask_b: ``(B, M)`` bool.
        cost: ``"squared"`` or ``"huber"``; the cost of a pair is its mean over channels.
        normalise: ``"mean"`` divides by the number of pairs, an integer by itself, ``"sum"`` is the
            paper's formula: plain sums, over channels too.
        return_indices: Also return the paired rows of a and of b, each ``(B, min(N, M))``, with -1
            after the last pair.

    Returns:
        ``(B,)``, in the dtype of a. Two empty sets cost 0.

    Example:
        >>> a, b = torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[1.0], [3.0]]])
        >>> fspool.losses.assignment(a, b)
        tensor([2.5000])

    Sets of at most 32 elements without masks are paired where they are, on CUDA too. Otherwise
    scipy pairs: the costs of the whole batch go to the host in one copy, which waits for the
    device.
    """
    pairs = read_pairs(a, b, mask_a, mask_b, cost, normalise)
    with exact(a):
        rows, columns = match(pairs)
        paired = rows >= 0
        chosen = [
            x.gather(-2, index.clamp(min=0).unsqueeze(-1).expand(*index.shape, x.shape[-1]))
            for x, index in ((pairs.a, rows), (pairs.b, columns))
        ]
        # Where there is no pair both sides are zero, so that nothing of the padding is left.
        chosen = [x.masked_fill(~paired.unsqueeze(-1), 0) for x in chosen]
        total = pairs.aligned(*chosen).sum(-1)
        loss = pairs.divide(total, paired.sum(-1)).to(a.dtype)
    return (loss, (rows, columns)) if return_indices else loss


@torch.no_grad()
def match(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The paired rows of a and b, (..., min(N, M)) each, -1 where there are no more."""
    costs = pairs.matrix(pairs.a, pairs.b).flatten(0, -3)
    masked = any(mask is not None for mask in (pairs.mask_a, pairs.mask_b))
    operator = None if masked else _operator(costs)
    if operator:
        return _match_by(operator, costs, pairs.batch)
    if transforms():
        raise ValueError(
            "a is inside of vmap, grad or another transform, where scipy cannot see it; expected "
            f"no masks, and on CUDA at most {SMALL} elements, so call losses.assignment outside."
        )
    costs = costs.cpu().numpy()
    solve = _solver()
    # Where training has diverged any pairing will do: the loss is NaN, and scipy wants numbers.
    costs = np.nan_to_num(costs.astype(np.float64), nan=0.0)
    masks = [
        None if mask is None else mask.flatten(0, -2).cpu().numpy()
        for mask in (pairs.mask_a, pairs.mask_b)
    ]
    count = min(pairs.a.shape[-2], pairs.b.shape[-2])
    index = np.full((2, len(costs), count), -1)

    def pair(first: int, stop: int) -> None:
        for i in range(first, stop):
            if not masked:
                index[:, i] = solve(costs[i])
                continue
            rows, columns = (
                _rows(mask, i, n) for mask, n in zip(masks, costs.shape[1:], strict=True)
            )
            found = solve(costs[i][rows][:, columns])
            index[0, i, : len(found[0])] = rows[found[0]]
            index[1, i, : len(found[1])] = columns[found[1]]

    threads = torch.get_num_threads()
    if threads < 2 or len(costs) < 2 or costs[0].size < ALONE:
        pair(0, len(costs))
    else:  # scipy lets go of the interpreter lock
        cuts = np.linspace(0, len(costs), threads + 1).astype(int).tolist()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(pair, cuts[:-1], cuts[1:]))
    index = torch.from_numpy(index).to(pairs.a.device).unflatten(1, pairs.batch)
    return index[0], index[1]


def _operator(costs: Tensor) -> Callable | None:
    """Pairs small sets on the device; and sets on the CPU where numpy cannot see them: inside of
    transforms, and while somebody is compiling or exporting."""
    small, plain = max(costs.shape[1:]) <= SMALL, costs.device.type in ("cpu", "meta")
    if small or plain:
        if transforms():
            return without_gradient("assign", costs)
        if costs.is_meta or is_traced(costs):
            return torch.ops.fspool.assign.default if plain else fitting("assign", costs)
    return on_device("assign", costs) if small else None


def _match_by(operator, costs: Tensor, batch: tuple) -> tuple[Tensor, Tensor]:
    """Every row of the smaller set has its partner, in order."""
    short = costs.shape[1] <= costs.shape[2]
    partner = operator(costs if short else costs.mT).unflatten(0, batch)
    own = torch.arange(partner.shape[-1], device=costs.device).expand_as(partner)
    return (own, partner) if short else (partner, own)


def solve(costs: Tensor) -> Tensor:
    """For every row of costs (B, N, M), N at most M, the column that it is paired with, (B, N)."""
    solver, matrices = _solver(), np.nan_to_num(costs.detach().double().numpy(), nan=0.0)
    found = [solver(matrix)[1] for matrix in matrices]
    return torch.from_numpy(np.array(found, np.int64).reshape(costs.shape[:-1]))


def _rows(mask: np.ndarray | None, i: int, n: int) -> np.ndarray:
    return np.arange(n) if mask is None else mask[i].nonzero()[0]


def _solver():
    try:
        from scipy.optimize import linear_sum_assignment
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(
            "losses.assignment needs scipy; pip install '.[lab]' in a clone.", name="scipy"
        ) from missing
    return linear_sum_assignment
