"""The ray caster: solids against the rays of visibility, cameras, light, and the original."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fspool.checks import UserError
from fspool.data.clevr import Scenes, image_files, pictured, render_solids
from fspool.data.clevr.camera import BASE, fit, look, project, ray
from fspool.data.clevr.placement import Draft, sample
from fspool.data.clevr.render import render
from fspool.data.clevr.render_light import RGB
from fspool.data.clevr.scene_files import read_scenes
from fspool.data.clevr.visibility import meet
from fspool.data.clevr.vocabulary import FEATURES, VALUES

from . import clevr
from .interpreter import DEVICE

ORIGINAL = Path(os.environ.get("FSPOOL_DATA", "")) / "clevr" / "CLEVR_train_scenes_1000.json.gz"
needs_original = pytest.mark.skipif(
    not os.environ.get("FSPOOL_DATA") or not ORIGINAL.is_file(), reason="needs CLEVR's scenes"
)


def rows(scenes, *chosen):
    return Scenes(*(t[list(chosen)] for t in scenes))


def lonely(shape, color="red", material="rubber", size="large", at=(0.0, 0.0)):
    """A scene of one object, seen from the base position."""
    scenes = rows(sample(0, "lonely", 1), 0)
    scenes.sizes[:] = 1
    for tensor in (scenes.coords, scenes.attributes, scenes.rotation, scenes.pixels):
        tensor[:, 1:] = 0
    look_of = {"shape": shape, "color": color, "material": material, "size": size}
    for i, name in enumerate(FEATURES):
        scenes.attributes[0, 0, i] = VALUES[name].index(look_of[name]) + 1
    radius = {"large": 0.7, "small": 0.35}[size]
    scenes.coords[0, 0] = torch.tensor([*at, radius])
    camera = look(torch.tensor([BASE], dtype=torch.float64))
    scenes.pixels[:] = project(camera, scenes.coords.double()).float()
    # One object does not say where a camera is; three of them do.
    scenes.sizes[:] = 3
    scenes.coords[0, 1:3, :2] = torch.tensor([[40.0, -90.0], [-90.0, 40.0]])
    scenes.pixels[:] = project(camera, scenes.coords.double()).float()
    return scenes


# --------------------------------------------------------------------------------------------------
# Solids


@settings(max_examples=15)
@given(st.integers(0, 40))
def test_rays_meet_the_solids_that_visibility_meets(row):
    scenes = rows(clevr.scenes_of(clevr.block()), row)
    camera = fit(scenes.coords, scenes.pixels, scenes.mask)
    columns, lines = (torch.randint(0, n, (1, 400)).float() for n in (480, 320))
    rays = ray(camera, columns, lines)
    n = int(scenes.sizes[0])
    parts = (scenes.coords, scenes.attributes, scenes.rotation)
    solids = Draft(*(part[0, :n] for part in parts)).solids
    every = camera.of(torch.zeros(n, dtype=torch.long))
    depth = meet(every.place, [axis.expand(n, -1) for axis in rays], solids)
    expected, which = depth.min(0)
    things = render_solids.objects(scenes)
    sharp = things._replace(square=torch.where(things.flat > 0, 3.0, 1.0) * things.half.square())
    origin = camera.place.float().T[:, :, None]
    found, index = render_solids.nearest(origin, torch.stack(rays), sharp)
    same = torch.isclose(found[0], expected, rtol=1e-4, atol=1e-4)
    assert (~same).sum() <= 2  # rays that just touch an edge
    hit = expected.isfinite() & same
    assert torch.equal(index[0][hit], which[hit]) and hit.any()


@pytest.mark.parametrize("shape", VALUES["shape"])
def test_normals_look_out_of_the_surface(shape):
    scenes = lonely(shape)
    things = render_solids.Objects(*(t[:, :1] for t in render_solids.objects(rows(scenes, 0))))
    way = torch.nn.functional.normalize(torch.randn(3, 1, 500), dim=0)
    middle = scenes.coords[0, 0, :, None, None]
    far, _ = render_solids.nearest(middle + 5 * way, -way, things)
    assert far.isfinite().all()
    point = middle + (5 - far) * way
    facing = render_solids.normal(point, things)
    torch.testing.assert_close(facing.norm(dim=0), torch.ones(1, 500))
    assert ((facing * way).sum(0) > 0).all()


def test_a_ray_that_starts_on_an_object_leaves_it_and_is_stopped_by_others():
    things = render_solids.objects(rows(lonely("sphere"), 0))
    things = render_solids.Objects(*(t[:, :1] for t in things))
    above = torch.tensor([0.0, 0.0, 1.4 + 2e-3]).view(3, 1, 1)
    up, down = (torch.tensor([0.0, 0.0, z]).view(3, 1, 1) for z in (3.0, -3.0))
    assert not render_solids.blocked(above, up, things).any()
    assert render_solids.blocked(above + up, 2 * down, things).all()
    assert not render_solids.blocked(above + up, 0.9 * down, things).any()  # it ends before


def test_the_kernel_finds_what_the_definition_finds():
    """Without a GPU it runs in Triton's interpreter."""
    from fspool.kernels.cuda import rays

    scenes = rows(clevr.scenes_of(clevr.block()), 3, 4)
    solids = torch.stack(render_solids.objects(scenes)[: render_solids.SOLID])
    eye = torch.tensor(BASE).view(3, 1, 1).expand(3, 2, 1)
    aim = torch.randn(3, 2, 300) * torch.tensor([2.5, 2.5, 0.3]).view(3, 1, 1)
    for point, way in ((eye, aim - eye), (aim.abs(), torch.randn(3, 2, 300))):
        there = [*(t.to(DEVICE) for t in (point, way, solids)), render_solids.NEAR]
        far, which = (t.cpu() for t in rays.nearest(*there))
        expected, index = render_solids.nearest_definition(point, way, solids)
        same = torch.isclose(far, expected, rtol=1e-4, atol=1e-4)
        assert (~same).sum() <= 3 and expected.isfinite().sum() > 10
        assert torch.equal(which[same], index[same])
        stopped = render_solids.blocked_definition(point, way, solids)
        assert (rays.blocked(*there).cpu() != stopped).sum() <= 3 and stopped.any()


# --------------------------------------------------------------------------------------------------
# Pictures


@pytest.mark.parametrize("color", VALUES["color"])
def test_an_object_has_its_colour_where_it_is_and_the_floor_is_grey(color):
    picture = render(lonely("cube", color), size=(32, 48), seed=None)[0].tolist()
    seen = [channel[15][24] for channel in picture]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        apart = RGB[color][one] - RGB[color][other]
        if abs(apart) > 20:
            assert (seen[one] - seen[other]) * apart > 0
    floor = [channel[30][column] for channel in picture for column in (2, 45)]
    assert max(floor) - min(floor) < 60 and min(floor) > 60


def test_shadows_are_dark_and_metal_differs_from_rubber():
    one = render(lonely("cylinder"), size=(64, 96), seed=None)[0].int()
    gone = lonely("cylinder", at=(60.0, -60.0))
    bare = render(gone, size=(64, 96), seed=None)[0].int()
    darker = (bare - one).sum(0) > 20
    brighter = (one - bare).sum(0) > 40
    assert 40 < int(darker.sum()) < 2500 and int(darker.sum()) > int(brighter.sum())
    metal = render(lonely("cylinder", material="metal"), size=(64, 96), seed=None)[0].int()
    assert ((metal - one).abs().sum(0) > 30).sum() > 50


def test_lights_are_jittered_by_image_and_seed_alone():
    scenes = sample(0, "lights", 3)
    scenes = rows(scenes, 0, 0, 1)
    scenes.image[:] = torch.tensor([7, 8, 7])
    whole = render(scenes, size=16)
    assert torch.equal(render(rows(scenes, 2, 0), size=16), whole[[2, 0]])
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(render(scenes, size=16, seed=1), whole)
    assert whole.shape == (3, 3, 16, 16) and whole.dtype == torch.uint8


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
def test_pictures_of_a_gpu_are_those_of_the_cpu():
    scenes = sample(0, "device", 6)
    one, other = (render(scenes, size=48, device=device).cpu().int() for device in ("cpu", "cuda"))
    apart = (one - other).abs()
    assert apart.float().mean() < 0.5 and (apart > 4).float().mean() < 0.01


# --------------------------------------------------------------------------------------------------
# Cameras


def assert_cameras(scenes):
    camera = fit(scenes.coords, scenes.pixels, scenes.mask)
    error = (project(camera, scenes.coords.double()) - scenes.pixels).abs()[scenes.mask]
    assert error[:, :2].max() < 1 and error[:, 2].max() < 1e-3
    assert (camera.place - torch.tensor(BASE)).abs().max() < 0.502


def test_a_camera_is_found_from_pixel_coordinates():
    assert_cameras(clevr.scenes_of(clevr.block()))


@needs_original
def test_every_object_of_the_original_is_where_its_file_says():
    scenes = read_scenes(ORIGINAL)
    assert int(scenes.sizes.sum()) == 6455
    assert_cameras(scenes)


@needs_original
def test_pictures_are_like_the_original_ones(tmp_path):
    """As bright, and of one colour with it where the objects are."""
    import zipfile

    archive = ORIGINAL.with_name("clevr_v1.0_sample_images.zip")
    if not archive.is_file():
        pytest.skip("needs CLEVR's pictures")
    zipfile.ZipFile(archive).extractall(tmp_path)
    scenes = rows(read_scenes(ORIGINAL), 0, 6)
    made = render(scenes, size=128, seed=None).double()
    files = sorted(tmp_path.rglob("CLEVR_train_*.png"))
    real = image_files.shrink(torch.stack([image_files.read_image(f) for f in files]), 128).double()
    assert (made - real).abs().mean() < 8  # of 255
    for one, other in zip(made, real, strict=True):
        both = torch.stack(((one - one.mean(0)).flatten(), (other - other.mean(0)).flatten()))
        assert torch.corrcoef(both)[0, 1] > 0.9


# --------------------------------------------------------------------------------------------------
# Files of pictures, and what is wrong with them


def write_images(folder, scenes, spoil=None):
    from matplotlib.image import imsave

    folder.mkdir(parents=True, exist_ok=True)
    for image in scenes.image.tolist():
        pixels = np.full((320, 480, 3), image * 10, np.uint8)
        imsave(folder / f"CLEVR_train_{image:06d}.png", pixels)


@pytest.fixture
def original(tmp_path):
    """A folder with scenes and pictures as those of v1.0."""
    clevr.write_split(tmp_path)
    scenes = clevr.scenes_of(clevr.block(8))
    write_images(tmp_path / "images" / "train", scenes)
    return tmp_path


def test_pictures_and_sets_from_files(original, capsys):
    data = pictured.from_files(original, "train", "states", size=16)
    assert data.images.shape == (8, 3, 16, 16) and data.sets.shape == (8, 10, 19)
    assert torch.equal(data.images[:, 0, 3, 4], 10 * torch.arange(8).to(torch.uint8))
    assert torch.equal(data.sets[..., -1] > 0, data.scenes.mask)
    again = pictured.from_files(original, "train", "boxes", size=16)
    assert torch.equal(again.images, data.images) and again.sets.shape[-1] == 5
    assert list((original / "images").glob("compact-train-16.*"))


def test_pictures_that_changed_are_read_again(original):
    before = pictured.from_files(original, "train", "boxes", size=16)
    from PIL import Image

    folder = original / "images" / "train"
    noise = np.random.default_rng(0).integers(0, 256, (320, 480, 3), np.uint8)
    Image.fromarray(noise).save(folder / "CLEVR_train_000002.png")
    first, second, spare = (folder / f"CLEVR_train_{n}.png" for n in ("000001", "000002", "spare"))
    middle = pictured.from_files(original, "train", "boxes", size=16)
    assert not torch.equal(middle.images[2], before.images[2])
    first.rename(spare), second.rename(first), spare.rename(second)  # the same sizes, in all
    after = pictured.from_files(original, "train", "boxes", size=16)
    assert torch.equal(after.images[[2, 1]], middle.images[[1, 2]])


def test_scenes_alone_are_rendered(tmp_path, capsys):
    clevr.write_split(tmp_path)
    (tmp_path / "questions" / "CLEVR_train_questions.json").unlink()
    data = pictured.from_files(tmp_path, "train", "boxes", size=8)
    assert (
        "has scenes of train, and no pictures of them: they are rendered."
        in capsys.readouterr().out
    )
    assert torch.equal(data.images, render(data.scenes, size=8))
    with pytest.raises(UserError, match="CLEVR_val_scenes.json is not in"):
        pictured.from_files(tmp_path, "val", "boxes")


@pytest.mark.parametrize(
    "pixels, words",
    [
        (np.zeros((320, 480), np.uint8), "is grey; expected RGB"),
        (np.zeros((200, 480, 3), np.uint8), "has 480 x 200 pixels; expected 480 x 320"),
        (None, "is not there; expected one for every scene"),
        (b"no picture", "cannot be read"),
    ],
)
def test_bad_pictures_are_named_with_their_scene(original, pixels, words):
    from PIL import Image

    path = original / "images" / "train" / "CLEVR_train_000005.png"
    path.unlink()
    if isinstance(pixels, bytes):
        path.write_bytes(pixels)
    elif pixels is not None:
        Image.fromarray(pixels).save(path)
    with pytest.raises(UserError, match="CLEVR_train_000005.png, the picture of scene 5") as error:
        pictured.from_files(original, "train", "boxes", size=16)
    assert words in str(error.value)


def test_more_objects_than_slots():
    scenes = clevr.scenes_of(clevr.block())
    row = int(scenes.sizes.argmax())
    with pytest.raises(UserError, match=rf"scene {row} \(image {row}\) has 10 objects; .* most 4"):
        pictured.sets_of(scenes, "boxes", slots=4)
    with pytest.raises(UserError, match="perhaps 'boxes'"):
        pictured.sets_of(scenes, "boxs")


def test_scenes_of_a_twin_without_its_questions(tmp_path):
    made = pictured.twin("train", 260)
    for one, other in zip(made, clevr.scenes_of(clevr.block()), strict=True):
        assert torch.equal(one[:250], other)
    kept = pictured.kept_twin(tmp_path, "train", 12, 1)
    again = pictured.kept_twin(tmp_path, "train", 12, 1)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
    (tmp_path / "file").write_text("")
    (tmp_path / "left").mkdir(mode=0o555)  # alone, by root too
    pictured.kept_twin(tmp_path / "left", "train", 12, 1)
    assert not list((tmp_path / "left").iterdir())
    beside = pictured.kept_twin(tmp_path / "file", "train", 12, 1)  # where nothing can be kept
    assert torch.equal(beside.coords, kept.coords)
