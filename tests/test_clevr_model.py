"""Question answering: every pool against a plain network, batches, the gradient, the schedules."""

import pytest
import torch
from torch import nn

from fspool.data.clevr import Clevr, Questions
from fspool.data.clevr.batches import Desk, kept, train_batches, tried_batches
from fspool.experiments.clevr import ClevrCell
from fspool.experiments.clevr_epochs import by_epoch, first_epoch
from fspool.experiments.clevr_schedules import SCHEDULES
from fspool.functional import fspool
from fspool.lab.replicas import stack
from fspool.lab.trainer import cut_gradients, make_optimiser
from fspool.models.clevr import POOLS, QuestionAnswering, relu_of_sum
from fspool.nn import JanossyPool, RelationNetwork

from . import clevr

SIZES = {"embedding": 6, "hidden": 8, "width": 10, "knots": 5}


@pytest.fixture(scope="module")
def desk() -> Desk:
    made = clevr.block(12)
    words = {name: torch.from_numpy(array) for name, array in made.questions.items()}
    return Desk.of(Clevr(clevr.scenes_of(made), Questions(**words)))


def batches(desk, seeds=(0,), steps=range(1), batch=32, **options):
    drawing = {"units": 20, "dropout": 0.05} | options
    return list(train_batches(desk, list(seeds), steps, batch, **drawing))


# --------------------------------------------------------------------------------------------------
# Against a network of torch's own layers, on 12 padded slots


def plain(model: QuestionAnswering, objects, sizes, words):
    """One scene and its question, by the letter of the specification."""
    weights = dict(model.named_parameters())
    embedding = nn.Embedding(83, 6, _weight=weights["question.embedding"])
    lstm = nn.LSTM(6, 8, batch_first=True)
    names = ("weight_input", "weight_hidden", "bias_input", "bias_hidden")
    for own, name in zip(lstm._flat_weights_names, names, strict=True):
        setattr(lstm, own, nn.Parameter(weights[f"question.{name}"].detach()))
    q = lstm(embedding(words.int())[None])[1][0][0, 0]
    x = torch.zeros(12, 7)
    x[: len(objects)] = objects
    n = int(sizes)

    def g(rows):
        rows = model.first(torch.cat((rows, q.expand(len(rows), -1)), -1)).relu()
        for layer in model.rest:
            rows = layer(rows).relu()
        return rows

    if model.kind == "none":
        y = q
    elif model.kind == "rn":
        y = g(torch.stack([torch.cat((a, b)) for a in x for b in x])).sum(0)
    elif model.kind == "fspool":
        y = 12 * fspool(g(x[:n])[None], model.pool.weight)[0]
    elif model.kind == "sum":
        y = 12 * g(x).sum(0)
    elif model.kind == "mean":
        y = 12 * g(x).sum(0) / n
    elif model.kind == "max":
        y = 12 * g(x).amax(0)
    else:
        lstm = nn.LSTM(10, 10, batch_first=True)
        for own, name in zip(lstm._flat_weights_names, names, strict=True):
            setattr(lstm, own, nn.Parameter(weights[f"pool.{name}"].detach()))
        y = lstm(g(x)[None])[1][1][0, 0]
    y = model.answer[0](y).relu()
    return model.answer[2](model.answer[1](y).relu())


@pytest.mark.parametrize("pool", POOLS)
def test_scores_are_those_of_a_plain_network(desk, pool):
    model = QuestionAnswering(pool=pool, **SIZES)
    (batch,) = batches(desk)
    with torch.no_grad():
        got = model(*(tensor[0] for tensor in batch[:4]))
        start = int(batch.start[0, 0])
        for i in (0, 5, 31):
            words = batch.words[0, i, start:]  # as long as the longest of the batch
            expected = plain(model, batch.objects[0, i], batch.sizes[0, i], words)
            torch.testing.assert_close(got[i], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", POOLS)
def test_replicas_are_the_models_that_they_are_made_of(desk, pool):
    models = [QuestionAnswering(pool=pool, **SIZES) for _ in range(2)]
    (batch,) = batches(desk, seeds=(0, 1))
    both = stack(models)
    together = both(*batch[:4], keep=batch.keep)
    together.sum().backward()
    for i, model in enumerate(models):
        alone = model(*(tensor[i] for tensor in batch[:4]), keep=batch.keep[i])
        torch.testing.assert_close(together[i], alone, rtol=1e-4, atol=1e-5)
        alone.sum().backward()
        own = dict(model.named_parameters())
        for name, parameter in both.named_parameters():
            torch.testing.assert_close(
                parameter.grad[i], own[name].grad, rtol=1e-3, atol=1e-4, msg=name
            )


@pytest.mark.parametrize("pool", ["fspool", "rn", "sum", "mean", "max"])
def test_padding_and_scaling_are_switches(desk, pool):
    (batch,) = batches(desk)
    inputs = [tensor[0] for tensor in batch[:4]]
    torch.manual_seed(0)
    model = QuestionAnswering(pool=pool, pool_padding=False, scaled=False, **SIZES)
    model.slots = 99  # that nobody looks at
    found = model(*inputs)
    n = int(inputs[1][0])
    alone = model(inputs[0][:1, :n], inputs[1][:1], inputs[2][:1], inputs[3][:1])
    torch.testing.assert_close(found[:1], alone, rtol=1e-4, atol=1e-5)
    torch.manual_seed(0)
    usual = QuestionAnswering(pool=pool, **SIZES)
    assert usual.scale == (1 if pool == "rn" else 12)
    assert not torch.allclose(usual(*inputs), found)


@pytest.mark.parametrize("pool", ["fspool", "rn", "sum", "mean", "max"])
def test_the_order_of_objects_does_not_matter(desk, pool):
    model = QuestionAnswering(pool=pool, **SIZES)
    (batch,) = batches(desk)
    objects, sizes, words, start = (tensor[0] for tensor in batch[:4])
    full = sizes == sizes.max()
    turned = objects[full].clone()
    n = int(sizes.max())
    turned[:, :n] = turned[:, :n].flip(1)
    rest = (sizes[full], words[full], start[full])
    torch.testing.assert_close(
        model(turned, *rest), model(objects[full], *rest), rtol=1e-4, atol=1e-5
    )


def test_weights_start_as_those_of_torch():
    model = QuestionAnswering().requires_grad_(False)
    first = model.first.weight
    assert first.shape == (512, 263)
    assert 0.99 < float(first.abs().max()) * 263**0.5 <= 1
    assert 0.99 < float(model.first.bias.abs().max()) * 263**0.5 <= 1.0001
    assert float(model.question.weight_hidden.abs().max()) * 16 == pytest.approx(1, abs=1e-3)
    assert float(model.question.embedding.std()) == pytest.approx(1, abs=0.05)
    assert (model.pool.weight == 1).all()
    assert QuestionAnswering(pool="rn").first.weight.shape == (512, 270)


def test_bfloat16_is_near_float32(desk):
    model = QuestionAnswering(**SIZES)
    (batch,) = batches(desk)
    inputs = [tensor[0] for tensor in batch[:4]]
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(*inputs).float()
    rough, exact = rough.detach(), model(*inputs).detach()
    assert 0 < float((rough - exact).abs().max()) < 0.05 * float(exact.abs().max())


# --------------------------------------------------------------------------------------------------
# Pools of the house that only this network uses


@pytest.mark.parametrize("shapes", [((2, 3, 4), (2, 1, 4)), ((2, 3, 1, 4), (2, 1, 3, 4))])
def test_relu_of_a_sum(shapes):
    one, other = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    assert torch.equal(relu_of_sum(one, other), (one + other).relu())
    assert torch.autograd.gradcheck(relu_of_sum, (one, other))
    assert torch.autograd.gradgradcheck(relu_of_sum, (one, other))


def test_relu_of_a_sum_in_bfloat16():
    one, other = (torch.randn(2, *n, 64, requires_grad=True) for n in ((300, 1), (1, 300)))
    with torch.autocast("cpu", torch.bfloat16):
        y = relu_of_sum(one, other)
    assert torch.equal(y, (one + other).relu().bfloat16())
    dy = torch.randn_like(y)
    expected = torch.autograd.grad((one + other).relu(), (one, other), dy.float())
    for actual, exact in zip(torch.autograd.grad(y, (one, other), dy), expected, strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, exact)


def test_relation_network_is_a_loop_over_pairs():
    x, sizes = torch.randn(3, 4, 5), torch.tensor([4, 1, 0])
    layer = nn.Linear(10, 6)
    net = RelationNetwork(nn.Sequential(layer, nn.ReLU()))
    x[1, 2] = float("nan")  # padding
    got = net(x, sizes=sizes)
    for y, scene, n in zip(got, x, sizes.tolist(), strict=True):
        pairs = [net.module(torch.cat((a, b))) for a in scene[:n] for b in scene[:n]]
        torch.testing.assert_close(y, sum(pairs, torch.zeros(6)))
    mask = torch.arange(4) < sizes.unsqueeze(-1)
    torch.testing.assert_close(net(x, mask=mask), got)
    torch.testing.assert_close(net(x[None], mask=mask)[0], got)
    with pytest.raises(ValueError, match="mask and sizes are both given"):
        net(x, mask=mask, sizes=sizes)
    with pytest.raises(TypeError, match="mask has dtype torch.int64; expected torch.bool"):
        net(x, mask=mask.long())
    with pytest.raises(ValueError, match=r"mask has shape \(3, 3\); expected \(3, 4\) to fit x"):
        net(x, mask=mask[:, :3])
    with pytest.raises(ValueError, match="sizes has values from -1 to 9; expected 0 to 4"):
        net(x, sizes=torch.tensor([9, -1, 0]))


def test_janossy_pooling_minds_the_order():
    pool, x = JanossyPool(4), torch.randn(2, 5, 4)
    assert pool(x).shape == (2, 4) and not torch.allclose(pool(x), pool(x.flip(1)))
    both = stack([pool, JanossyPool(4)])
    torch.testing.assert_close(both(x.expand(2, -1, -1, -1))[0], pool(x))
    one = nn.LSTM(4, 4, batch_first=True).double()
    exact = pool.double()
    one.load_state_dict(dict(zip(one.state_dict(), exact.state_dict().values(), strict=True)))
    torch.testing.assert_close(exact(x.double()), one(x.double())[1][1][0], rtol=1e-12, atol=0)


# --------------------------------------------------------------------------------------------------
# Batches


def test_an_epoch_has_every_question_once(desk):
    count = len(desk)
    steps = -(-count // 50)
    found = batches(desk, seeds=(3, 4), steps=range(2 * steps), batch=50)
    assert [int(batch.count[0]) for batch in found[:steps]] == [50] * (count // 50) + [count % 50]
    expected = desk.words.unique(dim=0, return_counts=True)
    for run in range(2):
        rows = torch.cat([batch.words[run][batch.answers[run] >= 0] for batch in found[:steps]])
        for one, two in zip(rows.unique(dim=0, return_counts=True), expected, strict=True):
            assert torch.equal(one, two)
    assert not torch.equal(found[0].words[0], found[0].words[1])
    assert not torch.equal(found[0].words, found[steps].words)
    last = found[steps - 1]
    nobody = last.answers < 0
    assert (last.sizes[nobody] == 0).all() and (last.objects[nobody] == 0).all()


def test_batches_do_not_depend_on_where_they_begin_or_who_trains_along(desk):
    whole = batches(desk, seeds=(0, 1), steps=range(8), batch=32)
    for step in (3, 7):
        (alone,) = batches(desk, seeds=(1,), steps=range(step, step + 1), batch=32)
        for one, two in zip(alone, whole[step], strict=True):
            assert torch.equal(one[0], two[1])


def test_questions_are_padded_to_the_longest_of_their_batch(desk):
    for batch in batches(desk, steps=range(4), batch=7):
        lengths = (batch.words != 0).sum(-1)
        room = batch.words.shape[-1]
        assert (batch.start == room - lengths.amax()).all()
        for row, n in zip(batch.words[0], lengths[0].tolist(), strict=True):
            assert (row[: room - n] == 0).all() and (row[room - n :] > 0).all()


def test_words_come_last_first(desk):
    made = clevr.block(12)
    n = int(made.questions["offsets"][1])
    assert desk.words[0, -n:].tolist() == made.questions["words"][:n][::-1].tolist()


def test_objects_are_shuffled_and_whole(desk):
    one, two = batches(desk, steps=range(1))[0], batches(desk, seeds=(1,))[0]
    for batch in (one, two):
        for row, n in zip(batch.objects[0], batch.sizes[0].tolist(), strict=True):
            assert (row[n:] == 0).all()
            scene = desk.features[(desk.features.sum((1, 2)) - row.sum()).abs().argmin()]
            assert torch.equal(row[:n].sort(0).values, scene[:n].sort(0).values)
    first = {tuple(row[0].tolist()) for row in one.objects[0]}
    assert len(first) > 12  # not always the first object of a scene


def test_dropout_drops_as_often_as_it_should():
    keep = kept([0, 1], range(3), 40, 999, 0.05, "cpu", torch.float32)
    assert keep.shape == (3, 2, 40, 999)
    assert float((keep == 0).float().mean()) == pytest.approx(0.05, abs=0.002)
    assert float(keep.max()) == pytest.approx(1 / 0.95)
    assert (kept([0], range(2), 4, 9, 0.0, "cpu", torch.float32) == 1).all()


def test_trials_are_the_same_in_whatever_pieces(desk):
    found = [tried_batches(desk, [0, 1], 25, piece) for piece in (1, 2, 100)]
    together = [torch.cat([piece.objects for piece in pieces], 1) for pieces in found]
    assert torch.equal(together[0], together[1]) and torch.equal(together[0], together[2])
    assert not torch.equal(*together[0])  # runs have orders of their own


def test_trials_are_all_questions_in_order(desk):
    pieces = tried_batches(desk, [0, 1], 25, 2)
    answers = torch.cat([piece.answers for piece in pieces], -1)
    assert torch.equal(answers[0][answers[0] >= 0], desk.answers)
    starts = torch.cat([piece.start for piece in pieces], -1)[0].split(25)
    for i, own in enumerate(starts[:-1]):
        longest = int(desk.lengths[25 * i : 25 * (i + 1)].max())
        assert (own == desk.words.shape[1] - longest).all()


# --------------------------------------------------------------------------------------------------
# Training


def test_schedules():
    rates = {name: [f(5e-6, 5e-4, e) for e in range(1, 351)] for name, f in SCHEDULES.items()}
    paper, released = rates["paper"], rates["released"]
    assert paper[19] == 5e-6 and paper[20] == 1e-5
    assert paper[119] == pytest.approx(1.6e-4) and paper[120] == pytest.approx(3.2e-4)
    assert paper[139] == pytest.approx(3.2e-4) and paper[140:] == [5e-4] * 210
    ends = [18, 38, 58, 78, 98, 118, 350]
    expected = [1e-5 * 2**i for i, end in enumerate(ends) for _ in range(end - [0, *ends][i])]
    assert released == pytest.approx(expected)


def test_a_long_gradient_is_cut_run_by_run():
    for runs in (1, 3):
        weights = [nn.Parameter(torch.zeros(runs, *shape)) for shape in ((3, 2), (4,))]
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        before = torch.cat([w.grad.flatten(1) for w in weights], 1)
        limit = float(before.norm(dim=1).median())
        cut_gradients(weights, limit)
        after = torch.cat([w.grad.flatten(1) for w in weights], 1)
        factors = (limit / before.norm(dim=1)).clamp(max=1)
        torch.testing.assert_close(after, before * factors.unsqueeze(-1))


def test_decay_is_added_to_the_gradient_and_moves_nothing_before_the_start():
    cell = ClevrCell(pool="none", learning_rate=1e-3, decay=0.1)
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    optimiser = make_optimiser(model, cell, torch.device("cpu"))
    assert torch.equal(model.weight, before)
    model.weight.grad, model.bias.grad = torch.zeros_like(before), torch.zeros(2)
    optimiser.step()
    torch.testing.assert_close(model.weight, before - 1e-3 * before.sign(), atol=1e-5, rtol=0)


# --------------------------------------------------------------------------------------------------
# From counts to numbers in tables


class Told:
    def __init__(self, name, right, seconds=3600.0):
        self.name, self.settings, self.seeds = name, {"tried": 1000}, list(range(len(right)))
        self.origins = [{"device": "x", "clock": [[0.0, seconds]], "runs": len(right)}]
        self.tallies = {"right": torch.tensor(right)}


def test_epochs_to_an_accuracy():
    assert first_epoch([97.0, 97.994, 97.996], 98.0) == 3  # in two decimals
    assert first_epoch([97.0], 98.0) is None
    counts = [[900, 979, 980, 985, 991], [900, 970, 975, 979, 979]]
    found = by_epoch([Told("fspool", counts)])["fspool by epoch"].metrics
    assert found["last"] == pytest.approx([99.1, 97.9])
    assert found["last epochs"] == pytest.approx([96.7, 96.06])
    assert found["epochs to 98.00"] == [3, None]
    assert found["epochs to 99.00"] == [5, None]
    assert found["hours"] == [0.5]  # shared by two runs
    assert found["hours to 99.00"] == [0.5, None]


def test_models_are_tested_from_five_runs_up():
    five, four = [[991], [992], [993], [992], [991]], [[980], [982], [984], [981]]
    found = by_epoch([Told("fspool", five), Told("sum", [*four, [983]]), Told("mean", four)])
    tested = found["fspool against sum"]
    assert 0 < tested.metrics["p"][0] < 0.01 and tested.cells == ["fspool", "sum"]
    assert "fspool against mean" not in found
