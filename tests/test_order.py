"""The object that a pool hands to an unpool: what it shows, and P and P^T against matrices."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import fspool
from fspool.functional import fsunpool, relaxed_sort

from .layouts import NAMES, lay_out
from .reference import permutation

DIM = 3
SIZES = (4, 0, 1, 3)
LAYOUT = {"mask": "padded", "sizes": "padded", "offsets": "packed", "nested": "jagged"}
TEMPERATURES = (None, 0.7)

every_layout = pytest.mark.parametrize("layout", NAMES)
hard_and_relaxed = pytest.mark.parametrize("temperature", TEMPERATURES, ids=["hard", "relaxed"])


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_sets(sizes=SIZES, seed=0, ties=False):
    elements = [draw(n, DIM, seed=seed + i) for i, n in enumerate(sizes)]
    return [s.round() for s in elements] if ties else elements


def order_of(x, temperature=None, **keywords):
    weight = torch.ones(*x.shape[:-3], x.shape[-1], 2, dtype=x.dtype)
    if "offsets" in keywords:
        weight = torch.ones(*x.shape[:-2], x.shape[-1], 2, dtype=x.dtype)
    return fspool.functional.fspool(
        x, weight, temperature=temperature, return_order=True, **keywords
    )[1]


def make(layout, temperature=None, elements=None, junk=float("nan")):
    """(order, x, rows): rows(t) lists the rows of t that hold elements, set by set."""
    elements = draw_sets() if elements is None else elements
    x, keywords, rows = lay_out(layout, elements, extra=2, junk=junk)
    return order_of(x, temperature, **keywords), x, rows


def by_rank(layout, out, sizes=SIZES):
    """A tensor that is indexed by rank as a list of sets: there elements come first."""
    if layout == "nested":
        return list(out.unbind())
    if layout == "offsets":
        return list(out.split(list(sizes)))
    return [row[:n] for row, n in zip(out, sizes, strict=True)]


def like(x, seed):
    """Other numbers in the layout of x."""
    if x.is_nested:
        values = draw(*x.values().shape, seed=seed)
        return torch.nested.nested_tensor_from_jagged(values, x.offsets())
    return draw(*x.shape, seed=seed)


def dense(t):
    return t.values() if t.is_nested else t


def same_order(a, b, x):
    """Equal in everything that can be asked of an order, to the bit."""
    assert repr(a) == repr(b) and a.layout == b.layout and a.dim == b.dim
    v = like(x, 9)
    pairs = [(a.sizes, b.sizes), (a.indices, b.indices), (a.matrix(), b.matrix())]
    pairs += [(dense(f(a)), dense(f(b))) for f in (lambda o: o.sort(v), lambda o: o.unsort(v))]
    for got, expected in pairs:
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


# --------------------------------------------------------------------------------------------------
# What it shows


def test_repr_says_what_kind_of_order_it_is():
    assert repr(order_of(draw(2, 5, DIM))) == "Order(hard, padded, sets=2, rows=5, dim=3)"
    packed = order_of(draw(5, DIM), 0.5, offsets=torch.tensor([0, 2, 5]))
    assert repr(packed) == "Order(relaxed, packed, sets=2, rows=5, dim=3)"
    replicas = order_of(draw(4, 2, 5, DIM))
    assert repr(replicas) == "Order(hard, padded, replicas=4, sets=2, rows=5, dim=3)"
    assert repr(make("nested")[0]) == "Order(hard, jagged, sets=4, rows=8, dim=3)"


@every_layout
@hard_and_relaxed
def test_layout_sizes_dim_and_temperature(layout, temperature):
    order, _, _ = make(layout, temperature)
    assert order.layout == LAYOUT[layout]
    assert order.sizes.tolist() == list(SIZES)
    assert order.dim == DIM
    if temperature is None:
        assert order.temperature is None
    else:
        assert order.temperature.shape == () and float(order.temperature) == temperature


def test_full_sets_have_the_padded_length_as_size():
    assert order_of(draw(2, 5, DIM)).sizes.tolist() == [5, 5]
    assert order_of(draw(3, 2, 5, DIM)).sizes.tolist() == [[5, 5]] * 3


@hard_and_relaxed
def test_one_replica_keeps_its_axis(temperature):
    x = draw(1, 2, 5, DIM)
    order = order_of(x, temperature, sizes=torch.tensor([5, 3]))
    assert order.sizes.tolist() == [[5, 3]]
    assert order.matrix().shape == (1, 2, DIM, 5, 5)
    shapes = {order.indices.shape, order.sort(x).shape, order.unsort(x).shape}
    assert shapes == {(1, 2, 5, DIM)}


def expected_indices(x, rows_of_sets):
    """Rows of x in descending order, ties by position, set by set and feature by feature."""
    columns = []
    for rows in rows_of_sets:
        ranked = [sorted(rows, key=lambda r, d=d: -float(x[r][d])) for d in range(DIM)]
        columns.append(torch.tensor(ranked, dtype=torch.int64).reshape(DIM, len(rows)).T)
    return columns


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    layout=st.sampled_from(NAMES),
    temperature=st.sampled_from(TEMPERATURES),
    extra=st.integers(0, 2),
    ties=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_indices_are_the_rows_in_descending_order(sizes, layout, temperature, extra, ties, seed):
    elements = draw_sets(sizes, seed, ties)
    x, keywords, _ = lay_out(layout, elements, extra, junk=float("nan"))
    indices = order_of(x, temperature, **keywords).indices
    assert indices.dtype == torch.int64
    if layout in ("offsets", "nested"):
        flat, start, rows = dense(x), 0, []
        for n in sizes:
            rows.append(list(range(start, start + n)))
            start += n
        assert torch.equal(indices, torch.cat(expected_indices(flat, rows)))
        return
    length = max(sizes) + extra
    assert indices.shape == (len(sizes), length, DIM)
    for b, n in enumerate(sizes):
        mask = keywords["mask"][b] if layout == "mask" else torch.arange(length) < n
        (expected,) = expected_indices(x[b], [mask.nonzero().flatten().tolist()])
        assert torch.equal(indices[b, :n], expected)
        assert (indices[b, n:] == -1).all()


def test_indices_of_full_sets_are_those_of_a_stable_torch_sort():
    x = draw(3, 40, DIM).round()  # many ties
    expected = x.sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(order_of(x).indices, expected)
    assert torch.equal(order_of(x, 1.0).indices, expected)


# --------------------------------------------------------------------------------------------------
# P and P^T


@every_layout
@hard_and_relaxed
def test_matrix_is_the_formula_on_elements_and_zero_elsewhere(layout, temperature):
    elements = draw_sets(ties=True)
    order, x, _ = make(layout, temperature, elements)
    matrix = order.matrix()
    length = max(SIZES) + (2 if order.layout == "padded" else 0)
    assert matrix.shape == (len(SIZES), DIM, length, length)
    # Only a mask leaves holes: the columns are positions, the rows are ranks.
    columns = [torch.arange(n) for n in SIZES]
    if layout == "mask":
        columns = [(~row[:, 0].isnan()).nonzero().flatten() for row in x]
    expected = torch.zeros(len(SIZES), DIM, length, length, dtype=torch.float64)
    for b, s in enumerate(elements):
        for d in range(DIM if len(s) else 0):
            expected[b, d, : len(s), columns[b]] = permutation(s[:, d], temperature)
    torch.testing.assert_close(matrix.double(), expected)


@every_layout
def test_a_hard_matrix_is_a_permutation_of_the_elements(layout):
    order, _, _ = make(layout, elements=draw_sets(ties=True))
    matrix = order.matrix()
    assert ((matrix == 0) | (matrix == 1)).all()
    for axis in (-1, -2):
        ones = matrix.sum(axis)
        assert ones.max() == 1
        assert torch.equal(ones.sum(-1), order.sizes[:, None].expand(-1, DIM).to(ones.dtype))


@every_layout
def test_rows_of_a_relaxed_matrix_sum_to_one(layout):
    order, _, _ = make(layout, 0.7)
    rows = order.matrix().sum(-1)
    expected = torch.arange(rows.shape[-1]) < order.sizes[:, None, None]
    torch.testing.assert_close(rows, expected.expand_as(rows).double())


def test_a_low_temperature_gives_the_hard_matrix():
    x = draw(2, 6, DIM)
    hard, soft = order_of(x).matrix().double(), order_of(x, 1e-4).matrix()
    torch.testing.assert_close(soft, hard)


def apply_by_matrix(matrix, t):
    """(B, D, N, N) times (B, N, D), feature by feature."""
    return torch.einsum("bdij,bjd->bid", matrix.to(t.dtype), t)


@pytest.mark.parametrize("by", ["default", "definition", "walking"])
@every_layout
@hard_and_relaxed
def test_sort_and_unsort_are_the_matrix_and_its_transpose(layout, temperature, by, request):
    if by != "default":
        request.getfixturevalue(by)
    order, x, rows = make(layout, temperature)
    matrix, other = order.matrix(), like(x, 5)
    length = matrix.shape[-1]
    positions = dense(other)
    if order.layout != "padded":
        offsets = fspool.sets.sizes_to_offsets(order.sizes)
        positions, _ = fspool.sets.to_padded(positions, offsets, length=length)

    expected = apply_by_matrix(matrix, positions)
    got = by_rank(layout, order.sort(other))
    for out, want, n in zip(got, expected, SIZES, strict=True):
        torch.testing.assert_close(out, want[:n])

    # What an unsort takes is indexed by rank; its last rows, past the elements, do not matter.
    expected = apply_by_matrix(matrix.mT, positions)
    out = order.unsort(other)
    if layout == "mask":
        torch.testing.assert_close(out, expected)
    else:
        for got_set, want, n in zip(rows(out), expected, SIZES, strict=True):
            torch.testing.assert_close(got_set, want[:n])


@pytest.mark.parametrize("layout", ["mask", "sizes"])
@hard_and_relaxed
def test_padding_never_leaks_into_sort_and_unsort(layout, temperature):
    order, x, rows = make(layout, temperature, junk=float("nan"))
    clean = torch.nan_to_num(x)
    sorted_x = order.sort(x)
    torch.testing.assert_close(sorted_x, order.sort(clean), rtol=0, atol=0)
    for b, n in enumerate(SIZES):
        assert (sorted_x[b, n:] == 0).all()

    by_rank = torch.full_like(x, float("nan"))
    for b, n in enumerate(SIZES):
        by_rank[b, :n] = clean[b, :n]
    out = order.unsort(by_rank)
    assert out.isfinite().all()
    assert (out[x.isnan()] == 0).all()
    assert sum(t.abs().sum() for t in rows(out)) > 0


@every_layout
def test_a_hard_unsort_undoes_the_sort(layout):
    order, x, rows = make(layout)
    for got, expected in zip(rows(order.unsort(order.sort(x))), rows(x), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@every_layout
def test_a_hard_sort_of_the_pooled_x_descends(layout):
    order, x, rows = make(layout)
    for got, elements in zip(by_rank(layout, order.sort(x)), rows(x), strict=True):
        expected = elements.sort(dim=0, descending=True).values
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


@every_layout
def test_sort_of_a_relaxed_order_is_the_relaxed_sort(layout):
    x, keywords, _ = lay_out(layout, draw_sets(), extra=1, junk=float("inf"))
    out, order = relaxed_sort(x, temperature=0.7, return_order=True, **keywords)
    torch.testing.assert_close(dense(order.sort(x)), dense(out))


@every_layout
@hard_and_relaxed
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sort_and_unsort_give_back_the_dtype_that_came(layout, temperature, dtype):
    order, x, _ = make(layout, temperature, junk=0.0)
    for name in ("sort", "unsort"):
        out = getattr(order, name)(x.to(dtype))
        assert out.dtype == dtype
        exact = getattr(order, name)(x.to(dtype).double())
        eps = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(dense(out).double(), dense(exact), rtol=eps, atol=eps)


@every_layout
@hard_and_relaxed
def test_sort_and_unsort_are_adjoint_in_their_gradients(layout, temperature):
    """The gradient of <P a, b> to a is P^T b, and of <P^T a, b> is P b."""
    order, x, rows = make(layout, temperature, junk=0.0)
    flat, other = draw(*dense(x).shape, seed=3), like(x, 4)

    def wrap(t):
        return torch.nested.nested_tensor_from_jagged(t, x.offsets()) if x.is_nested else t

    for forward, adjoint in ((order.sort, order.unsort), (order.unsort, order.sort)):
        a = flat.clone().requires_grad_()
        (dense(forward(wrap(a))) * dense(other)).sum().backward()
        torch.testing.assert_close(a.grad, dense(adjoint(other)))


# --------------------------------------------------------------------------------------------------
# select


PICKS = {
    "list": [2, 0],
    "negative": [-1],
    "repeated": [1, 1, 0, 2],
    "slice": slice(0, 2),
    "strided slice": slice(None, None, 2),
    "tensor": torch.tensor([1, 2]),
    "int32 tensor": torch.tensor([2, 1], dtype=torch.int32),
    "mask": torch.tensor([True, False, True]),
}


@pytest.mark.parametrize("by", ["default", "walking"])
@pytest.mark.parametrize("features", PICKS.values(), ids=PICKS.keys())
@every_layout
@hard_and_relaxed
def test_select_is_the_order_of_those_features(layout, temperature, features, by, request):
    if by != "default":
        request.getfixturevalue(by)
    elements = draw_sets(ties=True)
    torch.manual_seed(1)  # lay_out draws the places of a mask
    order, _, _ = make(layout, temperature, elements)
    torch.manual_seed(1)
    expected, x, _ = make(layout, temperature, [s[:, features] for s in elements])
    selected = order.select(features)
    same_order(selected, expected, x)
    assert order.dim == DIM  # the order itself stays


def test_a_decoder_may_use_some_of_the_features():
    x = draw(2, 5, DIM)
    pool = fspool.FSPool(DIM, 4, dtype=x.dtype, temperature=0.5)
    unpool = fspool.FSUnpool(2, 4, dtype=x.dtype)
    _, order = pool(x, return_order=True)
    _, alone = relaxed_sort(x[..., [2, 0]], temperature=0.5, return_order=True)
    z = draw(2, 2)
    torch.testing.assert_close(unpool(z, order.select([2, 0])), unpool(z, alone))


# --------------------------------------------------------------------------------------------------
# detach, to, copies, pytrees


@pytest.mark.parametrize("by", ["default", "walking"])
@pytest.mark.parametrize("layout", ["mask", "sizes", "offsets"])
def test_detach_stops_the_gradient_to_the_sorted_x_only(layout, by, request):
    if by != "default":
        request.getfixturevalue(by)
    x, keywords, _ = lay_out(layout, draw_sets(), extra=1)
    order = order_of(x.requires_grad_(), 0.7, **keywords)
    v = draw(*x.shape, seed=4).requires_grad_()
    weights = draw(*x.shape, seed=5)  # rows of P sum to one: a plain sum has no gradient
    for name in ("sort", "unsort"):
        total = (getattr(order, name)(v) * weights).sum()
        with_x = torch.autograd.grad(total, (x, v), retain_graph=True)
        assert with_x[0].abs().max() > 1e-3
        without = getattr(order.detach(), name)(v)
        torch.testing.assert_close(without, getattr(order, name)(v), rtol=0, atol=0)
        got = torch.autograd.grad((without * weights).sum(), (x, v), allow_unused=True)
        assert got[0] is None
        torch.testing.assert_close(got[1], with_x[1])


@every_layout
@hard_and_relaxed
def test_detach_to_copies_and_pytrees_keep_everything(layout, temperature):
    order, x, _ = make(layout, temperature, elements=draw_sets(ties=True))
    leaves, spec = pytree.tree_flatten(order)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    copies = [
        order.detach(),
        order.to("cpu"),
        order.to(torch.device("cpu")),
        copy.deepcopy(order),
        copy.copy(order),
        pytree.tree_unflatten(leaves, spec),
        pytree.tree_map(lambda t: t, order),
    ]
    for other in copies:
        assert isinstance(other, fspool.Order)
        same_order(other, order, x)


@every_layout
def test_a_pytree_holds_what_depends_on_the_data_and_nothing_else(layout):
    order, _, _ = make(layout, 0.7)
    again, _, _ = make(layout, 0.7, draw_sets(seed=50))
    leaves, spec = pytree.tree_flatten(order)
    assert spec == pytree.tree_flatten(again)[1]
    hard = pytree.tree_leaves(make(layout)[0])
    assert len(hard) < len(leaves)  # a hard order keeps no values
    assert any(leaf is order.temperature for leaf in leaves)
    assert any(leaf is order.ranks for leaf in leaves)


@hard_and_relaxed
def test_a_deep_copy_shares_nothing(temperature):
    order, x, _ = make("offsets", temperature)
    before = order.indices.clone()
    other = copy.deepcopy(order)
    for leaf in pytree.tree_leaves(other):
        leaf.zero_()
    assert torch.equal(order.indices, before)
    assert order.sizes.tolist() == list(SIZES)


@every_layout
@hard_and_relaxed
def test_to_moves_everything(layout, temperature):
    order, _, _ = make(layout, temperature)
    moved = order.to("meta")
    assert {leaf.device.type for leaf in pytree.tree_leaves(moved)} == {"meta"}
    assert moved.sets.device.type == "meta" and order.sets.device.type == "cpu"
    assert moved.sizes.device.type == "meta" and moved.sizes.shape == order.sizes.shape
    assert repr(moved) == repr(order)


# --------------------------------------------------------------------------------------------------
# Jagged in, jagged out


KEPT = {
    "as it is": lambda order: order,
    "detached": lambda order: order.detach(),
    "moved": lambda order: order.to("cpu"),
    "selected": lambda order: order.select(slice(None)),
    "through a pytree": lambda order: pytree.tree_map(lambda t: t, order),
}


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT.keys())
@hard_and_relaxed
def test_jagged_results_have_the_ragged_structure_of_the_input(temperature, keep):
    """Only tensors of one ragged structure can be added."""
    elements = draw_sets()
    x = torch.nested.nested_tensor(elements, layout=torch.jagged)
    weight = draw(DIM, 4)
    y, order = fspool.functional.fspool(x, weight, temperature=temperature, return_order=True)
    order = keep(order)
    results = [order.sort(x), order.unsort(x), fsunpool(y, weight, order)]
    results += [fspool.functional.fspool_vjp(y, weight, order)]
    for out in results:
        assert out.layout == torch.jagged and out.shape == x.shape
        total = out + x
        for part, a, b in zip(total.unbind(), out.unbind(), elements, strict=True):
            torch.testing.assert_close(part, a + b)


@hard_and_relaxed
def test_jagged_offsets_of_32_bits_give_the_same_order(temperature):
    elements = draw_sets()
    offsets = torch.tensor([0, 4, 4, 5, 8], dtype=torch.int32)
    x = torch.nested.nested_tensor_from_jagged(torch.cat(elements), offsets)
    packed = order_of(torch.cat(elements), temperature, offsets=offsets)
    order = order_of(x, temperature)
    assert torch.equal(order.indices, packed.indices)
    assert order.sizes.tolist() == list(SIZES)
    torch.testing.assert_close(order.matrix(), packed.matrix(), rtol=0, atol=0)
    for name in ("sort", "unsort"):
        got, expected = getattr(order, name)(x), getattr(packed, name)(x.values())
        torch.testing.assert_close(got.values(), expected, rtol=0, atol=0)
        assert (got + x).shape == x.shape


def test_a_jagged_order_of_no_elements():
    x = torch.nested.nested_tensor([torch.zeros(0, DIM)] * 2, layout=torch.jagged)
    order = order_of(x)
    assert order.sizes.tolist() == [0, 0] and order.indices.shape == (0, DIM)
    assert order.matrix().shape == (2, DIM, 0, 0)
    assert [t.shape for t in order.sort(x).unbind()] == [(0, DIM)] * 2


# --------------------------------------------------------------------------------------------------
# Replicas


def replica_case(kind):
    """(x with replicas, keywords, keywords of replica g)."""
    x = draw(2, 3, 5, DIM)
    if kind == "full":
        return x, {}, lambda g: {}
    if kind == "packed":
        offsets = torch.tensor([0, 2, 2, 6, 15])
        return x.flatten(1, 2), {"offsets": offsets}, lambda g: {"offsets": offsets}
    if kind == "shared sizes":
        sizes = torch.tensor([5, 0, 2])
        return x, {"sizes": sizes}, lambda g: {"sizes": sizes}
    if kind == "own sizes":
        sizes = torch.tensor([[5, 0, 2], [1, 3, 4]])
        return x, {"sizes": sizes}, lambda g: {"sizes": sizes[g]}
    if kind == "shared mask":
        mask = draw(3, 5, seed=1) > 0
        return x, {"mask": mask}, lambda g: {"mask": mask}
    mask = draw(2, 3, 5, seed=1) > 0
    return x, {"mask": mask}, lambda g: {"mask": mask[g]}


CASES = ("full", "packed", "shared sizes", "own sizes", "shared mask", "own mask")


@pytest.mark.parametrize("kind", CASES)
@hard_and_relaxed
def test_an_order_with_replicas_is_the_orders_of_the_replicas(kind, temperature):
    x, keywords, of_replica = replica_case(kind)
    order, v = order_of(x, temperature, **keywords), draw(*x.shape, seed=2)
    alone = [order_of(x[g], temperature, **of_replica(g)) for g in range(2)]
    torch.testing.assert_close(order.sizes, torch.stack([o.sizes for o in alone]))
    assert torch.equal(order.indices, torch.stack([o.indices for o in alone]))
    torch.testing.assert_close(order.matrix(), torch.stack([o.matrix() for o in alone]))
    for name in ("sort", "unsort"):
        expected = [getattr(o, name)(v[g]) for g, o in enumerate(alone)]
        torch.testing.assert_close(getattr(order, name)(v), torch.stack(expected))
    some = order.select([2, 0])
    expected = [o.select([2, 0]).unsort(v[g][..., :2]) for g, o in enumerate(alone)]
    torch.testing.assert_close(some.unsort(v[..., :2]), torch.stack(expected))


@pytest.mark.parametrize("kind", CASES)
@hard_and_relaxed
def test_an_order_with_replicas_goes_through_a_pytree(kind, temperature):
    x, keywords, _ = replica_case(kind)
    order = order_of(x, temperature, **keywords)
    same_order(pytree.tree_map(lambda t: t.clone(), order), order, x)


# --------------------------------------------------------------------------------------------------
# All of it, for any sizes


@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=4),
    layout=st.sampled_from(NAMES),
    temperature=st.sampled_from([None, 0.1, 1.0, 10.0]),
    ties=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60)
def test_sort_and_unsort_set_by_set(sizes, layout, temperature, ties, seed):
    elements, others = draw_sets(sizes, seed, ties), draw_sets(sizes, seed + 100)
    torch.manual_seed(seed)  # lay_out draws the places of a mask
    order, _, rows = make(layout, temperature, elements)
    torch.manual_seed(seed)
    other, _, _ = lay_out(layout, others, extra=2, junk=float("nan"))
    got = by_rank(layout, order.sort(other), sizes)
    for out, s, v in zip(got, elements, others, strict=True):
        p = [permutation(s[:, d], temperature) for d in range(DIM)] if len(s) else []
        expected = torch.stack([p[d] @ v[:, d] for d in range(DIM)], 1) if p else v
        torch.testing.assert_close(out, expected)
    by_sizes, _, _ = lay_out("sizes" if layout == "mask" else layout, others, extra=2)
    for out, s, v in zip(rows(order.unsort(by_sizes)), elements, others, strict=True):
        p = [permutation(s[:, d], temperature) for d in range(DIM)] if len(s) else []
        expected = torch.stack([p[d].T @ v[:, d] for d in range(DIM)], 1) if p else v
        torch.testing.assert_close(out, expected)
