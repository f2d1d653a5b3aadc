"""CLEVR's scenes: places, relations, the camera, what can be seen, targets made of them."""

import functools
import json
import math
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares
from scipy.spatial import Delaunay
from scipy.stats import chi2_contingency

from fspool.data.clevr import Scenes, targets
from fspool.data.clevr.camera import BASE, look, project, ray
from fspool.data.clevr.clock import Clock
from fspool.data.clevr.placement import Draft, first_of, sample
from fspool.data.clevr.relations import agreeing, members, relations
from fspool.data.clevr.scene_files import read_scenes
from fspool.data.clevr.summary import BINS, summarise
from fspool.data.clevr.visibility import EDGE, Solids, count_pixels, meet, visible
from fspool.data.clevr.vocabulary import DIRECTIONS, FEATURES, RELATIONS, VALUES

from . import clevr

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parent.parent
ORIGINAL = Path(os.environ.get("FSPOOL_DATA", "")) / "clevr" / "CLEVR_train_scenes_1000.json.gz"
needs_original = pytest.mark.skipif(not ORIGINAL.is_file(), reason="FSPOOL_DATA has no scenes")


@functools.cache
def many() -> Scenes:
    return sample(3, "test", 1000)


# --------------------------------------------------------------------------------------------------
# Places


def offsets(scenes):
    """For each pair of objects in a scene: the offset, both radii."""
    for coords, size in zip(scenes.coords.double(), scenes.sizes.tolist(), strict=True):
        for i in range(size):
            for j in range(i):
                yield coords[i] - coords[j], coords[i, 2].item() + coords[j, 2].item()


def test_objects_keep_their_distance():
    axes = [torch.tensor(DIRECTIONS[name]).double() for name in ("left", "front")]
    gaps, margins = [], []
    for offset, radii in offsets(many()):
        gaps.append(offset[:2].norm().item() - radii)
        margins.append(min(abs((offset @ axis).item()) for axis in axes))
    assert min(gaps) >= 0.25 - 1e-6 and min(margins) >= 0.4 - 1e-6
    assert min(gaps) < 0.27 and min(margins) < 0.41  # and no more than that


def test_places_counts_and_attributes_are_those_of_clevr():
    scenes = many()
    mask, sizes = scenes.mask, scenes.sizes.long()
    assert scenes.coords[mask][:, :2].abs().max() <= 3
    assert sizes.min() == 3 and sizes.max() == 10
    assert sizes.bincount()[3:].sub(125).abs().max() < 45  # 4 standard deviations
    for column, name in enumerate(FEATURES):
        found = scenes.attributes[..., column][mask]
        assert set(found.tolist()) == set(range(1, len(VALUES[name]) + 1))
    small = scenes.attributes[..., FEATURES.index("size")] == VALUES["size"].index("small") + 1
    assert (scenes.coords[..., 2][mask & small] == np.float32(0.35)).all()
    assert (scenes.coords[..., 2][mask & ~small] == np.float32(0.7)).all()
    assert 0 <= scenes.rotation[mask].min() and 300 < scenes.rotation[mask].max() <= 360
    for values in scenes[2:6]:
        assert not values[~mask].any()
    assert not scenes.relations.transpose(1, 2)[~mask].any()


def test_the_same_seed_gives_the_same_scenes_and_another_one_others():
    a, b, c, d = (sample(*s, 30) for s in ((3, "x"), (3, "x"), (4, "x"), (3, "y")))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(a.coords, c.coords) and not torch.equal(a.coords, d.coords)
    assert sample(3, "x", 30, first=70).image.tolist() == list(range(70, 100))


def test_the_clock_tells_places_and_looks_apart():
    clock = Clock()
    sample(0, "clock", 20, clock=clock)
    assert set(clock) == {"placement", "visibility"} and min(clock.values()) > 0


def test_the_first_of_each_value():
    assert first_of(torch.tensor([0, 0, 3, 4, 4, 4])).tolist() == [0, 2, 3]
    assert first_of(torch.tensor([], dtype=torch.int64)).tolist() == []


# --------------------------------------------------------------------------------------------------
# Relations


def pairs_of(scenes, row, name):
    masks = scenes.relations[row, RELATIONS.index(name)].tolist()
    return {(j, i) for i in range(scenes.sizes[row]) for j in members(masks[i])}


@given(clevr.scene_records())
def test_relations_are_those_that_were_written_down(tmp_path, record):
    scenes = clevr.read_one(tmp_path, record)
    assert torch.equal(relations(scenes.coords, scenes.mask), scenes.relations)
    assert agreeing(scenes).tolist() == [True]
    for name, other in (("left", "right"), ("front", "behind")):
        one, two = pairs_of(scenes, 0, name), pairs_of(scenes, 0, other)
        assert {(i, j) for j, i in one} == two and not one & two
        assert all((a, c) in one for a, b in one for d, c in one if b == d)
        expected = {(j, i) for i, row in enumerate(record["relationships"][name]) for j in row}
        assert one == expected


def test_in_scenes_of_ours_any_two_objects_are_clearly_apart():
    scenes = many()
    for row in range(200):
        n = int(scenes.sizes[row])
        for name, other in (("left", "right"), ("front", "behind")):
            both = pairs_of(scenes, row, name) | pairs_of(scenes, row, other)
            assert len(both) == n * (n - 1)


def test_a_relation_that_was_changed_is_noticed():
    scenes = sample(0, "changed", 5)
    scenes.relations[3, 1, 0] ^= 2
    assert agreeing(scenes).tolist() == [True, True, True, False, True]


# --------------------------------------------------------------------------------------------------
# The camera, and what can be seen


def test_the_camera_looks_at_the_origin():
    camera = look(torch.tensor([BASE], dtype=torch.float64))
    found = project(camera, torch.zeros(1, 1, 3, dtype=torch.float64))
    expected = torch.tensor([240.0, 160.0, math.dist(BASE, (0, 0, 0))], dtype=torch.float64)
    torch.testing.assert_close(found[0, 0], expected)


@given(st.integers(0, 999), st.integers(0, 9))
def test_a_ray_through_a_pixel_meets_what_is_there(seed, place):
    scenes = many()
    jitter = torch.rand(1, 3, generator=torch.Generator().manual_seed(seed)).double() - 0.5
    camera = look(torch.tensor([BASE], dtype=torch.float64) + jitter)
    coords = scenes.coords[seed : seed + 1, place : place + 1].double()
    column, row, depth = project(camera, coords).unbind(-1)
    direction = torch.stack(ray(camera, column, row), -1)
    torch.testing.assert_close(camera.place[:, None] + depth[..., None] * direction, coords)


def solid(shape, coords, radius=0.7, angle=0.0):
    return Solids(
        torch.tensor([coords], dtype=torch.float64),
        torch.tensor([radius], dtype=torch.float64),
        torch.tensor([VALUES["shape"].index(shape)]),
        torch.tensor([angle], dtype=torch.float64),
    )


def surface(shape, radius, angle):
    """Points that the silhouette is the hull of."""
    turn = torch.linspace(0, 2 * math.pi, 73).double()
    if shape == "sphere":
        up = torch.linspace(-math.pi / 2, math.pi / 2, 37).double()[:, None]
        x, y, z = up.cos() * turn.cos(), up.cos() * turn.sin(), up.sin().expand(-1, 73)
        return radius * torch.stack((x, y, z), -1).reshape(-1, 3)
    if shape == "cylinder":
        rim = torch.stack((turn.cos(), turn.sin(), torch.ones_like(turn)), -1)
        return radius * torch.cat((rim, rim * torch.tensor([1, 1, -1])))
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3).double()
    cos, sin = math.cos(angle), math.sin(angle)
    x, y, z = corners.unbind(-1)
    return EDGE * radius * torch.stack((cos * x - sin * y, sin * x + cos * y, z), -1)


def spread(shape, points, angle):
    """The radius of the solid on whose surface a point is."""
    x, y, z = points.unbind(-1)
    if shape == "sphere":
        return points.norm(dim=-1)
    if shape == "cylinder":
        return torch.maximum(torch.hypot(x, y), z.abs())
    cos, sin = math.cos(angle), math.sin(angle)
    return torch.stack((cos * x + sin * y, cos * y - sin * x, z), -1).abs().amax(-1) / EDGE


CLOSE = {"atol": 1e-4, "rtol": 0}


@pytest.mark.parametrize("shape", VALUES["shape"])
@pytest.mark.parametrize("radius", [0.35, 0.7])
@pytest.mark.parametrize("angle", [0.0, 0.3, 250.0])
def test_rays_meet_a_solid_just_inside_its_silhouette(shape, radius, angle):
    camera = look(torch.tensor([BASE], dtype=torch.float64))
    coords = torch.tensor([1.0, -2.0, radius]).double()
    one = solid(shape, coords.tolist(), radius, angle)
    outline = project(camera, (surface(shape, radius, angle) + coords)[None])[0, :, :2].numpy()
    low, high = outline.min(0) - 5, outline.max(0) + 5
    columns, rows = (a.ravel() for a in np.meshgrid(*map(np.arange, low, high)))
    pixels = [torch.from_numpy(a)[None].float() for a in (columns, rows)]
    depth = meet(camera.place, ray(camera, *pixels), one)[0]
    hull = Delaunay(outline)
    points = np.stack((columns, rows), -1)
    middle = outline.mean(0)
    inside = hull.find_simplex(middle + (points - middle) * 1.04) >= 0
    outside = hull.find_simplex(middle + (points - middle) / 1.04) < 0
    assert inside.sum() > 300 and outside.sum() > 300
    hit = depth.isfinite().numpy()
    assert hit[inside].all() and not hit[outside].any()
    rays = torch.stack(ray(camera, *pixels), -1)[0].double()
    points = camera.place + depth[:, None].double() * rays - coords
    torch.testing.assert_close(
        spread(shape, points[hit], angle), torch.full((hit.sum(),), radius).double(), **CLOSE
    )


def test_what_is_hidden_is_not_counted():
    camera = look(torch.tensor([BASE], dtype=torch.float64))
    toward = camera.place[0] / camera.place[0].norm()
    front, back = (2 * toward).tolist(), [0.0, 0.0, 0.0]
    parts = [solid("sphere", front), solid("sphere", back, 0.35)]
    solids = Solids(*(torch.stack(p, 1) for p in zip(*parts, strict=True)))
    pixels = count_pixels(camera, solids, torch.ones(1, 2, dtype=torch.bool))[0]
    far = camera.place[0].norm().item()
    expected = math.pi * (525 * 0.7) ** 2 / ((far - 2) ** 2 - 0.7**2)
    assert abs(pixels[0].item() / expected - 1) < 0.03 and pixels[1] == 0
    assert visible(camera, solids, torch.tensor([[True, True]])).tolist() == [False]
    assert visible(camera, solids, torch.tensor([[True, False]])).tolist() == [True]
    alone = count_pixels(camera, solids, torch.tensor([[False, True]]))[0]
    assert abs(alone[1].item() / (math.pi * (525 * 0.35 / far) ** 2) - 1) < 0.03


def test_what_is_outside_the_picture_is_not_counted():
    camera = look(torch.tensor([BASE], dtype=torch.float64))
    edge = (camera.right[0] * 240 / 525 * math.dist(BASE, (0, 0, 0))).tolist()
    solids = Solids(*(t[None] for t in solid("sphere", edge)))
    half = count_pixels(camera, solids, torch.ones(1, 1, dtype=torch.bool))[0, 0].item()
    whole = math.pi * (525 * 0.7 / math.dist(BASE, (0, 0, 0))) ** 2
    assert abs(half / (whole / 2) - 1) < 0.1


def as_draft(scenes):
    return Draft(scenes.coords, scenes.attributes, scenes.rotation)


def fitted(scenes):
    """Where the cameras stood, from pixels and depths."""
    places = []
    for coords, pixels, size in zip(scenes.coords, scenes.pixels, scenes.sizes, strict=True):
        coords, pixels = coords[None, :size].double(), pixels[:size].double()
        weights = torch.tensor([1.0, 1.0, 1000.0])

        def error(place, coords=coords, pixels=pixels, weights=weights):
            camera = look(torch.from_numpy(place)[None])
            return ((project(camera, coords)[0] - pixels) * weights).flatten().numpy()

        places.append(least_squares(error, np.array(BASE)).x)
    return torch.from_numpy(np.array(places))


def check_cameras(scenes):
    """One camera explains all pixels of a scene, it stands where it may, and sees everything."""
    places = fitted(scenes)
    assert (places - torch.tensor(BASE)).abs().max() < 0.502
    camera, mask = look(places), scenes.mask
    error = (project(camera, scenes.coords.double()) - scenes.pixels).abs()[mask]
    assert error[:, :2].max() < 0.505 and error[:, 2].max() < 5e-4
    pixels = count_pixels(camera, as_draft(scenes).solids, mask)[mask]
    assert (pixels >= 170).all() and (pixels < 200).sum() <= 0.002 * len(pixels)
    assert 0 < (pixels < 400).sum() < 0.1 * len(pixels)
    return pixels


def test_one_camera_explains_all_pixels_of_a_scene():
    check_cameras(Scenes(*(t[:100] for t in many())))


# --------------------------------------------------------------------------------------------------
# Targets

PUBLISHED = [  # of the first scene to validate: place, pixel, shape, and its box in pixels
    ((-1.49372, -1.99360, 0.7), (119, 131), "cylinder", (82.711, 81.902, 155.289, 184.486)),
    ((1.55571, -2.10474, 0.7), (198, 190), "cube", (142.634, 134.634, 253.366, 245.366)),
    ((-0.80731, 1.91412, 0.7), (282, 100), "sphere", (247.143, 65.143, 316.857, 134.857)),
]


def test_boxes_are_those_of_the_released_code():
    scenes = Scenes(*(torch.zeros_like(t[:1]) for t in many()))
    scenes.sizes[0] = 3
    for i, (coords, pixel, shape, _) in enumerate(PUBLISHED):
        scenes.coords[0, i] = torch.tensor(coords)
        scenes.pixels[0, i, :2] = torch.tensor(pixel)
        scenes.attributes[0, i, FEATURES.index("shape")] = VALUES["shape"].index(shape) + 1
    found = targets.boxes(scenes)[0] * torch.tensor([480, 320, 480, 320])
    expected = torch.tensor([box for *_, box in PUBLISHED])
    torch.testing.assert_close(found[:3], expected, atol=6e-4, rtol=0)
    assert not found[3:].any()


def test_states_say_what_the_features_say():
    scenes = Scenes(*(t[:50] for t in many()))
    states = targets.states(scenes)
    assert states.shape == (50, 10, 18) and not states[~scenes.mask].any()
    assert torch.equal(states[..., :3], scenes.coords / 3)
    place = 3
    for name in ("material", "color", "shape", "size"):
        part = states[..., place : place + len(VALUES[name])]
        assert (part.sum(-1) == scenes.mask).all()
        found = part[scenes.mask].argmax(-1) + 1
        assert torch.equal(found, scenes.attributes[scenes.mask][:, FEATURES.index(name)].long())
        place += len(VALUES[name])
    features = scenes.features(12)
    assert features.shape == (50, 12, 7) and features.dtype == torch.float32
    assert torch.equal(features[:, :10, :3], scenes.coords) and not features[:, 10:].any()
    assert torch.equal(features[:, :10, 3:], scenes.attributes.float())


# --------------------------------------------------------------------------------------------------
# Side by side


def test_a_summary_counts_everything_once():
    scenes = many()
    summary = summarise(scenes)
    objects = int(scenes.sizes.sum())
    assert sum(summary.pop("objects in a scene").values()) == 1000
    assert {sum(counts.values()) for counts in summary.values()} == {objects}
    assert set(summary) == {*FEATURES, *BINS}
    assert summary["gap to the nearest"]["0"] == 0  # none is nearer than 0.25
    assert summary["least margin"]["0"] == summary["least margin"]["0.2"] == 0


def test_the_bins_of_a_summary_are_where_they_say(tmp_path):
    scenes = Scenes(*(t[:1].clone() for t in many()))
    scenes.sizes[0] = 2
    scenes.attributes[0, 2:] = 0
    scenes.attributes[0, :2, FEATURES.index("size")] = torch.tensor([1, 2])  # 0.7 and 0.35
    scenes.coords[0, :2, :2] = torch.tensor([[0.0, 0.1], [2.0, 0.1]])
    scenes.pixels[0, :2] = torch.tensor([[41.0, 19.0, 7.5], [479.0, 500.0, 99.0]])
    summary = summarise(scenes)
    some = {name: {k: n for k, n in counts.items() if n} for name, counts in summary.items()}
    assert some["x"] == {"0": 1, "2": 1} and some["y"] == {"0": 2}
    assert some["column"] == {"40": 1, "440": 1} and some["row"] == {"0": 1, "300": 1}
    assert some["depth"] == {"7": 1, "17": 1}
    assert some["gap to the nearest"] == {"0.75": 2}  # 2 - 0.7 - 0.35
    assert some["least margin"] == {"1.2": 2}  # 2 * 0.656 along left to right


def differences(one, other):
    """The chance of so large a difference, for everything that is counted."""
    chances = {}
    for name, counts in one.items():
        rows = np.array([list(counts.values()), list(other[name].values())])
        chances[name] = chi2_contingency(rows[:, rows.sum(0) > 0]).pvalue
    return chances


def test_scenes_are_distributed_as_the_original_ones():
    original = json.loads((ROOT / "docs" / "clevr_original.json").read_text())
    assert original["scenes"] == 1000
    chances = differences(original["counts"], summarise(many()))
    assert min(chances.values()) > 1e-3, chances
    spoiled = Scenes(*many())._replace(coords=many().coords * 0.95)
    chances = differences(original["counts"], summarise(spoiled))
    assert min(chances.values()) < 1e-6  # it does see things


# --------------------------------------------------------------------------------------------------
# The real thing


@needs_original
def test_the_original_scenes(tmp_path, monkeypatch):
    scenes = read_scenes(ORIGINAL)
    assert len(scenes.sizes) == 1000 and scenes.sizes.sum() == 6455
    assert agreeing(scenes).all()
    assert torch.equal(relations(scenes.coords, scenes.mask), scenes.relations)
    gap, margin = (summarise(scenes)[name] for name in ("gap to the nearest", "least margin"))
    assert gap["0"] == 0 and margin["0"] == margin["0.2"] == 0
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["clevr_summary.py", str(ORIGINAL), str(out)])
    runpy.run_path(str(ROOT / "tools" / "clevr_summary.py"), run_name="__main__")
    assert out.read_text() == (ROOT / "docs" / "clevr_original.json").read_text()


@needs_original
def test_the_camera_of_the_original_scenes():
    check_cameras(Scenes(*(t[:150] for t in read_scenes(ORIGINAL))))
