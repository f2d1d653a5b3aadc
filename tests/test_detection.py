"""Average precision against one that is written out, detection by detection."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fspool.experiments.dspn_metrics import Scores
from fspool.losses.detection import average_precision, fit_boxes, fit_states, iou


def slow_iou(a, b, legacy):
    extra = 1 if legacy else 0
    ix, iy = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if ix < 0 or iy < 0:
        return 0.0
    inner = (ix + extra) * (iy + extra)
    areas = [(max(x[2] - x[0], 0) + extra) * (max(x[3] - x[1], 0) + extra) for x in (a, b)]
    union = areas[0] + areas[1] - inner
    return inner / union if union > 0 else 0.0


def slow_state(a, b):
    """Minus the distance, where all attributes are the same."""
    ends = (3, 5, 13, 16, 18)
    for first, last in zip(ends, ends[1:], strict=False):
        group = range(first, last)
        if max(group, key=lambda i: a[i]) != max(group, key=lambda i: b[i]):
            return -math.inf
    return -3 * math.dist(a[:3], b[:3])


def slow_precision(found, true, score, threshold):
    """found and true are lists of lists, of which the last number is the mask."""
    detections = [(element[-1], i, element) for i, image in enumerate(found) for element in image]
    detections.sort(key=lambda d: -d[0])
    total, taken, points, hits = 0, set(), [], 0
    for image in true:
        total += sum(element[-1] > 0.5 for element in image)
    for count, (_, i, element) in enumerate(detections, 1):
        best, which = -math.inf, None
        for j, other in enumerate(true[i]):
            if other[-1] > 0.5 and score(element, other) > best:
                best, which = score(element, other), j
        if which is not None and best >= threshold and (i, which) not in taken:
            taken.add((i, which))
            hits += 1
        points.append((hits / total, hits / count))
    area, before = 0.0, 0.0
    for k, (recall, _) in enumerate(points):
        area += (recall - before) * max(precision for _, precision in points[k:])
        before = recall
    return area


def boxes(generator, images, count):
    corner = torch.rand(images, count, 2, generator=generator, dtype=torch.float64)
    sides = 0.5 * torch.rand(images, count, 2, generator=generator, dtype=torch.float64) - 0.05
    return torch.cat((corner, corner + sides), -1)  # a few have no area


@given(st.integers(0, 999), st.booleans())
def test_boxes(seed, legacy):
    generator = torch.Generator().manual_seed(seed)
    true = boxes(generator, 4, 5)
    found = torch.cat((true, boxes(generator, 4, 2)), 1)
    found = found + 0.05 * torch.randn(found.shape, generator=generator, dtype=torch.float64)
    mask = torch.rand(4, 5, generator=generator) < 0.7
    mask[0, 0] = True
    confidence = torch.randint(0, 5, (4, 7), generator=generator) / 4  # with ties
    got = average_precision(
        fit_boxes(found, true, mask, legacy), confidence, mask, (0.0, 0.3, 0.5, 0.9)
    )
    lists = [
        torch.cat((t, m.double()[..., None]), -1).tolist()
        for t, m in ((found, confidence), (true, mask))
    ]
    for threshold, value in zip((0.0, 0.3, 0.5, 0.9), got, strict=True):
        expected = slow_precision(*lists, lambda a, b: slow_iou(a, b, legacy), threshold)
        assert value == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 999))
def test_states(seed):
    generator = torch.Generator().manual_seed(seed)
    true = torch.rand(3, 4, 18, generator=generator, dtype=torch.float64)
    found = torch.cat((true, true[:, :2]), 1)
    noise = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    found = found + noise * torch.tensor([0.1] * 3 + [0.05] * 15)
    mask = torch.rand(3, 4, generator=generator) < 0.8
    mask[1, 1] = True
    confidence = torch.rand(3, 6, generator=generator)
    distances = (math.inf, 1.0, 0.5, 0.125)
    got = average_precision(
        fit_states(found, true, mask), confidence, mask, [-t for t in distances]
    )
    lists = [
        torch.cat((t, m.double()[..., None]), -1).tolist()
        for t, m in ((found, confidence), (true, mask))
    ]
    for distance, value in zip(distances, got, strict=True):
        assert value == pytest.approx(slow_precision(*lists, slow_state, -distance), abs=1e-12)


@pytest.mark.parametrize("shift, legacy", [(0.145 * 0.59 / 1.41, 0.9), (0.145 * 0.34 / 1.66, 0.95)])
def test_what_the_published_overlaps_mean(shift, legacy):
    """A box of width 0.145, as in CLEVR: 0.9 there is a true overlap of 0.41, 0.95 one of 0.66."""
    box = torch.tensor([0.3, 0.3, 0.445, 0.445])
    moved = box + torch.tensor([shift, 0.0, shift, 0.0])
    assert float(iou(box, moved, legacy=True)) == pytest.approx(legacy, abs=0.02)
    assert float(iou(box, moved)) < 0.7
    apart = box + torch.tensor([0.2, 0.0, 0.2, 0.0])
    assert float(iou(box, apart, legacy=True)) == float(iou(box, apart)) == 0


@pytest.mark.parametrize("fit, width", [(fit_boxes, 4), (fit_states, 18)])
def test_nothing_to_find(fit, width):
    found, nobody = torch.rand(2, 3, width), torch.zeros(2, 0, dtype=torch.bool)
    fitted = fit(found, torch.zeros(2, 0, width), nobody)
    assert (fitted.score == -torch.inf).all() and fitted.best.shape == (2, 3)
    assert average_precision(fitted, torch.rand(2, 3), nobody, [0.5, 0.9]) == [0, 0]


def test_perfect_and_diverged_predictions():
    true = torch.cat(
        (boxes(torch.Generator().manual_seed(0), 3, 4).clamp(min=0), torch.ones(3, 4, 1)), -1
    )
    true[..., 2:4] = true[..., :2] + 0.1
    scores = Scores("boxes")
    scores.add(true, true)
    assert all(value == pytest.approx(1) for value in scores.compute().values())
    scores = Scores("boxes")
    scores.add(torch.full_like(true, float("nan")), true)
    assert all(value == 0 for value in scores.compute().values())
    states = torch.ones(3, 4, 19)  # those that the first of equal numbers would name
    scores = Scores("states")
    scores.add(torch.full_like(states, float("nan")), states)
    assert all(value == 0 for value in scores.compute().values())
