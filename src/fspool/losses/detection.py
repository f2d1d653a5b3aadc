"""Average precision: how well predicted sets of boxes or objects agree with the true ones.

All predicted elements of all images are detections, in the order of their confidence. Each has one
true element of its image that it fits best; it is right if it fits well enough and no detection
before it was right about the same one. The area under precision over recall, every point of it
counted (PASCAL VOC from 2010 on), is the average precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

GROUPS = (2, 8, 3, 2)  # material, colour, shape, size: one-hot in a state after its place


class Fit(NamedTuple):
    """How detections ``(I, N)`` fit the true elements of their images, best first."""

    best: Tensor  # which one fits best
    score: Tensor  # how well: the larger, the better; -inf where none comes into question


def average_precision(
    fit: Fit, confidence: Tensor, true: Tensor, thresholds: Sequence[float]
) -> list[float]:
    """One number from 0 to 1 for each threshold, which a score must reach.

    ``confidence (I, N)`` orders detections, equal ones by position; ``true (I, M)`` bool says which
    elements there are.
    """
    images, count = fit.best.shape
    slots = max(true.shape[1], 1)
    order = confidence.flatten().sort(descending=True, stable=True).indices
    image = torch.arange(images, device=order.device).repeat_interleave(count)
    element = (image * slots + fit.best.flatten())[order]
    score = fit.score.flatten()[order].double()
    place = torch.arange(len(order), device=order.device)
    total = true.sum().double()
    found = []
    for threshold in thresholds:
        good = (score >= threshold) & (score > -torch.inf)
        first = torch.full((images * slots,), len(order), device=order.device)
        first.scatter_reduce_(0, element[good], place[good], "amin")
        right = good & (first[element] == place)
        found.append(float(_area(right, total)))
    return found


def _area(right: Tensor, total: Tensor) -> Tensor:
    """Under the running maximum, from the right, of precision over recall."""
    hits = right.double().cumsum(0)
    precision = hits / torch.arange(1, len(right) + 1, dtype=hits.dtype, device=hits.device)
    envelope = precision.flip(0).cummax(0).values.flip(0)
    return (envelope * right).sum() / total.clamp(min=1)


def fit_boxes(predicted: Tensor, true: Tensor, mask: Tensor, legacy: bool = False) -> Fit:
    """Boxes ``(I, N, 4)`` and ``(I, M, 4)``: left, top, right, bottom; scored by their overlap.

    ``legacy``: as the published table has it, which adds 1 to every side of boxes in units of the
    picture, and so calls nearly everything a good fit.
    """
    overlap = iou(predicted.double().unsqueeze(2), true.double().unsqueeze(1), legacy)
    return _best(overlap.masked_fill(~mask.unsqueeze(1), -torch.inf))


def iou(a: Tensor, b: Tensor, legacy: bool = False) -> Tensor:
    """Intersection over union of boxes ``(..., 4)``; 0 for what has no area or does not touch."""
    extra = 1.0 if legacy else 0.0
    corner = torch.minimum(a[..., 2:], b[..., 2:]), torch.maximum(a[..., :2], b[..., :2])
    sides = corner[0] - corner[1]
    touch = (sides >= 0).all(-1)
    inner = (sides + extra).prod(-1) * touch
    one, other = (((x[..., 2:] - x[..., :2]).clamp(min=0) + extra).prod(-1) for x in (a, b))
    union = one + other - inner
    return torch.where(union > 0, inner / union.clamp(min=1e-30), 0.0)


def fit_states(predicted: Tensor, true: Tensor, mask: Tensor) -> Fit:
    """States ``(I, N, 18)``; the score is minus the distance of places, in CLEVR's units.

    Only an element of the same material, colour, shape and size comes into question.
    """
    same = mask.unsqueeze(1)
    for a, b in zip(_attributes(predicted), _attributes(true), strict=True):
        same = same & (a.unsqueeze(2) == b.unsqueeze(1))
    apart = 3 * (predicted[..., None, :3].double() - true[:, None, :, :3].double())
    distance = apart.square().sum(-1).sqrt()
    return _best((-distance).masked_fill(~same, -torch.inf))


def _best(scores: Tensor) -> Fit:
    """Of scores (I, N, M), where nobody may be there to fit: M = 0."""
    if scores.shape[-1] == 0:
        scores = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    score, best = scores.max(-1)
    return Fit(best, score)


def _attributes(states: Tensor) -> list[Tensor]:
    """Numbers of the largest entries of the four groups."""
    groups = states[..., 3:].split(GROUPS, -1)
    return [group.argmax(-1) for group in groups]
