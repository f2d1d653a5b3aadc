"""Sets that cannot be right, wherever sets are taken, and conversions of them."""

import importlib.util
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspool
from fspool import nn, sets
from fspool.functional import fspool as pool_function
from fspool.functional import relaxed_sort

from .refusals import ANY, DIM, KNOTS, WEIGHT, bools, ints, jagged, packed, padded, refuses

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


# --------------------------------------------------------------------------------------------------
# Sets: everything that takes x with mask, sizes or offsets

# What came, as arguments made afresh; the error, the argument's name, parts of the sentence.
BAD_X = {
    "list": (lambda: {"x": [[[1.0]]]}, TypeError, "x", "list", "Tensor"),
    "array": (lambda: {"x": np.ones((2, 3, DIM))}, TypeError, "x", "ndarray", "Tensor"),
    "int": (lambda: {"x": padded().long()}, TypeError, "x", "torch.int64", "floating"),
    "bool": (lambda: {"x": padded().bool()}, TypeError, "x", "torch.bool", "floating"),
    "complex": (lambda: {"x": padded() * 1j}, TypeError, "x", "torch.complex64", "floating"),
    "0-d": (lambda: {"x": torch.tensor(1.0)}, ValueError, "x", "()", "(B, N, D)"),
    "1-d": (lambda: {"x": torch.ones(4)}, ValueError, "x", "(4,)", "(B, N, D)"),
    "packed without offsets": (
        lambda: {"x": packed()},
        ValueError,
        "x",
        "(5, 4)",
        "(B, N, D)",
        "x[None]",
        "offsets=",
    ),
    "5-d": (lambda: {"x": padded(1, 1)}, ValueError, "x", "(1, 1, 2, 3, 4)", "(B, N, D)"),
    "2-d with sizes": (
        lambda: {"x": packed(), "sizes": ints(2, 3)},
        ValueError,
        "x",
        "(5, 4)",
        "(B, N, D)",
    ),
    "1-d with offsets": (
        lambda: {"x": torch.ones(5), "offsets": ints(0, 5)},
        ValueError,
        "x",
        "(5,)",
        "(T, D)",
    ),
    "4-d with offsets": (
        lambda: {"x": padded(2), "offsets": ints(0, 3)},
        ValueError,
        "x",
        "(2, 2, 3, 4)",
        "(T, D)",
    ),
    "strided nested": (
        lambda: {"x": torch.nested.nested_tensor([torch.ones(2, DIM)], layout=torch.strided)},
        ValueError,
        "x",
        "torch.strided",
        "jagged",
        "(B, j, D)",
    ),
    "nested of 4 axes": (
        lambda: {"x": torch.nested.nested_tensor([torch.ones(2, 3, DIM)], layout=torch.jagged)},
        ValueError,
        "x",
        "4 axes",
        "(B, j, D)",
    ),
    "nested with features ragged": (
        lambda: {"x": jagged().transpose(1, 2)},
        ValueError,
        "x",
        "jagged",
        "(B, j, D)",
    ),
    "nested with holes": (
        lambda: {"x": torch.nested.narrow(padded(), 1, ints(0, 1), ints(2, 1), torch.jagged)},
        ValueError,
        "x",
        "contiguous",
        "(B, j, D)",
    ),
    "nested that begins later": (
        lambda: {"x": torch.nested.nested_tensor_from_jagged(packed(), ints(2, 5))},
        ValueError,
        "offsets of x",
        "2",
        "0",
    ),
    "nested that ends early": (
        lambda: {"x": torch.nested.nested_tensor_from_jagged(packed(), ints(0, 3))},
        ValueError,
        "offsets of x",
        "3",
        "5",
    ),
    "nested with offsets that decrease": (
        lambda: {"x": torch.nested.nested_tensor_from_jagged(packed(), ints(0, 4, 2, 5))},
        ValueError,
        "offsets of x",
        "4",
        "2",
        "position 2",
    ),
    "nested int": (
        lambda: {"x": jagged(dtype=torch.int64)},
        TypeError,
        "x",
        "torch.int64",
        "floating",
    ),
    "nested with sizes": (
        lambda: {"x": jagged(), "sizes": ints(2, 0, 3)},
        ValueError,
        "sizes",
        "x",
        "nested",
    ),
    "nested with mask": (
        lambda: {"x": jagged(), "mask": bools(3, 3)},
        ValueError,
        "mask",
        "x",
        "nested",
    ),
    "nested with offsets": (
        lambda: {"x": jagged(), "offsets": ints(0, 2, 2, 5)},
        ValueError,
        "offsets",
        "nested",
    ),
}
TOGETHER = {
    "mask and sizes": (
        lambda: {"x": padded(), "mask": bools(2, 3), "sizes": ints(1, 2)},
        ValueError,
        "mask and sizes",
        "at most one",
    ),
    "mask and offsets": (
        lambda: {"x": packed(), "mask": bools(2, 3), "offsets": ints(0, 2, 5)},
        ValueError,
        "mask and offsets",
        "at most one",
    ),
    "sizes and offsets": (
        lambda: {"x": packed(), "sizes": ints(2, 3), "offsets": ints(0, 2, 5)},
        ValueError,
        "sizes and offsets",
        "at most one",
    ),
    "all three": (
        lambda: {"x": packed(), "mask": bools(2, 3), "sizes": ints(2, 3), "offsets": ints(0, 2, 5)},
        ValueError,
        "mask and sizes and offsets",
        "at most one",
    ),
}
BAD_MASK = {
    "list": (lambda: [[True] * 3] * 2, TypeError, "list", "tensor", "torch.tensor(mask)"),
    "array": (lambda: np.ones((2, 3), bool), TypeError, "ndarray", "tensor"),
    "int": (lambda: bools(2, 3).long(), TypeError, "torch.int64", "torch.bool", "mask.bool()"),
    "float": (lambda: bools(2, 3).float(), TypeError, "torch.float32", "torch.bool"),
    "transposed": (lambda: bools(3, 2), ValueError, "(3, 2)", "(2, 3)"),
    "too long": (lambda: bools(2, 4), ValueError, "(2, 4)", "(2, 3)"),
    "one axis short": (lambda: bools(3), ValueError, "(3,)", "(2, 3)"),
    "one axis more": (lambda: bools(2, 3, 1), ValueError, "(2, 3, 1)", "(2, 3)"),
    "like x": (lambda: bools(2, 3, DIM), ValueError, "(2, 3, 4)", "(2, 3)"),
    "other device": (lambda: bools(2, 3).to("meta"), ValueError, "meta", "x", "cpu"),
}
BAD_SIZES = {
    "list": (lambda: [1, 2], TypeError, "list", "tensor", "torch.tensor(sizes)"),
    "array": (lambda: np.array([1, 2]), TypeError, "ndarray", "tensor"),
    "number": (lambda: 2, TypeError, "int", "tensor"),
    "float": (lambda: torch.tensor([1.0, 2.0]), TypeError, "torch.float32", "integer"),
    "bool": (lambda: bools(2), TypeError, "torch.bool", "integer"),
    "beyond N": (lambda: ints(1, 4), ValueError, "from 1 to 4", "0 to 3"),
    "far beyond N": (lambda: ints(2**40, 1), ValueError, str(2**40), "0 to 3"),
    "negative": (lambda: ints(3, -1), ValueError, "from -1 to 3", "0 to 3"),
    "negative int8": (lambda: ints(3, -1, dtype=torch.int8), ValueError, "-1", "0 to 3"),
    "beyond N in uint8": (lambda: ints(1, 200, dtype=torch.uint8), ValueError, "200", "0 to 3"),
    "too many": (lambda: ints(1, 2, 3), ValueError, "(3,)", "(2,)"),
    "0-d": (lambda: torch.tensor(2), ValueError, "()", "(2,)"),
    "a column": (lambda: ints(1, 2)[:, None], ValueError, "(2, 1)", "(2,)"),
    "other device": (lambda: ints(1, 2).to("meta"), ValueError, "meta", "x", "cpu"),
}
BAD_OFFSETS = {
    "list": (lambda: [0, 2, 5], TypeError, "list", "tensor", "torch.tensor(offsets)"),
    "float": (lambda: torch.tensor([0.0, 5.0]), TypeError, "torch.float32", "integer"),
    "bool": (lambda: bools(2), TypeError, "torch.bool", "integer"),
    "decrease": (lambda: ints(0, 4, 2, 5), ValueError, "from 4 to 2", "position 2", "never"),
    "go below 0": (lambda: ints(0, -1, 5), ValueError, "from 0 to -1", "position 1", "never"),
    "decrease in uint8": (
        lambda: ints(0, 4, 2, 5, dtype=torch.uint8),
        ValueError,
        "from 4 to 2",
        "never",
    ),
    "start late": (lambda: ints(1, 2, 5), ValueError, "starts at 1", "expected 0"),
    "start negative": (lambda: ints(-1, 2, 5), ValueError, "starts at -1", "expected 0"),
    "end early": (lambda: ints(0, 2, 4), ValueError, "ends at 4", "expected 5", "rows of x"),
    "end late": (lambda: ints(0, 2, 6), ValueError, "ends at 6", "expected 5", "rows of x"),
    "sizes instead": (lambda: ints(2, 3), ValueError, "starts at 2", "expected 0"),
    "no sets for some rows": (lambda: ints(0), ValueError, "ends at 0", "expected 5"),
    "empty": (lambda: ints(), ValueError, "(0,)", "(B + 1,)"),
    "0-d": (lambda: torch.tensor(0), ValueError, "()", "(B + 1,)"),
    "2-d": (lambda: ints(0, 2, 5)[None], ValueError, "(1, 3)", "(B + 1,)"),
    "other device": (lambda: ints(0, 2, 5).to("meta"), ValueError, "meta", "x", "cpu"),
}


def named(name, make_x, cases):
    """The same cases with x beside them and the argument's name in the sentence."""
    return {
        f"{name} {kind}": (lambda m=make: {"x": make_x(), name: m()}, error, name, *parts)
        for kind, (make, error, *parts) in cases.items()
    }


BAD_PADDED = named("mask", padded, BAD_MASK) | named("sizes", padded, BAD_SIZES)
BAD_PACKED = named("offsets", packed, BAD_OFFSETS)
BAD_SETS = {f"x {k}": v for k, v in BAD_X.items()} | TOGETHER | BAD_PADDED | BAD_PACKED

TAKE_SETS = {
    "fspool": lambda x, **k: pool_function(x, WEIGHT, **k),
    "fspool relaxed": lambda x, **k: pool_function(x, WEIGHT, temperature=1.0, **k),
    "relaxed_sort": relaxed_sort,
    "FSPool": lambda x, **k: nn.FSPool(DIM, KNOTS)(x, **k),
    "SumPool": lambda x, **k: nn.SumPool()(x, **k),
    "MeanPool": lambda x, **k: nn.MeanPool()(x, **k),
    "MaxPool": lambda x, **k: nn.MaxPool()(x, **k),
}


@pytest.mark.parametrize("take", TAKE_SETS.values(), ids=TAKE_SETS.keys())
@pytest.mark.parametrize("case", BAD_SETS.values(), ids=BAD_SETS.keys())
def test_sets(case, take):
    make, error, *parts = case
    refuses(lambda: take(**make()), error, *parts)


@pytest.mark.parametrize("case", BAD_PADDED.values(), ids=BAD_PADDED.keys())
def test_to_packed_checks_mask_and_sizes(case):
    make, error, *parts = case
    refuses(lambda: sets.to_packed(**make()), error, *parts)


@pytest.mark.parametrize("convert", [sets.to_padded, sets.to_nested])
@pytest.mark.parametrize("case", BAD_PACKED.values(), ids=BAD_PACKED.keys())
def test_to_padded_and_to_nested_check_offsets(case, convert):
    make, error, *parts = case
    refuses(lambda: convert(**make()), error, *parts)


@pytest.mark.parametrize(
    "name, make", [("sizes", lambda: ints(1, 2, 3)), ("mask", lambda: bools(3, 2))]
)
def test_shapes_for_replicas_name_both_that_fit(name, make):
    weight = torch.ones(3, DIM, KNOTS)
    expected = {"sizes": ("(2,)", "(3, 2)"), "mask": ("(2, 3)", "(3, 2, 3)")}[name]
    refuses(lambda: pool_function(padded(3), weight, **{name: make()}), ValueError, name, *expected)


def test_an_integer_dtype_without_arithmetic_is_named():
    """torch can hold uint16 but not compute with it; the sentence must not call it no integer."""
    sizes = torch.tensor([1, 2], dtype=torch.uint16)
    refuses(lambda: pool_function(padded(), WEIGHT, sizes=sizes), TypeError, "sizes", "torch.int64")


# --------------------------------------------------------------------------------------------------
# Nothing is ever silently clamped


@given(sizes=st.lists(st.integers(-3, 6), min_size=1, max_size=4), length=st.integers(0, 4))
def test_sizes_pass_exactly_where_they_fit(sizes, length):
    x, fits = torch.ones(len(sizes), length, DIM), all(0 <= s <= length for s in sizes)
    for name, take in TAKE_SETS.items():
        if fits:
            out = take(x, sizes=torch.tensor(sizes))
            expected = torch.tensor(sizes).float()[:, None].expand(-1, DIM)
            if name in ("fspool", "SumPool"):  # knots and elements are ones: the size itself
                torch.testing.assert_close(out, expected)
        else:
            refuses(partial(take, x, sizes=torch.tensor(sizes)), ValueError, "sizes")


@given(offsets=st.lists(st.integers(-2, 7), min_size=1, max_size=4), rows=st.integers(0, 5))
def test_offsets_pass_exactly_where_they_fit(offsets, rows):
    x = torch.ones(rows, DIM)
    fits = offsets[0] == 0 and offsets[-1] == rows and offsets == sorted(offsets)
    call = partial(pool_function, x, WEIGHT, offsets=torch.tensor(offsets))
    if not fits:
        return refuses(call, ValueError, "offsets")
    sizes = [b - a for a, b in zip(offsets, offsets[1:], strict=False)]
    torch.testing.assert_close(call(), torch.tensor(sizes).float()[:, None].expand(-1, DIM))


@pytest.fixture
def checking():
    before = sets._check_on_every_device
    yield sets.check_values
    sets.check_values(before)


@pytest.mark.parametrize("enabled", [True, False])
def test_values_on_the_cpu_are_checked_whatever_check_values_says(checking, enabled):
    checking(enabled)
    refuses(lambda: pool_function(padded(), WEIGHT, sizes=ints(1, 9)), ValueError, "sizes")
    refuses(lambda: pool_function(packed(), WEIGHT, offsets=ints(0, 9)), ValueError, "offsets")
    refuses(
        lambda: pool_function(padded(), WEIGHT, temperature=torch.tensor(-1.0)),
        ValueError,
        "temperature",
    )


@pytest.mark.parametrize(
    "name, x, index", [("sizes", padded(), ints(1, 9)), ("offsets", packed(), ints(0, 9))]
)
def test_check_values_decides_on_other_devices(checking, name, x, index):
    """The meta device holds no values, so that looking at them is what fails."""
    x, keywords = x.to("meta"), {name: index.to("meta")}
    checking(False)
    assert nn.SumPool()(x, **keywords).device.type == "meta"
    checking(True)
    with pytest.raises(RuntimeError, match="meta"):
        nn.SumPool()(x, **keywords)
    checking(False)
    assert nn.SumPool()(x, **keywords).device.type == "meta"


def test_check_values_is_on_without_an_argument(checking):
    checking(False)
    fspool.check_values()
    with pytest.raises(RuntimeError, match="meta"):
        nn.SumPool()(padded().to("meta"), sizes=ints(1, 2).to("meta"))


@pytest.mark.parametrize(
    "setting, expected", [(None, False), ("", False), ("0", False), ("1", True)]
)
def test_the_environment_sets_the_default(monkeypatch, setting, expected):
    if setting is None:
        monkeypatch.delenv("FSPOOL_CHECK", raising=False)
    else:
        monkeypatch.setenv("FSPOOL_CHECK", setting)
    spec = importlib.util.spec_from_file_location("fspool.sets_read_again", sets.__file__)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert fresh.readable(ints(1, 2).to("meta")) is expected


def under_grad(function):
    return lambda x: torch.func.grad(lambda t: function(t).sum())(x)


def under_vmap(function):
    return lambda x: torch.func.vmap(function)(x[None])


@pytest.mark.parametrize("transform", [under_grad, under_vmap])
@pytest.mark.parametrize("name, index", [("sizes", ints(1, 9)), ("offsets", ints(0, 9))])
def test_values_are_checked_inside_transforms_too(transform, name, index):
    """The sizes are an ordinary CPU tensor there, if x is mapped or differentiated alone."""
    x = padded() if name == "sizes" else packed()
    call = transform(lambda t: pool_function(t, WEIGHT, **{name: index}))
    refuses(lambda: call(x), ValueError, name, "9")


@pytest.mark.parametrize("name, values", [("sizes", [1, 9]), ("offsets", [0, 9])])
def test_values_made_inside_a_gradient_are_checked_too(name, values):
    """There torch wraps every new tensor, with its values still to be seen."""
    x = padded() if name == "sizes" else packed()
    call = under_grad(lambda t: pool_function(t, WEIGHT, **{name: torch.tensor(values)}))
    refuses(lambda: call(x), ValueError, name, "9")


# --------------------------------------------------------------------------------------------------
# Conversions


CONVERSIONS = {
    "sizes beyond the mask": (
        lambda: sets.sizes_to_mask(ints(1, 4), 3),
        ValueError,
        "sizes",
        "from 1 to 4",
        "0 to 3",
    ),
    "negative sizes to a mask": (
        lambda: sets.sizes_to_mask(ints(1, -1), 3),
        ValueError,
        "sizes",
        "from -1 to 1",
        "0 to 3",
    ),
    "a list to a mask": (lambda: sets.sizes_to_mask([1, 2], 3), TypeError, "sizes", "list"),
    "float sizes to a mask": (
        lambda: sets.sizes_to_mask(torch.ones(2), 3),
        TypeError,
        "sizes",
        "torch.float32",
    ),
    "int mask to sizes": (
        lambda: sets.mask_to_sizes(ints(3, 4)[None]),
        TypeError,
        "mask",
        "torch.int64",
        "torch.bool",
    ),
    "a list to sizes": (lambda: sets.mask_to_sizes([[True]]), TypeError, "mask", "list"),
    "2-d sizes to offsets": (
        lambda: sets.sizes_to_offsets(ints(1, 2)[None]),
        ValueError,
        "sizes",
        "(1, 2)",
        "(B,)",
    ),
    "negative sizes to offsets": (
        lambda: sets.sizes_to_offsets(ints(2, -1)),
        ValueError,
        "sizes",
        "-1",
    ),
    "float sizes to offsets": (
        lambda: sets.sizes_to_offsets(torch.ones(2)),
        TypeError,
        "sizes",
        "torch.float32",
    ),
    "float offsets to sizes": (
        lambda: sets.offsets_to_sizes(torch.ones(2)),
        TypeError,
        "offsets",
        "torch.float32",
    ),
    "offsets that decrease to sizes": (
        lambda: sets.offsets_to_sizes(ints(0, 3, 1)),
        ValueError,
        "offsets",
        "from 3 to 1",
    ),
    "offsets that start late to sizes": (
        lambda: sets.offsets_to_sizes(ints(1, 3)),
        ValueError,
        "offsets",
        "starts at 1",
    ),
    "empty offsets to sizes": (
        lambda: sets.offsets_to_sizes(ints()),
        ValueError,
        "offsets",
        "(0,)",
        "(B + 1,)",
    ),
    "nested to packed": (lambda: sets.to_packed(jagged()), ANY, "x", "nested", "(B, N, D)"),
    "replicas to packed": (
        lambda: sets.to_packed(padded(2)),
        ValueError,
        "x",
        "(2, 2, 3, 4)",
        "(B, N, D)",
    ),
    "packed to packed": (lambda: sets.to_packed(packed()), ValueError, "x", "(5, 4)", "(B, N, D)"),
    "nested to padded": (
        lambda: sets.to_padded(jagged(), ints(0, 2, 2, 5)),
        ValueError,
        "x",
        "nested",
        "offsets",
    ),
    "replicas to padded": (
        lambda: sets.to_padded(packed(2), ints(0, 5)),
        ValueError,
        "x",
        "(2, 5, 4)",
        "(T, D)",
    ),
    "replicas to nested": (
        lambda: sets.to_nested(packed(2), ints(0, 5)),
        ValueError,
        "x",
        "(2, 5, 4)",
        "(T, D)",
    ),
    "dense from nested": (lambda: sets.from_nested(padded()), ANY, "x", "nested"),
    "list from nested": (lambda: sets.from_nested([[1.0]]), TypeError, "x", "list"),
    "too short": (
        lambda: sets.to_padded(packed(), ints(0, 4, 5), length=3),
        ValueError,
        "length=3",
        "4 elements",
        "length=4",
    ),
    "negative length": (
        lambda: sets.to_padded(packed(), ints(0, 4, 5), length=-1),
        ValueError,
        "length",
        "-1",
    ),
    "negative length of no sets": (
        lambda: sets.to_padded(packed(rows=0), ints(0), length=-1),
        ValueError,
        "length",
        "-1",
    ),
    "a length that is no integer": (
        lambda: sets.to_padded(packed(), ints(0, 5), length=7.5),
        ANY,
        "length",
        "7.5",
    ),
}


@pytest.mark.parametrize("case", CONVERSIONS.values(), ids=CONVERSIONS.keys())
def test_conversions(case):
    refuses(*case)


def test_conversions_do_not_speak_of_replicas():
    """They take none, so that the hint of the pools would mislead."""
    with pytest.raises(ValueError, match="expected") as caught:
        sets.to_packed(padded(2))
    assert "replica" not in str(caught.value)


# --------------------------------------------------------------------------------------------------
# A length that is promised


@pytest.mark.parametrize("temperature", [None, 0.5])
def test_a_promised_length_changes_nothing(temperature):
    x, offsets = packed(), ints(0, 2, 5)
    pool = nn.FSPool(DIM, KNOTS, temperature=temperature)
    for longest in (3, 4, 100):
        assert torch.equal(pool(x, offsets=offsets, longest=longest), pool(x, offsets=offsets))
    assert pool(torch.ones(0, DIM), offsets=ints(0), longest=1).shape == (0, DIM)
    assert not pool(torch.ones(0, DIM), offsets=ints(0, 0, 0), longest=0).any()
    assert pool(jagged(), longest=5).shape == pool(jagged()).shape
    weight, own = torch.ones(0, DIM, KNOTS), torch.zeros(0, 3, dtype=torch.long)
    nobody = pool_function(torch.ones(0, 5, DIM), weight, offsets=own, longest=1)
    assert nobody.shape == (0, 2, DIM)


@pytest.mark.parametrize(
    "longest, sentence",
    [
        (2, "longest is 2, and a set has 3 elements; expected at least that."),
        (0, "longest is 0, and a set has 3 elements; expected at least that."),
        (-1, "longest is -1; expected the elements of the largest set at most, an integer"),
        (True, "longest is True; expected the elements"),
        (2.5, "longest is 2.5; expected the elements"),
    ],
)
def test_a_promise_that_cannot_be(longest, sentence):
    with pytest.raises(ValueError, match=sentence):
        pool_function(packed(), torch.ones(DIM, 3), offsets=ints(0, 2, 5), longest=longest)


def test_padded_sets_take_no_promise():
    with pytest.raises(ValueError, match="got longest for padded sets, which have N rows"):
        pool_function(padded(), torch.ones(DIM, 3), longest=3)
