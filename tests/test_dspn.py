"""Networks that predict sets: gradients written out, compiled, implicit; and the experiment."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import smooth_l1_loss

from fspool import report, storage
from fspool.checks import UserError
from fspool.cli.running import of_tasks
from fspool.data.clevr.scene_files import image_name, read_scenes
from fspool.experiments import dspn as experiment
from fspool.experiments.dspn import EXPERIMENT, SetPrediction
from fspool.experiments.dspn_data import found_in
from fspool.lab import trainer
from fspool.lab.launch import Job, Options, perform
from fspool.lab.replicas import stack
from fspool.models import DSPN, ImageEncoder, ImplicitDSPN, PairEncoder
from fspool.models.dspn import conjugate_gradients
from fspool.report.page import page
from fspool.report.records import Record
from fspool.report.tables import _is_changed

from . import clevr
from .processes import torchrun

on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pools = pytest.mark.parametrize("pool", ["fspool", "sum", "max"])
double = {"dtype": torch.float64}


def encoder(pool="fspool", channels=3, dim=8):
    made = PairEncoder(channels, dim, pool=pool, knots=4).double()
    for layer in (made.first, made.second):
        nn.init.normal_(layer.bias)
    return made


# --------------------------------------------------------------------------------------------------
# The set encoder


@pools
def test_the_encoder_is_what_its_description_says(pool):
    """All pairs, an MLP, and a pool, in the plainest form."""
    made, x = encoder(pool), torch.randn(2, 5, 3, **double)
    pairs = torch.stack([torch.cat((x[:, i], x[:, j]), -1) for i in range(5) for j in range(5)], 1)
    out = made.second(made.first(pairs).relu()) / 25
    expected = {"fspool": made.pool, "sum": lambda x: x.sum(1), "max": lambda x: x.amax(1)}[pool](
        out
    )
    torch.testing.assert_close(made(x), expected)
    made.divided = False
    torch.testing.assert_close(made(x), 25 * expected)


@pools
@pytest.mark.parametrize("divided", [True, False])
def test_its_gradient_is_autograds_and_is_itself_differentiable(pool, divided):
    made, x = encoder(pool), torch.randn(2, 4, 3, **double, requires_grad=True)
    made.divided = divided
    g = torch.randn(2, 8, **double, requires_grad=True)
    y, seen = made.encode(x)
    expected = torch.autograd.grad(y, x, g, create_graph=True)[0]
    got = made.vjp(g, seen)
    torch.testing.assert_close(got, expected)
    v = torch.randn_like(x)
    parameters = list(made.parameters())
    second = [
        torch.autograd.grad(t, [g, *parameters], v, allow_unused=True) for t in (expected, got)
    ]
    for a, b in zip(*second, strict=True):
        assert (a is None or not a.any()) if b is None else torch.allclose(a, b)


@pools
def test_second_derivatives(pool):
    made, x = encoder(pool, dim=4), torch.randn(1, 3, 3, **double, requires_grad=True)
    g = torch.randn(1, 4, **double, requires_grad=True)
    weights = [p.detach().clone().requires_grad_() for p in made.parameters()]
    names = [name for name, _ in made.named_parameters()]

    def encode(x, *values):
        return torch.func.functional_call(made, dict(zip(names, values, strict=True)), x)

    assert gradcheck(encode, (x, *weights)) and gradgradcheck(encode, (x, *weights))
    assert gradcheck(lambda x, g: made.vjp(g, made.encode(x)[1]), (x, g))
    assert gradgradcheck(lambda x, g: made.vjp(g, made.encode(x)[1]), (x, g))


@pools
def test_replicas_are_runs_of_their_own(pool):
    models = [DSPN(encoder(pool), 2, 4, iterations=3).double() for _ in range(2)]
    together = stack(models)
    z = torch.randn(2, 3, 8, **double)
    expected = torch.stack([model(own) for model, own in zip(models, z, strict=True)])
    torch.testing.assert_close(together(z), expected)


# --------------------------------------------------------------------------------------------------
# DSPN


def reference(model, z, steps, rate):
    """By autograd, as the original has it: the distance is a mean over batch and features."""
    x = model.start.expand(len(z), -1, -1)
    mask = model.start_mask.clamp(0, 1).expand(len(z), -1, -1)
    for _ in range(steps):
        y = model.encoder(torch.cat((x, mask), -1))
        distance = smooth_l1_loss(y, z)
        dx, dm = torch.autograd.grad(distance, (x, mask), create_graph=True)
        x, mask = x - rate * dx, (mask - rate * dm).clamp(0, 1)
    return torch.cat((x, mask), -1)


@pools
@pytest.mark.parametrize("original", [False, True])
def test_inner_steps_are_those_of_the_original(pool, original):
    model = DSPN(encoder(pool), 2, 4, iterations=3, original=original).double()
    z = torch.randn(5, 8, **double, requires_grad=True)
    rate = 800.0 if original else 25.0 * 5  # which a mean over 5 sets divides again
    expected = reference(model, z, 3, rate)
    got = model(z)
    torch.testing.assert_close(got, expected)
    v, inputs = torch.randn_like(got), [z, *model.parameters()]
    pairs = zip(
        torch.autograd.grad(got, inputs, v), torch.autograd.grad(expected, inputs, v), strict=True
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b)


def test_a_step_does_not_depend_on_the_other_sets_of_a_batch():
    model = DSPN(encoder(), 2, 4).double()
    z = torch.randn(6, 8, **double)
    torch.testing.assert_close(model(z)[:2], model(z[:2]))
    model.original = True
    assert not torch.allclose(model(z)[:2], model(z[:2]))


def test_sets_on_the_way():
    model = DSPN(encoder(), 2, 4).double()
    z = torch.randn(2, 8, **double)
    assert model.descend(z, set()) == []
    start, two, five = model.descend(z, {0, 2, 5})
    assert torch.equal(start[0, :, :2], model.start) and start.shape == (2, 4, 3)
    model.iterations = 5
    assert torch.equal(model(z), five) and not torch.equal(two, five)
    assert (five[..., -1] >= 0).all() and (five[..., -1] <= 1).all()


class Predictor(nn.Module):
    def __init__(self, pool, inner=DSPN):
        super().__init__()
        self.images = ImageEncoder(32, 8, "tiny")
        self.sets = inner(PairEncoder(3, 8, pool=pool, knots=4), 2, 4, iterations=2)

    def forward(self, images, noise=None):
        return self.sets(self.images(images), noise)


def assert_compiled(model, backend, *inputs):
    """Every parameter has the gradient that it has without the compiler."""
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    made = []
    for function in (model, compiled):
        torch.manual_seed(1)
        y = function(*inputs)
        made.append((y, torch.autograd.grad(y, list(model.parameters()), torch.randn_like(y))))
    (expected, wanted), (got, found) = made
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    scale = max(float(g.abs().max()) for g in wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5 * scale)


@pools
@pytest.mark.parametrize("inner", [DSPN, ImplicitDSPN])
def test_compiled_gradients_are_those_of_eager(pool, inner):
    model = inner(PairEncoder(3, 8, pool=pool, knots=4), 2, 4, iterations=2)
    z, noise = torch.randn(3, 8), torch.randn(3, 4, 3)
    assert_compiled(model, "aot_eager", z, noise)


def test_compiled_training_gradients_from_pictures_on():
    assert_compiled(Predictor("fspool"), "aot_eager", torch.rand(3, 3, 32, 32))


def test_generated_code_has_the_gradients_of_eager():
    model = DSPN(PairEncoder(3, 8, knots=4), 2, 4, iterations=1)
    assert_compiled(model, "inductor", torch.randn(3, 8))


# --------------------------------------------------------------------------------------------------
# Implicit differentiation


def settled(pool, steps=400):
    """A model whose inner steps arrive at a smooth minimum, and vectors for it."""
    made = encoder(pool, channels=3, dim=32)
    model = ImplicitDSPN(made, 2, 3, iterations=steps, rate=2.0, learned=True, damping=0.0).double()
    near = model.start + 0.05 * torch.randn(4, 3, 3, **double)
    z = made(near).detach().requires_grad_()
    return model, z


@pools
def test_the_exact_implicit_gradient_is_the_unrolled_one(pool):
    model, z = settled(pool)
    model.exact, inputs = True, [z, *model.parameters()]
    unrolled = ImplicitDSPN.descend.__wrapped__(model, z, {model.iterations})[0]
    rest = model.slope(unrolled, z).flatten(1).norm(dim=1)
    arrived = rest < 1e-6  # a few end in a kink, where there is no such gradient
    assert arrived.sum() >= 2
    v = torch.randn_like(unrolled) * arrived[:, None, None]
    exact = torch.autograd.grad(model(z), inputs, v, retain_graph=True)
    expected = torch.autograd.grad(unrolled, inputs, v)
    for a, b in zip(exact, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
    model.exact = False
    simple = torch.autograd.grad(model(z), inputs, v)
    flat = [torch.cat([g.flatten() for g in gradients]) for gradients in (simple, exact)]
    assert torch.cosine_similarity(*flat, 0) > 0.5  # the default, one product, points the same way


def test_what_the_exact_gradient_does_not_have_is_a_sentence():
    """Its own derivative would silently lack a part."""
    model, z = settled("sum", steps=3)
    model.exact = True
    with pytest.raises(ValueError, match="expected exact=False there[.]$"):
        torch.autograd.grad(model(z).sum(), z, create_graph=True)
    for transform in (torch.func.grad(lambda z: model(z).sum()), torch.func.vmap(model)):
        with pytest.raises(ValueError, match="^exact is True, and z is inside of vmap, grad"):
            transform(z.detach().expand(2, *z.shape))


def test_the_default_has_one_pass_of_memory_whatever_the_steps():
    def kept(steps):
        model = ImplicitDSPN(encoder(), 2, 4, iterations=steps).double()
        z, total = torch.randn(3, 8, **double, requires_grad=True), 0

        def count(tensor):
            nonlocal total
            total += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model(z, torch.randn(3, 4, 3, **double))
        return total

    assert kept(2) == kept(30) > 0


def test_inner_steps_have_momentum_and_clipped_gradients():
    model = ImplicitDSPN(encoder(), 2, 4, iterations=2, rate=0.5, clip=1e-3, adaptive=False)
    model = model.double()
    z, noise = torch.randn(2, 8, **double), torch.randn(2, 4, 3, **double)
    x, speed = 0.1 * noise, 0
    for _ in range(2):
        slope = model.slope(x, z).detach()
        move = torch.stack([0.5 * s * min(1, 1e-3 / float(0.5 * s.norm())) for s in slope])
        speed = 0.9 * speed + move
        x = x - (move + 0.9 * speed)
    torch.testing.assert_close(model.descend(z, {2}, noise)[0], x)
    with torch.no_grad():
        torch.testing.assert_close(model(z, noise), x)
        assert model(z).shape == x.shape  # noise of its own
    with pytest.raises(ValueError, match="noise has shape"):
        model(z, noise[:, :2])


def test_adaptive_steps_stay_where_fixed_ones_leave():
    made = encoder(dim=32)
    with torch.no_grad():
        made.pool.weight.mul_(30)  # a steep objective
    z = made(0.1 * torch.randn(4, 4, 3, **double)).detach()
    noise, rest = torch.randn(4, 4, 3, **double), {}
    for adaptive in (True, False):
        model = ImplicitDSPN(made, 2, 4, rate=25.0, clip=1.0, adaptive=adaptive).double()
        far = model.descend(z, {60}, noise)[0]
        rest[adaptive] = float((made(far) - z).detach().square().mean())
    assert rest[True] < 0.1 * rest[False] and rest[True] < 0.1 * float(z.square().mean())


def test_conjugate_gradients_solve():
    factor = torch.randn(3, 6, 6, **double)
    matrix = factor @ factor.mT + torch.eye(6, **double)
    v = torch.randn(3, 2, 3, **double)

    def product(u):
        return (matrix @ u.flatten(1)[..., None]).view_as(u)

    torch.testing.assert_close(product(conjugate_gradients(product, v, 30)), v)


# --------------------------------------------------------------------------------------------------
# Pictures to vectors


def test_the_trunk_of_the_paper():
    model = ImageEncoder()
    counts = [sum(p.numel() for p in part.parameters()) for part in (model.stem, model.blocks)]
    assert counts[0] == 3 * 64 * 49 and 21.2e6 < sum(counts) < 21.3e6  # as ResNet-34 has them
    assert model.out.weight.shape == (512, 512, 2, 2)
    with torch.no_grad():
        assert model.eval()(torch.zeros(1, 3, 128, 128, dtype=torch.uint8)).shape == (1, 512)
    with pytest.raises(ValueError, match=r"images have shape \(1, 3, 64, 64\)"):
        model(torch.zeros(1, 3, 64, 64))


def test_bytes_replicas_and_precision_of_images():
    models = [ImageEncoder(32, 8, "tiny") for _ in range(2)]
    images = torch.randint(0, 256, (2, 4, 3, 32, 32), dtype=torch.uint8)
    expected = torch.stack([copy.deepcopy(m)(i / 255) for m, i in zip(models, images, strict=True)])
    together = stack(models)
    torch.testing.assert_close(together(images), expected, rtol=1e-4, atol=1e-4)
    assert (
        together.stem_norm.running_mean.shape == (2, 16) and together.stem_norm.running_mean.any()
    )
    together.dtype = torch.bfloat16
    rough = together(images)
    assert rough.dtype == torch.float32
    assert (rough - expected).norm() < 0.2 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_an_image_encoder_of_another_dtype_works_in_it(dtype):
    model, images = ImageEncoder(32, 8, "tiny"), torch.rand(4, 3, 32, 32)
    expected = copy.deepcopy(model)(images)
    found = model.to(dtype)(images.to(dtype))
    assert found.dtype == dtype
    assert (found - expected).norm() < 0.2 * expected.norm()


# --------------------------------------------------------------------------------------------------
# The experiment


SMALL = {
    "size": 32,
    "trunk": "tiny",
    "dim": 8,
    "knots": 4,
    "batch": 4,
    "steps": 3,
    "iterations": 2,
    "scenes": 8,
    "test_scenes": 6,
}


@pytest.fixture
def cell(tmp_path):
    return lambda **changes: SetPrediction(**(SMALL | {"data": str(tmp_path / "data")} | changes))


def run(name, cell, out):
    job = Job("dspn", name, cell, (0,), out / name / "seeds-0-0")
    assert not perform([job], Options(), lambda event: None)
    return job.path


def refuse_other_versions(path, other):
    """Settings and weights that this version does not know."""
    config = storage.read_json(path / "config.json")
    tensors, _ = storage.read_tensors(path / "model.safetensors")
    fewer = dict(list(tensors.items())[1:])
    more = config | {"cell": config["cell"] | {"colour": "red"}}
    for settings, weights in (
        (more, tensors),
        (config, fewer),
        (config, tensors | {"a": torch.ones(1)}),
    ):
        other.mkdir(exist_ok=True)
        storage.write_json(other / "config.json", settings)
        storage.write_tensors(other / "model.safetensors", weights)
        with pytest.raises(UserError, match=r"is of another version \(.*\); run dspn again\.$"):
            experiment.load(other)
    storage.write_json(other / "config.json", {"experiment": "dspn", "cell": 3})
    with pytest.raises(UserError, match="is of a run of dspn; expected one of dspn"):
        experiment.load(other)


def load_again(out):
    """Whoever has a run folder has a model; one of another task is refused."""
    path = out / "states-fspool" / "seeds-0-0"
    model = experiment.load(path, "states")
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32))[0].shape == (2, 10, 19)
    with pytest.raises(UserError, match="config.json is of a model for states; expected one for b"):
        experiment.load(path, "boxes")
    with pytest.raises(UserError, match="has no trained model"):
        experiment.load(out)
    refuse_other_versions(path, out / "changed")
    other = Job("dspn", "states-fspool", SetPrediction(**SMALL), (0,), path)
    texts = []
    perform([other], Options(), lambda event: texts.append(event.text))
    assert "cell.task is 'states' there and 'boxes' here" in "".join(texts)


def test_from_training_to_the_page(cell, tmp_path):
    out = tmp_path / "runs"
    for task in ("boxes", "states"):
        run(f"{task}-fspool", cell(task=task), out)
    run("boxes-sum", cell(pool="sum"), out)
    run("boxes-idspn", cell(inner="idspn", representation=0.0), out)
    found = report.collect(out)
    assert -1 <= found.of("dspn")["boxes-idspn"].metrics["cosine"][0] <= 1
    load_again(out)
    names = set(found.of("dspn")["boxes-fspool"].metrics)
    assert {"AP50 after 1x", "AP99, legacy after 3x"} <= names
    text = page(found)
    assert "Boxes, average precision by true overlap" in text and "98.8 ± 0.3" in text
    report.compact(found, tmp_path / "all.json")
    again = report.collect(tmp_path / "all.json")
    assert page(again).count("found-boxes") == text.count("found-boxes") > 0


def test_training_goes_on_where_it_was(cell):
    device, whole = torch.device("cpu"), cell(steps=4, batch=8, inner="idspn", decay=0.5)
    model = trainer.build(whole, [0], device)
    states = []
    for state in trainer.train(model, whole, [0], device):
        states.append(state)
    assert states[-1].step == 4
    assert [whole.rate(step) for step in range(4)] == [3e-4, 3e-4, 3e-4, 1.5e-4]
    batches = list(whole.batches([0], range(2, 4), device))
    again = list(whole.batches([0], range(3, 4), device))
    assert all(torch.equal(a, b) for a, b in zip(batches[1], again[0], strict=True))
    epoch = torch.cat([b.sets for b in cell().batches([0], range(2), device)], 1)
    assert len(epoch[0].flatten(1).unique(dim=0)) == 8  # every scene once


def test_two_processes_give_the_curve_of_one(tmp_path, fspool):
    """Batch normalisation, too, is that of the whole batch."""
    command = ["run", "dspn", "--only", "boxes-fspool", "--device", "cpu", "--no-page"]
    command += ["--data", tmp_path / "data", "--set", "dtype=float64"]
    for setting in ("steps=6", "batch=8", "scenes=16", "test_scenes=8"):
        command += ["--set", setting]
    ended = torchrun(2, *command, "--out", tmp_path / "two")
    assert ended.returncode == 0, ended.stderr
    assert fspool(*command, "--workers", 1, "--out", tmp_path / "one")[0] == 0
    one, two = (tmp_path / name / "boxes-fspool/seeds-0-0" for name in ("one", "two"))
    a, b = (storage.read_json(path / "result.json") for path in (one, two))
    (a,), (b,) = a["curve"], b["curve"]
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-9)
    a, b = (storage.read_tensors(path / "model.safetensors")[0] for path in (one, two))
    for name, tensor in a.items():  # running means and variances among them
        torch.testing.assert_close(b[name], tensor, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("inner", ["dspn", "idspn"])
def test_shares_of_a_batch_add_up(cell, inner):
    own = cell(inner=inner, dtype="float64")
    model = trainer.build(own, [0, 1], torch.device("cpu")).eval()  # known mean and variance
    (batch,) = own.batches([0, 1], range(1), torch.device("cpu"))
    shares = [own.share(batch, rank, 2) for rank in range(2)]
    assert torch.equal(torch.cat([share.images for share in shares], 1), batch.images)
    losses = [own.loss(own.output(model, part), part, None) for part in (batch, *shares)]
    torch.testing.assert_close(losses[1] + losses[2], losses[0])
    with pytest.raises(UserError, match="batch is 4, which 3 processes cannot share evenly"):
        own.share(batch, 0, 3)


@on_cuda
@pools
@pytest.mark.parametrize("inner", ["dspn", "idspn"])
def test_recorded_training_is_that_of_the_cpu(cell, pool, inner):
    """Steps as CUDA graphs, sets paired on the device, pictures rendered there."""
    own, losses = cell(pool=pool, inner=inner, learning_rate=1e-4), []
    for device in map(torch.device, ("cpu", "cuda")):
        model = trainer.build(own, [0], device)
        states = list(trainer.train(model, own, [0], device))
        losses.append(states[-1].curve[-1]["loss"][0])
        with torch.no_grad():
            assert own.evaluate(model.eval(), [0], device).metrics
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@on_cuda
def test_bfloat16_maps_on_cuda(cell):
    own, device = (
        cell(precision="bfloat16", tf32=True, size=128, trunk="resnet34"),
        torch.device("cuda"),
    )
    states = list(trainer.train(trainer.build(own, [0], device), own, [0], device))
    assert states[-1].curve[-1]["loss"][0] < 1


def test_settings_of_presets_and_tables():
    paper = experiment.cells("paper")
    assert len(paper) == 8 and paper["states-max"].channels == 18
    names = paper.keys() | experiment.cells("quick").keys()
    for table in EXPERIMENT.tables:
        for entries in table.rows.values():
            assert len(entries) == len(table.columns)
            assert all(entry.cell in names for entry in entries)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 9},
        {"decay": 2.0},
        {"inner_rate": 0.0},
        {"iterations": 0},
        {"size": 15},
        {"scenes": 10**12},
    ],
)
def test_bad_settings(cell, settings):
    with pytest.raises(ValueError):
        cell(**settings)


@pytest.mark.parametrize(
    "preset, changes, changed",
    [
        ("released", {"source": "files", "content": "of CLEVR"}, False),
        ("released", {"source": "files", "content": "of CLEVR-rendered"}, True),
        ("released", {}, True),  # pictures of a twin
        ("released", {"source": "files", "scenes": 600}, True),
        ("paper", {}, True),  # 6 epochs instead of 100
        ("quick", {}, True),
    ],
)
def test_only_the_whole_schedule_is_judged(preset, changes, changed):
    settings = EXPERIMENT.cells(preset)["boxes-fspool"].settings() | changes
    record = Record("dspn", "boxes-fspool", settings, [0], {}, [], [])
    presets = [EXPERIMENT.cells(name) for name in EXPERIMENT.judged]
    assert _is_changed(EXPERIMENT, presets, record, set()) == changed


def test_files_are_part_of_what_a_run_is(tmp_path):
    own, found = SetPrediction(source="files", scenes=32, batch=8), []
    for number, folder in enumerate((tmp_path / "a", tmp_path / "b")):
        for split in ("train", "val"):
            clevr.write_split(folder, split, clevr.block(8 + number, split))
        found.append(own.at(data=folder))
    assert all(cell.content.endswith("-rendered") for cell in found)
    assert found[0].content != found[1].content
    assert [(cell.scenes, cell.test_scenes) for cell in found] == [(8, 8), (9, 9)]
    assert own.at(data=tmp_path / "a") == found[0]
    twin = SetPrediction().at(data=tmp_path / "a")
    assert twin.content == "" and twin.scenes == SetPrediction().scenes
    for split in ("train", "val"):  # pictures, which are other ones when their sizes are
        (tmp_path / "a" / "images" / split).mkdir(parents=True)
        for index in read_scenes(tmp_path / "a" / "scenes" / f"CLEVR_{split}_scenes.json").image:
            image = image_name(split, int(index))
            (tmp_path / "a" / "images" / split / image).write_bytes(b"png")
    found_in.cache_clear()
    pictured = own.at(data=tmp_path / "a")
    assert not pictured.content.endswith("-rendered")
    (tmp_path / "a" / "images" / "val" / image).write_bytes(b"other")
    found_in.cache_clear()
    assert own.at(data=tmp_path / "a").content not in (pictured.content, found[0].content)


def test_the_command_knows_tasks(fspool, tmp_path):
    code, _, errors = fspool("run", "dspn", "--task", "box", "--out", tmp_path)
    assert code == 1 and "perhaps 'boxes'" in errors
    code, _, errors = fspool("run", "polygons", "--task", "boxes", "--out", tmp_path)
    assert code == 1 and "polygons has no tasks to choose from" in errors
    cells = of_tasks(experiment.cells("paper"), "dspn", ["states"])
    assert len(cells) == 4 and all(cell.task == "states" for cell in cells.values())


def test_names_that_are_not_there(cell):
    with pytest.raises(UserError, match="perhaps 'states'"):
        cell(task="state")
    with pytest.raises(UserError, match="expected one of fspool, sum, max"):
        cell(pool="median")
