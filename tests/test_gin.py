"""The graph network: what a slow dense one computes, for one run or many."""

import copy

import pytest
import torch
from torch.nn.functional import batch_norm, linear, one_hot

from fspool import FSPool
from fspool.checks import UserError
from fspool.data.graph_batches import Room, Shelf
from fspool.lab.replicas import select, stack
from fspool.models import gin
from fspool.models.gin import GIN
from fspool.models.readout import read_out

from .made_graphs import Drawn, as_graphs, drawn

MADE = drawn(8, 1)
SHELF = Shelf.of(as_graphs(MADE))
WIDTH, COLUMNS = 6, 4
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def made(seed=0, **settings):
    torch.manual_seed(seed)
    return GIN(COLUMNS, WIDTH, 3, blocks=3, **settings).double()


def batch_of(*rows, more=0):
    """One row of numbers a replica."""
    numbers = torch.tensor(rows)
    room = SHELF.room(numbers)
    return SHELF.take(numbers, Room(room.nodes + more, room.edges + more))


def scores(model, batch, **options):
    return model(*batch[:4], **options)


def densely(model, graphs: list[Drawn], pool, *, eps_of=lambda c: 0, norm_first=False, keep=1):
    """Graph by graph, with adjacency matrices; batch normalisation over all nodes."""

    def norm(layer, x):
        return batch_norm(x, None, None, layer.weight, layer.bias, training=True)

    x = [one_hot(graph.kinds, COLUMNS).double() for graph in graphs]
    sizes, vectors = [len(each) for each in x], []
    for block, own in zip(model.blocks, model.pools, strict=True):
        eps = eps_of(x[0].shape[1])
        summed = [(1 + eps) * h + g.adjacency.double() @ h for h, g in zip(x, graphs, strict=True)]
        h = torch.cat(summed)
        for layer, own_norm in zip((block.first, block.second), block.norms, strict=True):
            h = linear(h, layer.weight, layer.bias)
            h = norm(own_norm, h).relu() if norm_first else norm(own_norm, h.relu())
        x = list(h.split(sizes))
        vectors.append(torch.stack([pool(own, each) for each in x]))
    hidden = norm(model.norm, torch.cat(vectors, -1))
    hidden = linear(hidden, model.hidden.weight, model.hidden.bias).relu()
    return linear(hidden * keep, model.scores.weight, model.scores.bias)


def by_rank(pool, x):
    """FSPool of one set, from the formula: a piecewise-linear weight for every rank."""
    s, k = x.sort(0, descending=True).values, pool.weight.shape[1]
    place = torch.linspace(0, k - 1, len(x), dtype=x.dtype).clamp(max=k - 1)
    hats = (1 - (place[:, None] - torch.arange(k)).abs()).clamp(min=0)
    return (s * (hats @ pool.weight.T)).sum(0)


POOLS = {"fspool": by_rank, "sum": lambda _, x: x.sum(0), "mean": lambda _, x: x.mean(0)}
VARIANTS = [
    {},
    {"norm_first": True},
    {"wide_eps": True},
]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("settings", VARIANTS)
def test_values_and_gradients_are_those_of_the_dense_network(pool, settings):
    model = made(pool=pool, **settings)
    if pool == "fspool":
        for own in model.pools:
            torch.nn.init.normal_(own.weight)  # as sums they would show less
    dense, numbers = copy.deepcopy(model), [4, 0, 7, 2, 1]
    keep = torch.rand(1, 5, WIDTH, dtype=torch.float64)
    y = scores(model, batch_of(numbers, more=5), keep=keep)
    options = {"norm_first": settings.get("norm_first", False), "keep": keep[0]}
    if settings.get("wide_eps"):
        options["eps_of"] = lambda columns: columns
    expected = densely(dense, [MADE[i] for i in numbers], POOLS[pool], **options)
    torch.testing.assert_close(y[0], expected, **CLOSE)
    weights = torch.randn_like(expected)
    (y[0] * weights).sum().backward()
    (expected * weights).sum().backward()
    for (name, own), other in zip(model.named_parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, msg=lambda m, n=name: f"{n}: {m}", **CLOSE)


def test_fspool_starts_as_the_sum():
    both = [made(pool=pool) for pool in ("fspool", "sum")]
    assert all(isinstance(pool, FSPool) and pool.knots == 5 for pool in both[0].pools)
    both[1].load_state_dict(both[0].state_dict(), strict=False)
    batch = batch_of([0, 1, 2])
    torch.testing.assert_close(*(scores(model, batch) for model in both), **CLOSE)


@pytest.mark.parametrize("pool", POOLS)
def test_a_replica_is_the_single_run(pool):
    singles = [made(seed, pool=pool) for seed in range(3)]
    together = stack(singles)
    rows = [[0, 1, 2, 3], [4, 4, 5, -1], [7, -1, -1, -1]]
    batch, there = batch_of(*rows), torch.tensor(rows) >= 0
    weights = torch.randn(3, 4, 3, dtype=torch.float64) * there.unsqueeze(-1)
    y = scores(together, batch)
    (y * weights).sum().backward()
    for run, (single, row) in enumerate(zip(singles, rows, strict=True)):
        own = scores(single, batch_of(row))
        torch.testing.assert_close(own[0, there[run]], y[run, there[run]], **CLOSE)
        (own[0] * weights[run]).sum().backward()
        mine = select(together, slice(run, run + 1)).state_dict()
        for name, value in single.state_dict().items():  # running means among them
            torch.testing.assert_close(value, mine[name][0], **CLOSE)
        for (name, own), other in zip(
            single.named_parameters(), together.parameters(), strict=True
        ):
            torch.testing.assert_close(
                own.grad, other.grad[run], msg=lambda m, n=name: f"{n}: {m}", **CLOSE
            )


@pytest.mark.parametrize("training", [True, False])
def test_room_to_spare_and_missing_graphs_do_not_matter(training):
    model = stack([made()]).train(training)
    numbers = [3, 1, 6]
    expected = scores(copy.deepcopy(model), batch_of(numbers))
    more = scores(copy.deepcopy(model), batch_of([*numbers, -1, -1], more=70))
    torch.testing.assert_close(more[:, :3], expected, **CLOSE)


def test_pools_are_called_as_they_are():
    """With whatever they have beside their weights, such as a temperature."""
    x, offsets = torch.randn(2, 6, 3), torch.tensor([[0, 2, 6], [0, 1, 4]])
    pool = stack([FSPool(3, temperature=1.0) for _ in range(2)])
    for longest in (None, 4):
        torch.testing.assert_close(read_out(pool, x, offsets, longest), pool(x, offsets=offsets))


def test_order_of_graphs_and_of_nodes():
    model = stack([made()])
    numbers = [0, 2, 3, 5]
    expected = scores(copy.deepcopy(model), batch_of(numbers))
    order = [2, 0, 3, 1]
    moved = scores(copy.deepcopy(model), batch_of([numbers[i] for i in order]))
    torch.testing.assert_close(moved, expected[:, order], **CLOSE)
    turned = []
    for graph in MADE:
        nodes = torch.randperm(len(graph.kinds))
        turned.append(Drawn(graph.adjacency[nodes][:, nodes], graph.kinds[nodes], graph.label))
    shelf = Shelf.of(as_graphs(turned))
    batch = shelf.take(torch.tensor([numbers]), shelf.room(torch.tensor([numbers])))
    torch.testing.assert_close(scores(model, batch), expected, **CLOSE)


def test_a_lookup_is_a_product_with_one_hot_features(monkeypatch):
    """Narrow, wide, and with features that are given: the same, gradients included."""
    batch, found = batch_of([0, 1, 2], [3, 4, 5], more=3), []
    for narrow, given in ((64, False), (0, False), (64, True)):
        monkeypatch.setattr(gin, "NARROW", narrow)
        model = stack([made(0), made(1)])
        x = one_hot(batch.kinds.long(), COLUMNS).double() if given else batch.kinds
        y = model(x, *batch[1:4])
        y.square().sum().backward()
        found.append([y, *(parameter.grad for parameter in model.parameters())])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], **CLOSE)
    monkeypatch.setattr(gin, "NARROW", 0)
    single = made(1)(*batch_of([3, 4, 5])[:4])
    torch.testing.assert_close(single[0], found[0][0][1], **CLOSE)


def test_in_evaluation_a_graph_does_not_depend_on_the_others():
    model = stack([made()])
    scores(model, batch_of([0, 1, 2, 3]))
    model.eval()
    alone = torch.cat([scores(model, batch_of([i])) for i in (5, 6)], 1)
    torch.testing.assert_close(scores(model, batch_of([5, 6])), alone, **CLOSE)


def test_a_pool_that_is_not_known():
    with pytest.raises(UserError, match="pool is 'mena'; expected one of .*, perhaps 'mean'"):
        GIN(3, 4, 2, pool="mena")
