"""Sums over neighbours: the definition against a loop, the operator and its kernels against it.

Without a GPU the kernel runs in Triton's interpreter; what needs a real one is skipped.
"""

import pytest
import torch

from fspool.functional import dispatch
from fspool.functional.neighbours import neighbour_sum, neighbours_definition

from .cuda_graphs import replays_with_other_inputs
from .interpreter import DEVICE

pytest.importorskip("triton")  # Linux has it

needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
NAN = float("nan")


def random_edges(nodes, count):
    """Pairs of nodes (2, E), each in both directions, none twice."""
    adjacent = torch.zeros(nodes, nodes, dtype=torch.bool)
    if nodes:
        a, b = torch.randint(0, nodes, (2, count))
        adjacent[a, b] = adjacent[b, a] = True
        adjacent.fill_diagonal_(False)
    return adjacent.nonzero().T


def star(leaves):
    ends = torch.arange(1, leaves + 1)
    centre = torch.zeros_like(ends)
    return torch.cat((torch.stack((centre, ends)), torch.stack((ends, centre))), 1)


def hubs(centres, leaves):
    """Every leaf is a neighbour of every centre: more of them than a program takes at once."""
    centre, leaf = (
        t.flatten()
        for t in torch.meshgrid(
            torch.arange(centres), torch.arange(leaves) + centres, indexing="ij"
        )
    )
    return torch.cat((torch.stack((centre, leaf)), torch.stack((leaf, centre))), 1)


def pack(graphs, nodes=None, edges=None):
    """Graphs (nodes, pairs), one for each replica, with room that holds garbage."""
    nodes = nodes or max(n for n, _ in graphs) + 3
    edges = edges or max(pairs.shape[1] for _, pairs in graphs) + 5
    starts = torch.zeros(len(graphs), nodes + 1, dtype=torch.int32)
    sources = torch.randint(-(2**31), 2**31 - 1, (len(graphs), edges)).int()
    for g, (_, pairs) in enumerate(graphs):
        pairs = pairs[:, pairs[0].argsort(stable=True)]
        degrees = torch.bincount(pairs[0], minlength=nodes)
        starts[g, 1:] = degrees.cumsum(0)
        sources[g, : pairs.shape[1]] = pairs[1]
    return starts, sources


def example(graphs, dim, dtype=torch.float32, **room):
    starts, sources = pack(graphs, **room)
    x = torch.randn(len(graphs), starts.shape[1] - 1, dim).to(dtype)
    for g, (n, _) in enumerate(graphs):
        x[g, n:] = NAN
    return x, starts, sources


def by_loop(x, starts, sources):
    y = torch.zeros_like(x)
    for g in range(x.shape[0]):
        for i in range(x.shape[1]):
            for edge in range(int(starts[g, i]), int(starts[g, i + 1])):
                y[g, i] += x[g, sources[g, edge]]
    return y


def kernel(x, starts, sources, own=0.0):
    from fspool.kernels.cuda.neighbours import neighbour_sum

    return neighbour_sum(*(t.to(DEVICE) for t in (x, starts, sources)), own).cpu()


GRAPHS = {
    "three replicas": [(9, random_edges(9, 12)), (0, random_edges(0, 0)), (7, random_edges(7, 40))],
    "one replica": [(11, random_edges(11, 9))],
    "no edges": [(5, random_edges(5, 0))],
    "one node": [(1, random_edges(1, 3)), (2, random_edges(2, 3))],
    "dense": [(40, random_edges(40, 1200)), (30, random_edges(30, 400))],
    "hubs": [(153, hubs(3, 150)), (9, random_edges(9, 12)), (101, star(100))],
}
EACH = pytest.mark.parametrize("graphs", GRAPHS.values(), ids=GRAPHS.keys())
IMPLEMENTATIONS = {"definition": neighbours_definition, "cpu": neighbour_sum, "cuda": kernel}
BY_ALL = pytest.mark.parametrize("function", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())


@EACH
@BY_ALL
def test_the_sum_is_the_loop(function, graphs):
    x, starts, sources = example(graphs, 5, torch.float64)
    y = function(x, starts, sources)
    assert y.is_contiguous() and y.dtype == x.dtype
    torch.testing.assert_close(y, by_loop(x, starts, sources))
    single = function(x.float(), starts, sources)  # the terms may cancel, their errors do not
    assert ((single.double() - y).abs() <= 1e-6 * by_loop(x.abs(), starts, sources)).all()


@EACH
@BY_ALL
def test_a_node_may_count_itself(function, graphs):
    x, starts, sources = example(graphs, 5, torch.float64)
    expected = by_loop(x, starts, sources) + 1.5 * x
    y = function(x, starts, sources, 1.5)
    there = ~x.isnan()
    torch.testing.assert_close(y[there], expected[there])
    assert y[~there].isnan().all()


@BY_ALL
@pytest.mark.parametrize("dim", [1, 16, 32, 33, 64, 130])
def test_widths(function, dim):
    for graphs in (GRAPHS["three replicas"], GRAPHS["dense"], GRAPHS["hubs"]):
        x, starts, sources = example(graphs, dim)
        exact = neighbours_definition(x.double(), starts, sources)
        torch.testing.assert_close(
            function(x, starts, sources).double(), exact, rtol=1e-6, atol=1e-5
        )


@BY_ALL
def test_a_node_with_thousands_of_neighbours(function):
    leaves = 3000
    x, starts, sources = example([(leaves + 1, star(leaves)), (9, random_edges(9, 20))], 4)
    exact = neighbours_definition(x.double(), starts, sources)
    got = function(x, starts, sources).double()
    assert (got - exact).abs().max() <= 1e-6 * exact.abs().max()


@BY_ALL
def test_edges_that_are_there_twice_count_twice(function):
    pairs = torch.tensor([[0, 0, 1, 1, 2], [1, 1, 0, 0, 2]])  # and a loop
    x, starts, sources = example([(3, pairs)], 2, torch.float64)
    expected = torch.stack((2 * x[0, 1], 2 * x[0, 0], x[0, 2]))
    torch.testing.assert_close(function(x, starts, sources)[0, :3], expected)


def check_half_precision(function, dtype):
    """Sums that stand still where they are kept in few bits."""
    x, starts, sources = example([(3001, star(3000))], 3)
    x = x.abs().to(dtype)
    exact = neighbours_definition(x.double(), starts, sources)
    error = (function(x, starts, sources).double() - exact).abs()
    assert (error <= torch.finfo(dtype).eps * exact).all()


@pytest.mark.parametrize("function", [kernel, neighbour_sum], ids=["cuda", "cpu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(function, dtype):
    check_half_precision(function, dtype)


@pytest.mark.usefixtures("definition")
def test_half_precision_by_the_definition():
    check_half_precision(neighbour_sum, torch.bfloat16)


@BY_ALL
def test_integers_and_strides(function):
    x, starts, sources = example(GRAPHS["three replicas"], 6)
    expected = function(x, starts, sources)
    spread = x.mT.contiguous().mT, starts.long().T.contiguous().T, sources.long()
    assert not spread[0].is_contiguous()
    assert torch.equal(function(*spread), expected)


def test_sources_of_eight_bits():
    """Of more nodes than they can count: none of the others may slip in."""
    a = torch.arange(254)
    edges = torch.cat((torch.stack((a, a + 1)), torch.stack((a + 1, a))), 1)
    x, starts, sources = example([(300, edges)], 5)
    assert torch.equal(kernel(x, starts, sources.to(torch.uint8)), kernel(x, starts, sources))


@pytest.mark.parametrize("graphs", ["three replicas", "hubs"])
def test_memory_counted_in_64_bits(monkeypatch, graphs):
    from fspool.kernels.cuda import neighbours

    x, starts, sources = example(GRAPHS[graphs], 6)
    expected = kernel(x, starts, sources)
    launched = []

    class Wide:
        def __getitem__(self, grid):
            def launch(*arguments, **options):
                launched.append(arguments[7])
                return original[grid](*arguments[:7], True, *arguments[8:], **options)

            return launch

    original = neighbours._sum
    monkeypatch.setattr(neighbours, "_sum", Wide())
    assert torch.equal(kernel(x, starts, sources), expected) and launched == [False]


@pytest.mark.parametrize("dim", [2, 0])
def test_no_nodes(dim):
    for groups, nodes in ((2, 0), (0, 4)):
        x = torch.randn(groups, nodes, dim)
        starts, sources = torch.zeros(groups, nodes + 1).int(), torch.zeros(groups, 0).int()
        for function in IMPLEMENTATIONS.values():
            assert function(x, starts, sources).shape == x.shape


def test_wrong_graphs_stay_inside_the_memory():
    """On CUDA nobody looks at the values."""
    x = torch.randn(1, 3, 2)
    starts = torch.tensor([[-5, 99, 1, 7]]).int()
    sources = torch.tensor([[0, -1, 3, 2, 2**31 - 1]]).int()
    y = kernel(x, starts, sources)
    torch.testing.assert_close(y[0, 0], x[0, 0] + x[0, 2])


@pytest.mark.parametrize("own", [0.0, 1.0])
@pytest.mark.parametrize("low", [-(2**31), -9])
def test_numbers_that_are_no_graph_stay_inside_the_memory(own, low):
    """Sums from wherever starts point to, if that is in the memory; one node has very many."""
    nodes, edges = 70, 140
    x = torch.randn(2, nodes, 3, dtype=torch.float64)
    starts = torch.randint(low, -low - 1, (2, nodes + 1)).int()
    starts[0, 10], starts[0, 11] = 0, 2**31 - 1  # all
    starts[0, 20], starts[0, 21] = 2**31 - 1, -(2**31)  # none, though the difference is 1 again
    sources = torch.randint(-nodes, 2 * nodes, (2, edges)).int()
    inside = (sources >= 0) & (sources < nodes)
    expected = own * x
    for g, first in enumerate(starts.clamp(0, edges).tolist()):
        for i in range(nodes):
            chosen = sources[g, first[i] : first[i + 1]][inside[g, first[i] : first[i + 1]]]
            expected[g, i] += x[g, chosen].sum(0)
    torch.testing.assert_close(kernel(x, starts, sources, own), expected)


# --------------------------------------------------------------------------------------------------
# The operator


def test_the_operator_keeps_the_rules_of_operators():
    x, starts, sources = (t.to(DEVICE) for t in example(GRAPHS["three replicas"], 3))
    x = x.nan_to_num().requires_grad_()
    torch.library.opcheck(torch.ops.fspool.neighbour_sum.default, (x, starts, sources, 0.5))


@pytest.mark.parametrize("by", ["operator", "definition"])
def test_gradients_to_second_order(by, request):
    if by == "definition":
        request.getfixturevalue("definition")
    graphs = GRAPHS["three replicas"]
    x, starts, sources = example(graphs, 2, torch.float64)
    x = x.nan_to_num().requires_grad_()
    weight = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)

    def network(x, weight):
        y = neighbour_sum(x, starts, sources) @ weight
        return neighbour_sum(y.tanh(), starts, sources, own=2.0)

    assert (dispatch.fastest("neighbour_sum", x) is None) == (by == "definition")
    assert torch.autograd.gradcheck(network, (x, weight))
    assert torch.autograd.gradgradcheck(network, (x, weight))


def test_garbage_has_no_gradient_and_gives_none():
    x, starts, sources = example(GRAPHS["three replicas"], 2)
    x.requires_grad_()
    y = neighbour_sum(x, starts, sources)
    g = torch.where(x.isnan(), NAN, 1.0).detach()  # of nodes that are not there
    (dx,) = torch.autograd.grad(y, x, g)
    assert (dx[x.isnan()] == 0).all() and dx.isfinite().all()
    torch.testing.assert_close(dx[..., 0], starts.diff().to(dx.dtype))  # the degrees


def test_compiled():
    x, starts, sources = example(GRAPHS["three replicas"], 4)
    x = x.nan_to_num().requires_grad_()

    def step(function):
        y = function(x, starts, sources).sin()
        return y, *torch.autograd.grad(y.square().sum(), x)

    torch.testing.assert_close(
        step(torch.compile(neighbour_sum, fullgraph=True)), step(neighbour_sum)
    )


def test_vmap_is_a_loop():
    each = [example(GRAPHS["three replicas"], 3, nodes=12, edges=60) for _ in range(2)]
    each.append(example(GRAPHS["three replicas"][::-1], 3, nodes=12, edges=60))
    stacked = [torch.stack(ts) for ts in zip(*each, strict=True)]
    got = torch.func.vmap(neighbour_sum)(*stacked)
    assert torch.equal(got, torch.stack([neighbour_sum(*given) for given in each]))


def test_torch_func_takes_the_definition():
    x, starts, sources = example(GRAPHS["one replica"], 3, torch.float64)
    x = x.nan_to_num()

    def loss(x):
        return neighbour_sum(x, starts, sources).square().sum()

    y = neighbour_sum(x, starts, sources)
    expected = 2 * neighbour_sum(y, starts, sources)
    torch.testing.assert_close(torch.func.grad(loss)(x), expected)


BAD = {
    "no replica axis": ("x", lambda x, s, e: (x[0], s, e), "(14, 3)", "(G, T, D)"),
    "starts": ("starts", lambda x, s, e: (x, s[:, 1:], e), "(1, 14)", "(1, 15)"),
    "sources": ("sources", lambda x, s, e: (x, s, e[0]), "expected (G, E) = (1, E)"),
    "float starts": ("starts", lambda x, s, e: (x, s.float(), e), "torch.float32", "integer"),
    "integer x": ("x", lambda x, s, e: (x.nan_to_num().int(), s, e), "torch.int32", "floating"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_input(case):
    name, change, *words = case
    with pytest.raises((ValueError, TypeError)) as error:
        neighbour_sum(*change(*example(GRAPHS["one replica"], 3)))
    assert all(word in str(error.value) for word in (f"{name} has", *words))


# --------------------------------------------------------------------------------------------------
# On a real GPU


def big(dim, mean):
    """Replicas of a mini-batch: 32 graphs of up to 60 nodes behind one another, and a large one."""
    graphs = []
    for _ in range(6):
        first, parts = 0, []
        for n in torch.randint(2, 60, (32,)).tolist():
            parts.append(random_edges(n, n * mean // 2) + first)
            first += n
        parts.append(hubs(2, 700) + first)
        first += 702
        graphs.append((first, torch.cat(parts, 1)))
    return [t.to(DEVICE) for t in example(graphs, dim)]


@needs_gpu
@pytest.mark.parametrize("mean", [2, 60])
@pytest.mark.parametrize("dim", [16, 32, 64, 100])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 2**-8)])
def test_values_and_gradients_on_cuda(dim, mean, dtype, tolerance):
    x, starts, sources = big(dim, mean)
    x = x.to(dtype).requires_grad_()
    g = torch.randn_like(x)
    y = neighbour_sum(x, starts, sources)
    (dx,) = torch.autograd.grad(y, x, g)
    exact = x.detach().double().requires_grad_()
    y64 = neighbours_definition(exact, starts, sources)
    (dx64,) = torch.autograd.grad(y64, exact, g.double())
    for a, b in ((y, y64), (dx, dx64)):
        assert (a.double() - b).abs().max() <= tolerance * b.abs().max()
    assert torch.equal(y, neighbour_sum(x, starts, sources))


@needs_gpu
def test_in_a_cuda_graph_with_graphs_that_change():
    x, starts, sources = big(32, 4)
    x = x.nan_to_num().requires_grad_()

    def step():
        y = neighbour_sum(x, starts, sources).relu()
        return y.detach(), *torch.autograd.grad(y.square().sum(), x)

    replays_with_other_inputs(step, starts, sources)


@needs_gpu
def test_another_batch_or_room_compiles_no_kernel():
    from fspool.kernels.cuda import neighbours

    def kernels():
        return sum(len(cache[0]) for cache in neighbours._sum.device_caches.values())

    def run(nodes, edges):
        x, starts = torch.randn(2, nodes, 32, device=DEVICE), torch.zeros(2, nodes + 1).int()
        neighbour_sum(x, starts.to(DEVICE), torch.zeros(2, edges, device=DEVICE).int())

    run(100, 200)
    before = kernels()
    for nodes, edges in ((96, 160), (1, 1), (17, 33), (128, 256)):
        run(nodes, edges)
    assert kernels() == before
