"""FSPool as an aggregation of PyTorch Geometric: in groups, in layers, in models."""

import copy
import doctest
import importlib
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fspool

from .made_graphs import drawn, write_tu
from .mirror import Mirror, serve
from .refusals import refuses

pytest.importorskip("torch_geometric", reason="needs the extra pyg")

from torch_geometric import EdgeIndex, Index  # noqa: E402
from torch_geometric.data import Batch, Data  # noqa: E402
from torch_geometric.datasets import TUDataset  # noqa: E402
from torch_geometric.nn import (  # noqa: E402
    GATConv,
    GINConv,
    MessagePassing,
    SumAggregation,
    TransformerConv,
)
from torch_geometric.nn.aggr import MeanAggregation, MultiAggregation  # noqa: E402

from fspool.integrations.pyg import FSPoolAggregation  # noqa: E402

F = 3
TOLERANCES = [(torch.float64, 1e-12), (torch.float32, 1e-6)]


def make(dtype=torch.float64, **keywords):
    torch.manual_seed(3)
    return FSPoolAggregation(F, knots=4, **keywords).to(dtype)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def groups_of(sizes):
    """The groups of sorted elements, twice: index and ptr."""
    sizes = torch.tensor(sizes)
    index = torch.arange(len(sizes)).repeat_interleave(sizes)
    return index, nn.functional.pad(sizes.cumsum(0), (1, 0))


def each_alone(aggr, x, index, groups):
    """The truth: every group a full set of its own, through the dense module."""
    return torch.cat([aggr.pool(x[index == g][None]) for g in range(groups)])


# --------------------------------------------------------------------------------------------------
# Groups


@pytest.mark.parametrize("dtype, tolerance", TOLERANCES)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_agrees_with_the_dense_module(dtype, tolerance, sizes, seed):
    torch.manual_seed(seed)
    (index, ptr), x = groups_of(sizes), draw(sum(sizes), F, dtype=dtype)
    aggr, shuffled = make(dtype), torch.randperm(len(index))
    dense, filled = fspool.sets.to_padded(x, ptr)
    pool = fspool.FSPool(F, knots=4, dtype=dtype)
    pool.load_state_dict(aggr.pool.state_dict())
    expected = pool(dense, sizes=filled)
    for got in (
        aggr(x, index, dim_size=len(sizes)),
        aggr(x[shuffled], index[shuffled], dim_size=len(sizes)),
        aggr(x, ptr=ptr),
        aggr(x, index, ptr),
    ):
        assert got.shape == (len(sizes), F) and got.dtype == dtype
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


def test_the_order_inside_a_group_does_not_matter_but_its_members_do():
    aggr, x = make(), draw(6, F)
    index = torch.tensor([0, 1, 0, 1, 0, 1])
    y = aggr(x, index)
    torch.testing.assert_close(aggr(x[[4, 3, 2, 5, 0, 1]], index), y)
    assert not torch.isclose(aggr(x[[1, 0, 2, 3, 4, 5]], index), y).all(-1).any()


def test_an_unsorted_index_gives_the_bits_of_a_sorted_one():
    aggr, x, index = make(torch.float32), draw(50, F, dtype=torch.float32), torch.randint(7, (50,))
    order = index.sort(stable=True).indices
    assert torch.equal(aggr(x, index), aggr(x[order], index[order]))


def test_ptr_goes_before_index():
    aggr, x, (_, ptr) = make(), draw(5, F), groups_of([2, 0, 3])
    assert torch.equal(aggr(x, torch.zeros(5, dtype=torch.long), ptr), aggr(x, ptr=ptr))


def test_groups_without_elements_give_zeros():
    aggr, x, index = make(), draw(4, F), torch.tensor([3, 1, 1, 3])
    y = aggr(x, index, dim_size=6)
    assert (y[[0, 2, 4, 5]] == 0).all() and (y[[1, 3]] != 0).all()
    assert aggr(x, index).shape == (4, F)  # without dim_size the last group is the largest named
    nothing = x[:0], index[:0]
    assert aggr(*nothing).shape == (0, F)
    assert (aggr(*nothing, dim_size=2) == 0).all() and aggr(*nothing, dim_size=2).shape == (2, F)


def test_without_groups_all_is_one():
    aggr, x = make(), draw(5, F)
    torch.testing.assert_close(aggr(x), aggr.pool(x[None]))


def test_one_element_takes_the_first_knot():
    aggr, x = make(), draw(2, F)
    torch.testing.assert_close(aggr(x, torch.tensor([1, 0])), x.flip(0) * aggr.pool.weight[:, 0])


@pytest.mark.parametrize("convert", [torch.Tensor.int, torch.Tensor.byte, Index])
def test_kinds_of_index(convert):
    aggr, x, (index, ptr) = make(), draw(5, F), groups_of([2, 0, 3])
    y = aggr(x, convert(index))
    assert type(y) is torch.Tensor and torch.equal(y, aggr(x, ptr=ptr))


@pytest.mark.parametrize(
    "shape, dim",
    [
        ((5, F), 0),
        ((F, 5), -1),
        ((F, 5), 1),
        ((2, 5, F), -2),
        ((2, 5, F), 1),
        ((5, 2, F), 0),
        ((2, F, 5), -1),
        ((2, 4, 5, F), -2),
        ((5, 2, 4, F), -4),
        ((0, 5, F), -2),
    ],
)
def test_other_axes(shape, dim):
    aggr, x, index = make(), draw(*shape), torch.tensor([2, 0, 0, 2, 0])
    moved = x.movedim(dim, -2)
    slices = [each_alone(aggr, s, index, 4) for s in moved.reshape(-1, 5, F)]
    expected = torch.stack(slices) if slices else draw(0, 4, F)
    expected = expected.reshape(*moved.shape[:-2], 4, F).movedim(-2, dim)
    order = index.sort(stable=True).indices
    by_index = aggr(x, index, dim_size=4, dim=dim)
    by_ptr = aggr(x.index_select(dim, order), ptr=torch.tensor([0, 3, 3, 5, 5]), dim=dim)
    torch.testing.assert_close(by_index, expected)
    assert torch.equal(by_index, by_ptr)
    torch.testing.assert_close(  # as PyG's own aggregations do it
        make(init="ones")(x, index, dim_size=4, dim=dim),
        SumAggregation()(x, index, dim_size=4, dim=dim),
    )


# --------------------------------------------------------------------------------------------------
# As a module


@pytest.mark.parametrize("temperature", [None, 0.5])
def test_gradients_to_second_order(temperature):
    aggr, index = make(temperature=temperature), torch.tensor([2, 0, 2, 2, 3])
    x = draw(5, F).requires_grad_()
    stacked = draw(2, 5, F).requires_grad_()

    def function(x, _):
        return aggr(x, index, dim_size=5)

    for data in (x, stacked):
        assert torch.autograd.gradcheck(function, (data, aggr.pool.weight))
        assert torch.autograd.gradgradcheck(function, (data, aggr.pool.weight))


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_half_precision(dtype, tolerance):
    x, index = draw(40, F, dtype=dtype), torch.randint(4, (40,))
    exact = make()(x.double(), index)
    for aggr in (make(dtype), make(torch.float32)):
        y = aggr(x, index)
        assert y.dtype == dtype
        torch.testing.assert_close(y.double(), exact, atol=5 * tolerance, rtol=tolerance)


def test_compiled_values_and_gradients_equal_eager():
    aggr, x, (index, ptr) = make(), draw(7, F).requires_grad_(), groups_of([2, 0, 5])
    compiled = torch.compile(aggr, fullgraph=True)
    for keywords in ({"ptr": ptr, "dim_size": 3}, {"index": index.flip(0), "dim_size": 4}):
        got, expected = compiled(x, **keywords), aggr(x, **keywords)
        torch.testing.assert_close(got, expected)
        g, inputs = torch.randn_like(got), (x, aggr.pool.weight)
        for a, b in zip(
            torch.autograd.grad(got, inputs, g),
            torch.autograd.grad(expected, inputs, g),
            strict=True,
        ):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("temperature", [None, 0.5])
def test_nothing_waits_where_the_number_of_groups_is_known(temperature):
    """On the meta device there are no values: whoever would wait for one fails."""
    aggr = make(temperature=temperature).to("meta")
    x, (index, ptr) = draw(5, F).to("meta").requires_grad_(), groups_of([2, 0, 3])
    index, ptr = index.to("meta"), ptr.to("meta")
    for keywords in ({"ptr": ptr}, {"ptr": ptr, "dim_size": 3}, {"index": index, "dim_size": 3}):
        y = aggr(x, **keywords)
        assert y.shape == (3, F)
        assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape
    with pytest.raises(RuntimeError, match="meta"):
        aggr(x, index)


def test_copies_and_state_dict():
    aggr, x, index = make(), draw(5, F), torch.tensor([0, 1, 0, 1, 0])
    other = FSPoolAggregation(F, knots=4, dtype=torch.float64)
    assert not torch.equal(other(x, index), aggr(x, index))
    other.load_state_dict(aggr.state_dict())
    assert set(aggr.state_dict()) == {"pool.weight"}
    for same in (other, copy.deepcopy(aggr)):
        assert torch.equal(same(x, index), aggr(x, index))


def test_reset_parameters():
    aggr = FSPoolAggregation(F, init="ones", temperature=0.5)
    with torch.no_grad():
        aggr.pool.weight.zero_()
        aggr.pool.temperature.fill_(0.1)
    aggr.reset_parameters()
    assert (aggr.pool.weight == 1).all() and aggr.pool.temperature == 0.5


def test_repr():
    assert repr(FSPoolAggregation(16)) == "FSPoolAggregation(16, knots=20)"
    relaxed = FSPoolAggregation(16, 5, temperature=0.5)
    assert repr(relaxed) == "FSPoolAggregation(16, knots=5, temperature=0.5)"


def test_constructor_arguments_reach_the_pool():
    aggr = FSPoolAggregation(
        F, 7, init="ones", temperature=2.0, hard_eval=True, device="meta", dtype=torch.float64
    )
    assert aggr.in_channels == F and aggr.pool.weight.shape == (F, 7)
    assert aggr.pool.weight.is_meta and aggr.pool.weight.dtype == torch.float64
    assert aggr.pool.init == "ones" and aggr.pool.hard_eval
    assert aggr.pool.first_temperature == 2.0


def test_a_relaxed_sort_follows_its_schedule_and_ends_hard():
    aggr, x, index = (
        make(temperature=1.0, hard_eval=True),
        draw(5, F),
        torch.tensor([0, 1, 0, 1, 0]),
    )
    decay = fspool.nn.TemperatureDecay(aggr, end=1e-6, steps=1)
    soft, hard = aggr(x, index), aggr.eval()(x, index)
    assert not torch.allclose(soft, hard)
    decay.step()
    torch.testing.assert_close(aggr.train()(x, index), hard)


# --------------------------------------------------------------------------------------------------
# In layers and models


class Passing(MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)


EDGES = torch.tensor([[3, 0, 1, 2, 0, 3, 2], [1, 1, 0, 1, 0, 2, 0]])  # nothing goes to node 3


def neighbours_alone(aggr, x, edges):
    return each_alone(aggr, x[edges[0]], edges[1], len(x))


@pytest.mark.parametrize("form", ["unsorted", "EdgeIndex", "sorted EdgeIndex", "sparse"])
def test_message_passing(form):
    aggr, x = make(), draw(4, F)
    expected = neighbours_alone(aggr, x, EDGES)
    assert (expected[3] == 0).all() and (expected[:3] != 0).all()
    edges = EDGES
    if form == "sparse":
        weights = torch.ones(EDGES.shape[1], dtype=torch.float64)
        edges = torch.sparse_coo_tensor(EDGES.flip(0), weights, (4, 4), check_invariants=True)
        edges = edges.coalesce()
    if "EdgeIndex" in form:
        edges = EdgeIndex(EDGES, sparse_size=(4, 4))
    if form == "sorted EdgeIndex":
        edges = edges.sort_by("col").values
        edges.fill_cache_()  # now PyG passes ptr as well as index
    torch.testing.assert_close(Passing(aggr)(x, edges), expected)


def test_message_passing_against_the_flow_and_along_another_axis():
    aggr, x = make(), draw(4, 2, F)
    got = Passing(aggr, flow="target_to_source", node_dim=0)(x, EDGES.flip(0))
    expected = [neighbours_alone(aggr, x[:, i], EDGES) for i in range(2)]
    torch.testing.assert_close(got, torch.stack(expected, 1))


@pytest.mark.parametrize("layer", [GATConv, TransformerConv])
def test_layers_of_several_heads(layer):
    torch.manual_seed(0)
    x = draw(4, F).requires_grad_()
    heads = layer(F, F, heads=2, aggr=make()).double()
    heads(x, EDGES).sum().backward()
    plain = layer(F, F, heads=2, aggr=FSPoolAggregation(F, init="ones").double()).double()
    sums = layer(F, F, heads=2, aggr="sum").double()
    sums.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(plain(x, EDGES), sums(x, EDGES))  # weights of 1 make a sum
    assert x.grad.isfinite().all() and heads.aggr_module.pool.weight.grad.any()


def test_multi_aggregation():
    aggr, mean = make(), MeanAggregation()
    x, index = draw(6, F), torch.tensor([0, 2, 0, 2, 2, 0])
    multi = MultiAggregation([mean, aggr, "max"])
    got = multi(x, index, dim_size=4)
    assert got.shape == (4, 3 * F)
    torch.testing.assert_close(got[:, :F], mean(x, index, dim_size=4))
    torch.testing.assert_close(got[:, F : 2 * F], aggr(x, index, dim_size=4))
    added = Passing([mean, aggr], aggr_kwargs={"mode": "sum"})(draw(4, F), EDGES)
    assert added.shape == (4, F)
    before = aggr.pool.weight.clone()
    multi.reset_parameters()
    assert not torch.equal(aggr.pool.weight, before)


class Model(nn.Module):
    """GIN with FSPool among the neighbours, and again for the whole graph."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(1, 8)
        network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.conv = GINConv(network, aggr=FSPoolAggregation(8, knots=3))
        self.readout, self.leave = FSPoolAggregation(8, knots=3), nn.Linear(8, 1)

    def forward(self, data):
        x = self.conv(self.enter(data.x), data.edge_index)
        return self.leave(self.readout(x, data.batch, dim_size=data.num_graphs)).squeeze(-1)


def ring(nodes):
    """As a graph to regress on: its target is the range of the numbers on its nodes."""
    here = torch.arange(nodes)
    edges = torch.stack([torch.cat([here, here]), torch.cat([here.roll(1), here.roll(-1)])])
    x = torch.randn(nodes, 1)
    return Data(x=x, edge_index=edges, y=x.max() - x.min())


def test_a_model_learns_and_does_not_see_the_order_of_nodes_or_edges():
    data, model = Batch.from_data_list([ring(n) for n in (3, 5, 8, 4)]), Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(data) - data.y).square().mean()
        loss.backward()
        assert all(p.grad.abs().sum() > 0 for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2

    nodes, edges = torch.randperm(data.num_nodes), torch.randperm(data.num_edges)
    places = nodes.argsort()
    moved = copy.copy(data)
    moved.x, moved.batch = data.x[nodes], data.batch[nodes]
    moved.edge_index = places[data.edge_index[:, edges]]
    assert (moved.batch.diff() < 0).any()  # an unsorted index
    torch.testing.assert_close(model(moved), model(data), atol=1e-4, rtol=1e-4)


def test_the_example_in_the_docstring_runs():
    module = sys.modules[FSPoolAggregation.__module__]
    result = doctest.testmod(module, extraglobs={"torch": torch})
    assert result.failed == 0 and result.attempted == 3


def test_the_example_tells_graphs_apart(one_thread, capsys):
    example = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "graphs.py"))
    assert example["main"]() > 0.85  # half of the graphs are of either kind
    assert len(capsys.readouterr().out.splitlines()) == 10


def classify_graphs(*arguments):
    path = Path(__file__).parent.parent / "examples" / "graph_classification.py"
    return runpy.run_path(str(path))["main"]([str(word) for word in arguments])


def test_the_example_of_a_data_set_trains_and_agrees_with_the_dense_module(
    one_thread, capsys, tmp_path
):
    write_tu(tmp_path, "MUTAG", drawn(80, 5, largest=12))
    (tmp_path / "MUTAG").mkdir()
    (tmp_path / "tu" / "MUTAG").rename(tmp_path / "MUTAG" / "raw")
    _, off = classify_graphs("--root", tmp_path, "--epochs", 20, "--hidden", 16)
    assert off < 1e-6
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", capsys.readouterr().out)]
    assert len(losses) == 2 and losses[1] < 0.5


@pytest.mark.parametrize("status", [503, 404, 0], ids=["503", "404", "a page instead"])
def test_the_example_says_what_to_do_where_it_cannot_download(tmp_path, monkeypatch, status):
    with serve(Mirror({"MUTAG.zip": b"<html>"}, status=status)) as mirror:
        assert "()" not in ends_in_a_sentence(tmp_path, monkeypatch, mirror.url)


def test_the_example_says_what_to_do_where_nobody_answers(tmp_path, monkeypatch):
    with serve(Mirror({})) as mirror:
        pass
    assert "Cannot connect" in ends_in_a_sentence(tmp_path, monkeypatch, mirror.url)


def ends_in_a_sentence(root, monkeypatch, url):
    monkeypatch.setenv("PYG_HOME", str(root / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(TUDataset, "url", url.rstrip("/"))
    with pytest.raises(SystemExit) as ended:
        classify_graphs("--root", root)
    sentence = ended.value.code
    assert sentence.startswith("MUTAG could not be loaded (") and "\n" not in sentence
    assert sentence.endswith("so that MUTAG_A.txt lies there, and pass --root DIR.")
    return sentence


# --------------------------------------------------------------------------------------------------
# What cannot be right


def ints(*values):
    return torch.tensor(values)


X, INDEX, PTR = torch.ones(4, F), ints(0, 1, 1, 2), ints(0, 1, 3, 4)
BAD = {  # arguments, the error, parts of the sentence
    "int x": ({"x": X.long()}, TypeError, "x", "torch.int64", "floating"),
    "other features": ({"x": torch.ones(4, 5)}, ValueError, "x", "(4, 5)", "in_channels = 3"),
    "1-d x": ({"x": torch.ones(4), "dim": 0}, ValueError, "x", "(4,)", "(*, N, F)"),
    "wrong dim": ({"dim": -1}, ValueError, "x", "(4, 3)", "dim=-1"),
    "sparse x": ({"x": X.to_sparse()}, ValueError, "x", "torch.sparse_coo", "dense"),
    "float index": ({"index": INDEX.float()}, TypeError, "index", "torch.float32", "integer"),
    "short index": ({"index": INDEX[:3]}, ValueError, "index", "(3,)", "(4,)"),
    "2-d index": ({"index": INDEX[None]}, ValueError, "index", "(1, 4)", "(4,)"),
    "negative index": ({"index": INDEX - 1}, ValueError, "index", "-1 to 1", "from 0"),
    "index on another device": (
        {"index": INDEX.to("meta"), "dim_size": 3},
        ValueError,
        "index",
        "meta",
        "cpu",
    ),
    "small dim_size": ({"dim_size": 2}, ValueError, "index", "0 to 2", "below dim_size=2"),
    "small dim_size for an Index": (
        {"index": Index(INDEX), "dim_size": 2},
        ValueError,
        "index",
        "0 to 2",
        "dim_size=2",
    ),
    "negative dim_size": ({"dim_size": -1}, ValueError, "dim_size", "-1", "at least 0"),
    "fractional dim_size": ({"dim_size": 3.0}, ValueError, "dim_size", "3.0", "integer"),
    "small max_num_elements": (
        {"max_num_elements": 1},
        ValueError,
        "max_num_elements",
        "max_num_elements is 1",
        "2 elements",
    ),
    "float max_num_elements": (
        {"ptr": PTR, "max_num_elements": 2.5},
        ValueError,
        "max_num_elements",
        "2.5",
        "integer",
    ),
    "float ptr": ({"ptr": PTR.float()}, TypeError, "ptr", "torch.float32", "integer"),
    "2-d ptr": ({"ptr": PTR[None]}, ValueError, "ptr", "(1, 4)", "(B + 1,)"),
    "ptr from 1": ({"ptr": ints(1, 3, 4)}, ValueError, "ptr", "1", "0"),
    "ptr that decreases": ({"ptr": ints(0, 3, 2, 4)}, ValueError, "ptr", "3 to 2", "decrease"),
    "short ptr": ({"ptr": ints(0, 3)}, ValueError, "ptr", "3", "4"),
    "short ptr for stacked x": (
        {"x": torch.ones(2, 4, F), "ptr": ints(0, 3)},
        ValueError,
        "ptr",
        "3",
        "4",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_input(case):
    arguments, error, *parts = case
    arguments = {"x": X, **({} if "ptr" in arguments else {"index": INDEX}), **arguments}
    refuses(lambda: FSPoolAggregation(F)(**arguments), error, *parts)


def test_bad_input_that_pyg_refuses():
    aggr = FSPoolAggregation(F)
    with pytest.raises(ValueError, match="dim_size"):
        aggr(X, ptr=PTR, dim_size=5)
    with pytest.raises(ValueError, match="dimension"):
        aggr(X, INDEX, dim=2)


def test_forward_alone_asks_for_groups_and_counts_them():
    aggr = make(torch.float32)
    refuses(lambda: aggr.forward(X), ValueError, "index", "ptr", "neither")
    assert torch.equal(aggr.forward(X, INDEX), aggr(X, INDEX))


@pytest.mark.parametrize(
    "keywords, error, name, parts",
    [
        ({"in_channels": 0}, ValueError, "in_channels", ["0", "at least 1"]),
        ({"in_channels": 2.5}, ValueError, "in_channels", ["2.5", "integer"]),
        ({"in_channels": F, "knots": 1}, ValueError, "knots", ["1", "at least 2"]),
        ({"in_channels": F, "init": "zeros"}, ValueError, "init", ["zeros", "normal"]),
        ({"in_channels": F, "temperature": -1.0}, ValueError, "temperature", ["-1.0", "positive"]),
        ({"in_channels": F, "dtype": torch.int64}, TypeError, "dtype", ["torch.int64"]),
    ],
)
def test_constructor(keywords, error, name, parts):
    refuses(lambda: FSPoolAggregation(**keywords), error, name, *parts)


@pytest.fixture
def import_again(monkeypatch):
    """Import the adapter beside another torch_geometric, or beside None, which is missing."""

    def again(library):
        monkeypatch.setitem(sys.modules, "torch_geometric", library)
        monkeypatch.delitem(sys.modules, "fspool.integrations.pyg")
        importlib.import_module("fspool.integrations.pyg")

    return again


def test_without_pyg_one_sentence_says_what_to_install(import_again):
    refuses(
        lambda: import_again(None),
        ImportError,
        "torch_geometric",
        "pip install '.[pyg]' in a clone",
    )


def test_a_broken_pyg_is_not_called_missing(import_again):
    def fail(name):
        raise ModuleNotFoundError("No module named 'tqdm'", name="tqdm")

    library = ModuleType("torch_geometric")
    library.__getattr__ = fail
    with pytest.raises(ModuleNotFoundError, match="^No module named 'tqdm'$"):
        import_again(library)
