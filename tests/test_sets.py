"""Every conversion between layouts against a plain loop over sets, both ways."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspool
from fspool import sets

DIM = 3
INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

size_lists = st.lists(st.integers(0, 6), max_size=6)  # the empty batch and empty sets included
seeds = st.integers(0, 2**16)
index_dtypes = st.sampled_from(INDEX_DTYPES)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_sets(sizes, seed=0):
    return [draw(n, DIM, seed=seed + i) for i, n in enumerate(sizes)]


def stack(rows):
    """torch.cat that knows the empty batch."""
    return torch.cat(rows) if rows else torch.zeros(0, DIM, dtype=torch.float64)


def running_total(sizes):
    total = [0]
    for size in sizes:
        total.append(total[-1] + size)
    return total


def pad_by_loop(elements, length, junk=0.0):
    x = torch.full((len(elements), length, DIM), junk, dtype=torch.float64)
    for b, rows in enumerate(elements):
        for i, row in enumerate(rows):
            x[b, i] = row
    return x


def scatter_by_loop(elements, length, seed, junk):
    """The sets at random places of their slots, in order, and the mask that says where."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.full((len(elements), length, DIM), junk, dtype=torch.float64)
    mask = torch.zeros(len(elements), length, dtype=torch.bool)
    for b, rows in enumerate(elements):
        places = torch.randperm(length, generator=generator)[: len(rows)].sort().values.tolist()
        for place, row in zip(places, rows, strict=True):
            x[b, place], mask[b, place] = row, True
    return x, mask


def same(got, expected):
    """Equal to the bit, in shape and in dtype."""
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


# --------------------------------------------------------------------------------------------------
# sizes <-> mask <-> offsets


@given(sizes=size_lists, extra=st.integers(0, 3), dtype=index_dtypes)
def test_sizes_to_mask_puts_elements_first(sizes, extra, dtype):
    length = max(sizes, default=0) + extra
    mask = sets.sizes_to_mask(torch.tensor(sizes, dtype=dtype), length)
    assert mask.dtype == torch.bool and mask.shape == (len(sizes), length)
    assert mask.tolist() == [[i < size for i in range(length)] for size in sizes]


@given(batch=st.integers(0, 5), length=st.integers(0, 5), seed=seeds)
def test_mask_to_sizes_counts_elements_at_any_positions(batch, length, seed):
    mask = draw(batch, length, seed=seed) > 0
    sizes = sets.mask_to_sizes(mask)
    assert sizes.dtype == torch.int64 and sizes.shape == (batch,)
    assert sizes.tolist() == [sum(row) for row in mask.tolist()]


@given(sizes=size_lists, dtype=index_dtypes)
def test_sizes_to_offsets_is_the_running_total(sizes, dtype):
    offsets = sets.sizes_to_offsets(torch.tensor(sizes, dtype=dtype))
    assert offsets.tolist() == running_total(sizes)
    assert offsets.dtype == torch.int64  # the total may not fit into the dtype of the sizes


@given(sizes=size_lists)
def test_offsets_to_sizes_is_the_way_back(sizes):
    offsets = torch.tensor(running_total(sizes))
    assert sets.offsets_to_sizes(offsets).tolist() == sizes
    assert (
        sets.offsets_to_sizes(sets.sizes_to_offsets(torch.tensor(sizes).long())).tolist() == sizes
    )


def test_offsets_do_not_overflow_the_dtype_of_the_sizes():
    sizes = torch.full((5,), 100, dtype=torch.uint8)
    assert sets.sizes_to_offsets(sizes).tolist() == [0, 100, 200, 300, 400, 500]


@given(sizes=size_lists, extra=st.integers(0, 3))
def test_mask_to_sizes_undoes_sizes_to_mask(sizes, extra):
    mask = sets.sizes_to_mask(torch.tensor(sizes).long(), max(sizes, default=0) + extra)
    assert sets.mask_to_sizes(mask).tolist() == sizes


@pytest.mark.parametrize("lead", [(), (4,), (4, 2)])
def test_sizes_and_masks_take_leading_axes(lead):
    sizes = torch.randint(0, 6, (*lead, 3))
    mask = sets.sizes_to_mask(sizes, 5)
    assert mask.shape == (*lead, 3, 5)
    for flat_mask, size in zip(mask.reshape(-1, 5).tolist(), sizes.flatten().tolist(), strict=True):
        assert flat_mask == [i < size for i in range(5)]
    assert torch.equal(sets.mask_to_sizes(mask), sizes)


# --------------------------------------------------------------------------------------------------
# padded -> packed


@given(batch=st.integers(0, 4), length=st.integers(0, 5), seed=seeds)
def test_to_packed_of_full_sets(batch, length, seed):
    x = draw(batch, length, DIM, seed=seed)
    packed, offsets = sets.to_packed(x)
    same(packed, stack([x[b] for b in range(batch)]))
    assert offsets.tolist() == [b * length for b in range(batch + 1)]


@given(
    sizes=size_lists,
    extra=st.integers(0, 3),
    seed=seeds,
    junk=st.sampled_from([0.0, float("nan"), float("inf")]),
    dtype=index_dtypes,
)
def test_to_packed_with_sizes(sizes, extra, seed, junk, dtype):
    elements = draw_sets(sizes, seed)
    x = pad_by_loop(elements, max(sizes, default=0) + extra, junk)
    packed, offsets = sets.to_packed(x, sizes=torch.tensor(sizes, dtype=dtype))
    same(packed, stack(elements))
    same(offsets, torch.tensor(running_total(sizes)))


@given(
    sizes=size_lists,
    extra=st.integers(0, 3),
    seed=seeds,
    junk=st.sampled_from([0.0, float("nan"), float("inf")]),
)
def test_to_packed_with_a_mask_of_any_positions(sizes, extra, seed, junk):
    elements = draw_sets(sizes, seed)
    x, mask = scatter_by_loop(elements, max(sizes, default=0) + extra, seed, junk)
    packed, offsets = sets.to_packed(x, mask=mask)
    same(packed, stack(elements))
    same(offsets, torch.tensor(running_total(sizes)))


def test_to_packed_of_views_that_are_not_contiguous():
    x, sizes = draw(DIM, 4, 2).permute(2, 1, 0)[:, ::2], torch.tensor([2, 1])
    assert not x.is_contiguous()
    same(sets.to_packed(x)[0], torch.cat([x[0], x[1]]))
    same(sets.to_packed(x, sizes=sizes)[0], torch.cat([x[0], x[1, :1]]))


# --------------------------------------------------------------------------------------------------
# packed -> padded


@given(sizes=size_lists, extra=st.none() | st.integers(0, 3), seed=seeds, dtype=index_dtypes)
def test_to_padded_puts_elements_first_and_zeros_after(sizes, extra, seed, dtype):
    elements, largest = draw_sets(sizes, seed), max(sizes, default=0)
    offsets = torch.tensor(running_total(sizes), dtype=dtype)
    length = None if extra is None else largest + extra
    x, got_sizes = sets.to_padded(stack(elements), offsets, length=length)
    same(x, pad_by_loop(elements, largest + (extra or 0)))
    same(got_sizes, torch.tensor(sizes, dtype=torch.int64))


@pytest.mark.parametrize("length", [0, 1, 4])
def test_to_padded_refuses_a_length_that_would_cut_a_set(length):
    with pytest.raises(ValueError, match=rf"length={length} .*largest set \(5 elements\)"):
        sets.to_padded(draw(8, DIM), torch.tensor([0, 2, 7, 8]), length=length)


def test_to_padded_keeps_nan_and_inf_of_elements():
    x = torch.tensor([[float("nan")], [float("inf")], [1.0]])
    padded, _ = sets.to_padded(x, torch.tensor([0, 1, 3]), length=3)
    expected = [[[float("nan")], [0.0], [0.0]], [[float("inf")], [1.0], [0.0]]]
    torch.testing.assert_close(padded, torch.tensor(expected), rtol=0, atol=0, equal_nan=True)


# --------------------------------------------------------------------------------------------------
# jagged nested tensors


@given(sizes=size_lists, seed=seeds, dtype=st.sampled_from([torch.int64, torch.int32]))
def test_to_nested_has_the_sets_as_components(sizes, seed, dtype):
    elements = draw_sets(sizes, seed)
    nested = sets.to_nested(stack(elements), torch.tensor(running_total(sizes), dtype=dtype))
    assert nested.layout == torch.jagged and nested.ndim == 3 and nested.shape[0] == len(sizes)
    components = nested.unbind() if sizes else []
    for got, expected in zip(components, elements, strict=True):
        same(got, expected)


def test_to_nested_shares_memory():
    x = draw(4, DIM)
    nested = sets.to_nested(x, torch.tensor([0, 1, 4]))
    x[2] = 7.0
    same(nested.unbind()[1][1], torch.full((DIM,), 7.0, dtype=torch.float64))


@given(sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6), seed=seeds)
def test_from_nested_takes_what_torch_makes(sizes, seed):
    elements = draw_sets(sizes, seed)
    packed, offsets = sets.from_nested(torch.nested.nested_tensor(elements, layout=torch.jagged))
    same(packed, stack(elements))
    same(offsets, torch.tensor(running_total(sizes)))


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5), seed=seeds)
def test_a_jagged_batch_with_empty_components_pools_set_by_set(sizes, seed):
    elements, weight = draw_sets(sizes, seed), draw(DIM, 4, seed=seed)
    nested = torch.nested.nested_tensor(elements, layout=torch.jagged)
    y = fspool.functional.fspool(nested, weight)
    alone = [fspool.functional.fspool(s[None], weight) for s in elements]
    torch.testing.assert_close(y, torch.cat(alone))
    assert all((row == 0).all() for row, size in zip(y, sizes, strict=True) if size == 0)


# --------------------------------------------------------------------------------------------------
# Round trips and corners


@given(sizes=size_lists, extra=st.integers(0, 3), seed=seeds)
def test_padded_to_packed_and_back(sizes, extra, seed):
    length = max(sizes, default=0) + extra
    x = pad_by_loop(draw_sets(sizes, seed), length)
    packed, offsets = sets.to_packed(x, sizes=torch.tensor(sizes).long())
    back, back_sizes = sets.to_padded(packed, offsets, length=length)
    same(back, x)
    assert back_sizes.tolist() == sizes


@given(sizes=size_lists, seed=seeds)
def test_packed_to_padded_to_nested_and_back(sizes, seed):
    packed, offsets = stack(draw_sets(sizes, seed)), torch.tensor(running_total(sizes))
    padded, got_sizes = sets.to_padded(packed, offsets)
    again, again_offsets = sets.to_packed(padded, sizes=got_sizes)
    nested = sets.to_nested(again, again_offsets)
    last, last_offsets = sets.from_nested(nested)
    same(last, packed)
    same(last_offsets, offsets)


@given(sizes=size_lists, extra=st.integers(0, 3), seed=seeds)
def test_a_mask_and_sizes_of_the_same_sets_pack_alike(sizes, extra, seed):
    length = max(sizes, default=0) + extra
    x, lengths = draw(len(sizes), length, DIM, seed=seed), torch.tensor(sizes).long()
    by_sizes = sets.to_packed(x, sizes=lengths)
    by_mask = sets.to_packed(x, mask=sets.sizes_to_mask(lengths, length))
    same(by_sizes, by_mask)


CORNERS = {  # sizes, padded length
    "no sets": ([], 3),
    "no sets and no slots": ([], 0),
    "no slots": ([0, 0], 0),
    "all empty": ([0, 0, 0], 4),
    "empty between": ([0, 2, 0, 1, 0], 2),
}


@pytest.mark.parametrize("sizes, length", CORNERS.values(), ids=CORNERS.keys())
def test_corners_convert_both_ways(sizes, length):
    elements = draw_sets(sizes)
    x, lengths = pad_by_loop(elements, length), torch.tensor(sizes).long()
    offsets = torch.tensor(running_total(sizes))
    mask = sets.sizes_to_mask(lengths, length)
    for keywords in ({"sizes": lengths}, {"mask": mask}):
        packed, got = sets.to_packed(x, **keywords)
        same(packed, stack(elements))
        same(got, offsets)
    padded, got = sets.to_padded(stack(elements), offsets, length=length)
    same(padded, x)
    same(got, lengths)
    values, got = sets.from_nested(sets.to_nested(stack(elements), offsets))
    same(values, stack(elements))
    same(got, offsets)


@pytest.mark.parametrize("by", ["operators", "definition"])
@pytest.mark.parametrize("layout", ["sizes", "mask", "offsets", "nested", "full"])
@pytest.mark.parametrize("temperature", [None, 1.0])
@pytest.mark.parametrize("sizes, length", CORNERS.values(), ids=CORNERS.keys())
def test_corners_pool_and_unpool(sizes, length, temperature, layout, by, request):
    """Nothing to sort is no special case: right shapes, zeros for empty sets, gradients."""
    if by == "definition":
        request.getfixturevalue("definition")
    if layout == "full":
        sizes = [length] * len(sizes)
    elements = draw_sets(sizes)
    x, keywords = pad_by_loop(elements, length), {}
    offsets = torch.tensor(running_total(sizes))
    if layout == "sizes":
        keywords = {"sizes": torch.tensor(sizes).long()}
    elif layout == "mask":
        keywords = {"mask": sets.sizes_to_mask(torch.tensor(sizes).long(), length)}
    elif layout != "full":
        x, keywords = stack(elements), {"offsets": offsets}
    x = x.requires_grad_()
    given = sets.to_nested(x, keywords.pop("offsets")) if layout == "nested" else x
    weight = draw(DIM, 4).requires_grad_()
    y, order = fspool.functional.fspool(
        given, weight, temperature=temperature, return_order=True, **keywords
    )
    expected = [
        fspool.functional.fspool(s[None], weight, temperature=temperature) for s in elements
    ]
    torch.testing.assert_close(y, stack(expected))
    out = fspool.functional.fsunpool(y, weight, order)
    assert out.shape == given.shape
    rows = out.values() if layout == "nested" else out
    gradients = torch.autograd.grad(rows.sum() + y.sum(), (x, weight))
    assert gradients[0].shape == x.shape and gradients[0].isfinite().all()
    assert gradients[1].shape == weight.shape and gradients[1].isfinite().all()
    assert bool(gradients[1].any()) == (sum(sizes) > 0)


# --------------------------------------------------------------------------------------------------
# Gradients


def test_gradients_flow_from_packed_to_the_elements_only():
    x, sizes = draw(3, 4, DIM).requires_grad_(), torch.tensor([2, 0, 4])
    packed, _ = sets.to_packed(x, sizes=sizes)
    weights = draw(*packed.shape, seed=1)
    (packed * weights).sum().backward()
    same(x.grad, pad_by_loop([weights[:2], weights[:0], weights[2:]], 4))


def test_gradients_flow_from_packed_to_the_places_of_a_mask():
    elements = draw_sets([2, 0, 3])
    x, mask = scatter_by_loop(elements, 5, 0, float("nan"))
    packed, _ = sets.to_packed(x.requires_grad_(), mask=mask)
    weights = draw(*packed.shape, seed=1)
    (packed * weights).sum().backward()
    expected = torch.zeros_like(x)
    for row, (b, i) in zip(weights, mask.nonzero().tolist(), strict=True):
        expected[b, i] = row
    same(x.grad, expected)


def test_gradients_flow_from_padded_to_packed():
    x, offsets = draw(6, DIM).requires_grad_(), torch.tensor([0, 2, 2, 6])
    padded, _ = sets.to_padded(x, offsets, length=5)
    weights = draw(*padded.shape, seed=1)
    (padded * weights).sum().backward()
    same(x.grad, torch.cat([weights[0, :2], weights[2, :4]]))


def test_gradients_flow_through_nested():
    x, offsets = draw(6, DIM).requires_grad_(), torch.tensor([0, 2, 2, 6])
    values, _ = sets.from_nested(sets.to_nested(x, offsets))
    weights = draw(6, DIM, seed=1)
    (values * weights).sum().backward()
    same(x.grad, weights)


# --------------------------------------------------------------------------------------------------
# No waiting for the device


META = {  # a tensor on the meta device has no values, so looking at one raises
    "full": ((2, 3, DIM), None),
    "mask": ((2, 3, DIM), torch.ones(2, 3, dtype=torch.bool)),
    "sizes": ((2, 3, DIM), torch.tensor([1, 3])),
    "offsets": ((5, DIM), torch.tensor([0, 2, 5])),
}


@pytest.fixture
def unchecked(monkeypatch):
    """As it is by default, also where FSPOOL_CHECK is set."""
    monkeypatch.setattr(sets, "_check_on_every_device", False)


def meta(layout, *lead):
    shape, index = META[layout]
    keywords = {} if index is None else {layout: index.to("meta")}
    return torch.empty(*lead, *shape, device="meta"), keywords


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("lead", [(), (2,)], ids=["plain", "replicas"])
@pytest.mark.parametrize(  # a relaxed sort of packed sets does wait, and says so
    "layout, temperature", [*[(name, None) for name in META], ("full", 1.0), ("mask", 1.0)]
)
def test_pool_and_unpool_never_look_at_values_of_a_device(layout, temperature, lead):
    x, keywords = meta(layout, *lead)
    weight = torch.empty(*lead, DIM, 4, device="meta")
    y, order = fspool.functional.fspool(
        x, weight, temperature=temperature, return_order=True, **keywords
    )
    assert y.shape == (*lead, 2, DIM)
    assert fspool.functional.fsunpool(y, weight, order).shape == x.shape
    assert fspool.functional.fspool_vjp(y, weight, order).shape == x.shape
    assert order.indices.shape == x.shape


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("layout", META)
@pytest.mark.parametrize("pool", [fspool.nn.SumPool, fspool.nn.MeanPool, fspool.nn.MaxPool])
def test_baselines_never_look_at_values_of_a_device(pool, layout):
    x, keywords = meta(layout)
    assert pool()(x, **keywords).shape == (2, DIM)


@pytest.mark.usefixtures("unchecked")
def test_conversions_of_known_length_never_look_at_values_of_a_device():
    x, keywords = meta("offsets")
    padded, sizes = sets.to_padded(x, keywords["offsets"], length=4)
    assert padded.shape == (2, 4, DIM) and sizes.shape == (2,)
    assert sets.sizes_to_mask(sizes, 4).shape == (2, 4)
    packed, offsets = sets.to_packed(padded)
    assert packed.shape == (8, DIM) and offsets.shape == (3,)
