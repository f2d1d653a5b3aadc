"""Average precision of predicted sets, gathered batch by batch."""

from __future__ import annotations

import torch
from torch import Tensor

from ..losses.detection import Fit, average_precision, fit_boxes, fit_states

TRUE = (0.5, 0.6, 0.7, 0.8, 0.9)  # overlaps of boxes that count as found
LEGACY = (0.5, 0.9, 0.95, 0.98, 0.99)  # the same as the published table counts them
NEAR = (float("inf"), 1.0, 0.5, 0.25, 0.125)  # distances of places


def legacy_name(threshold: float) -> str:
    return f"AP{round(100 * threshold)}, legacy"


def true_name(threshold: float) -> str:
    return f"AP{round(100 * threshold)}"


def near_name(threshold: float) -> str:
    return f"AP {threshold:g}"


class Scores:
    """Predicted and true sets of all images, and what they score."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.found: list[Tensor] = []
        self.true: list[Tensor] = []

    def add(self, found: Tensor, true: Tensor) -> None:
        """Sets (I, slots, channels + 1), the last channel the mask."""
        self.found.append(found.float())
        self.true.append(true.float())

    def compute(self) -> dict[str, float]:
        """Average precision by name, 0 to 1. What has diverged is no detection of anything."""
        found = torch.cat(self.found)
        finite = found.isfinite().all(-1)
        found = found.nan_to_num(nan=-1e9, posinf=1e9, neginf=-1e9)
        true = torch.cat(self.true)
        mask, confidence = true[..., -1] > 0.5, found[..., -1]
        found, true = found[..., :-1], true[..., :-1]
        if self.task == "states":
            fit = _of(finite, fit_states(found, true, mask))
            values = average_precision(fit, confidence, mask, [-t for t in NEAR])
            return dict(zip(map(near_name, NEAR), values, strict=True))
        made = {}
        for legacy, thresholds, name in ((False, TRUE, true_name), (True, LEGACY, legacy_name)):
            fit = _of(finite, fit_boxes(found, true, mask, legacy))
            values = average_precision(fit, confidence, mask, thresholds)
            made |= dict(zip(map(name, thresholds), values, strict=True))
        return made


def _of(finite: Tensor, fit: Fit) -> Fit:
    """Of numbers alone: what is none fits nothing."""
    return fit._replace(score=fit.score.masked_fill(~finite, -torch.inf))
