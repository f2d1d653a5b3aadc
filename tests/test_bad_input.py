"""What cannot be right raises one sentence: the argument's name, what came, what was expected."""

import importlib.util
import re
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fspool
from fspool import nn, sets
from fspool.functional import fspool as pool_function
from fspool.functional import fspool_vjp, fsunpool, relaxed_sort

DIM, KNOTS = 4, 5
WEIGHT = torch.ones(DIM, KNOTS)
ANY = (TypeError, ValueError)

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def refuses(call, error, name, *parts):
    """``call`` raises one sentence that holds the argument's name and all of the parts."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message, message
    assert not re.search(r"[.!?]\s+[A-Z]", message), f"more than one sentence: {message}"
    for part in (name, *parts):
        assert re.search(rf"(?<!\w){re.escape(part)}(?!\w)", message), f"no {part!r} in: {message}"


def padded(*lead, length=3, dim=DIM):
    return torch.ones(*lead, 2, length, dim)


def packed(*lead, rows=5, dim=DIM):
    return torch.ones(*lead, rows, dim)


def jagged(dim=DIM, dtype=torch.float32):
    parts = [torch.ones(n, dim, dtype=dtype) for n in (2, 0, 3)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def bools(*shape):
    return torch.ones(*shape, dtype=torch.bool)


def make_order(temperature=None, x=None, weight=WEIGHT, **keywords):
    x = padded() if x is None else x
    return pool_function(x, weight, temperature=temperature, return_order=True, **keywords)[1]


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
# weight


def weight_cases(groups):
    """(weight, error, parts) for x of DIM features, with a replica axis where groups is given."""
    lead = () if groups is None else (groups,)
    form = f"({DIM}, k)" if groups is None else f"({groups}, {DIM}, k)"
    cases = {
        "list": ([[1.0] * KNOTS] * DIM, TypeError, "list", "tensor"),
        "int": (torch.ones(*lead, DIM, KNOTS).long(), TypeError, "torch.int64", "floating"),
        "1-d": (torch.ones(KNOTS), ValueError, "(5,)", form),
        "too few features": (torch.ones(*lead, 3, KNOTS), ValueError, form),
        "too many features": (torch.ones(*lead, 7, KNOTS), ValueError, form),
        "transposed": (torch.ones(*lead, KNOTS, DIM), ValueError, form),
        "an axis more": (torch.ones(1, *lead, DIM, KNOTS), ValueError, form),
        "one knot": (torch.ones(*lead, DIM, 1), ValueError, "1", "at least 2"),
        "no knots": (torch.ones(*lead, DIM, 0), ValueError, "0", "at least 2"),
    }
    if groups is not None:
        cases["no replicas"] = (torch.ones(DIM, KNOTS), ValueError, "(4, 5)", form)
        cases["other replicas"] = (torch.ones(3, DIM, KNOTS), ValueError, "(3, 4, 5)", form)
        cases["one replica"] = (torch.ones(1, DIM, KNOTS), ValueError, "(1, 4, 5)", form)
    return cases


WEIGHTS = {
    f"{kind}{'' if groups is None else ' for replicas'}": (groups, *case)
    for groups in (None, 2)
    for kind, case in weight_cases(groups).items()
}


@pytest.mark.parametrize("temperature", [None, 1.0], ids=["hard", "relaxed"])
@pytest.mark.parametrize("function", [pool_function, fsunpool, fspool_vjp])
@pytest.mark.parametrize("case", WEIGHTS.values(), ids=WEIGHTS.keys())
def test_weight(case, function, temperature):
    groups, weight, error, *parts = case
    lead = () if groups is None else (groups,)
    if function is pool_function:
        call = partial(function, padded(*lead), weight, temperature=temperature)
    else:
        right = torch.ones(*lead, DIM, KNOTS)
        order = make_order(temperature, padded(*lead), right)
        call = partial(function, torch.ones(*lead, 2, DIM), weight, order)
    refuses(call, error, "weight", *parts)


def test_packed_replicas_need_a_weight_each():
    refuses(
        lambda: pool_function(packed(2), WEIGHT, offsets=ints(0, 5)),
        ValueError,
        "weight",
        "(4, 5)",
        "(2, 4, k)",
    )


def test_a_module_of_another_channel_count_says_both():
    x = padded(dim=3)
    refuses(lambda: nn.FSPool(DIM, KNOTS)(x), ValueError, "weight", "(4, 5)", "(3, k)", "x")


@pytest.mark.parametrize(
    "pool", [lambda x, w: pool_function(x, w), lambda x, w: pool_function(x, w, temperature=1.0)]
)
def test_weight_on_another_device(pool):
    refuses(lambda: pool(padded(), WEIGHT.to("meta")), ValueError, "weight", "meta", "x", "cpu")
    refuses(lambda: pool(padded().to("meta"), WEIGHT), ValueError, "weight", "cpu", "x", "meta")


def test_a_module_on_another_device():
    pool = nn.FSPool(DIM, KNOTS, device="meta")
    refuses(lambda: pool(padded()), ValueError, "weight", "meta", "x", "cpu")


# --------------------------------------------------------------------------------------------------
# temperature

TEMPERATURES = {
    "zero": (lambda: 0, ValueError, "0", "positive"),
    "zero as float": (lambda: 0.0, ValueError, "0.0", "positive"),
    "negative": (lambda: -1.5, ValueError, "-1.5", "positive"),
    "nan": (lambda: float("nan"), ValueError, "nan", "positive"),
    "inf": (lambda: float("inf"), ValueError, "inf", "positive"),
    "minus inf": (lambda: float("-inf"), ValueError, "-inf", "positive"),
    "bool": (lambda: True, TypeError, "bool", "number", "0-d tensor"),
    "string": (lambda: "1", TypeError, "str", "number", "0-d tensor"),
    "list": (lambda: [1.0], TypeError, "list", "number", "0-d tensor"),
    "complex": (lambda: 1j, TypeError, "complex", "number", "0-d tensor"),
    "too small for float32": (lambda: 1e-60, ValueError, "1e-60", "positive"),
    "too large for float32": (lambda: 1e60, ValueError, "1e+60", "positive"),
    "1-d tensor": (lambda: torch.ones(1), ValueError, "(1,)", "0-d"),
    "tensor for features": (lambda: torch.ones(DIM), ValueError, "(4,)", "0-d"),
    "int tensor": (lambda: torch.tensor(1), ValueError, "torch.int64", "floating"),
    "bool tensor": (lambda: torch.tensor(True), ValueError, "torch.bool", "floating"),
    "requires grad": (
        lambda: torch.tensor(1.0, requires_grad=True),
        ValueError,
        "requires a gradient",
        "x",
    ),
    "parameter": (
        lambda: torch.nn.Parameter(torch.tensor(1.0)),
        ValueError,
        "requires a gradient",
        "x",
    ),
    "zero tensor": (lambda: torch.tensor(0.0), ValueError, "0.0", "positive"),
    "negative tensor": (lambda: torch.tensor(-2.0), ValueError, "-2.0", "positive"),
    "negative frozen parameter": (
        lambda: torch.nn.Parameter(torch.tensor(-2.0), requires_grad=False),
        ValueError,
        "-2.0",
        "positive",
    ),
    "nan tensor": (lambda: torch.tensor(float("nan")), ValueError, "nan", "positive"),
    "inf tensor": (lambda: torch.tensor(float("inf")), ValueError, "inf", "positive"),
    "float64 tensor too small for float32": (
        lambda: torch.tensor(1e-60, dtype=torch.float64),
        ValueError,
        "1e-60",
        "positive",
    ),
    "other device": (lambda: torch.tensor(1.0, device="meta"), ValueError, "meta", "cpu"),
}
TAKE_TEMPERATURE = {
    "fspool": lambda t: pool_function(padded(), WEIGHT, temperature=t),
    "fspool packed": lambda t: pool_function(packed(), WEIGHT, offsets=ints(0, 5), temperature=t),
    "relaxed_sort": lambda t: relaxed_sort(padded(), temperature=t),
    "FSPool": lambda t: nn.FSPool(DIM, KNOTS, temperature=t),
}


@pytest.mark.parametrize("take", TAKE_TEMPERATURE.values(), ids=TAKE_TEMPERATURE.keys())
@pytest.mark.parametrize("case", TEMPERATURES.values(), ids=TEMPERATURES.keys())
def test_temperature(case, take):
    make, error, *parts = case
    refuses(lambda: take(make()), error, "temperature", *parts)


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.int64(1), 1])
@pytest.mark.parametrize("take", TAKE_TEMPERATURE.values(), ids=TAKE_TEMPERATURE.keys())
def test_a_numpy_scalar_is_a_number(take, value):
    got, expected = take(value), take(float(value))
    if isinstance(got, nn.FSPool):
        got, expected = got.temperature, expected.temperature
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_the_relaxed_sort_needs_a_temperature():
    refuses(
        lambda: relaxed_sort(padded(), temperature=None),
        ValueError,
        "temperature",
        "None",
        "positive",
    )


def test_a_module_whose_temperature_was_spoilt_in_place():
    pool = nn.FSPool(DIM, KNOTS, temperature=1.0)
    pool.temperature.fill_(0.0)
    refuses(lambda: pool(padded()), ValueError, "temperature", "0.0", "positive")


# --------------------------------------------------------------------------------------------------
# Modules


@pytest.mark.parametrize("module", [nn.FSPool, nn.FSUnpool])
@pytest.mark.parametrize(
    "keywords, error, name, parts",
    [
        ({"dim": DIM, "knots": 1}, ValueError, "knots", ["1", "at least 2"]),
        ({"dim": DIM, "knots": 0}, ValueError, "knots", ["0", "at least 2"]),
        ({"dim": DIM, "knots": -3}, ValueError, "knots", ["-3", "at least 2"]),
        ({"dim": DIM, "knots": 2.5}, ANY, "knots", ["2.5"]),
        ({"dim": DIM, "knots": "20"}, ANY, "knots", ["20"]),
        ({"dim": 0}, ValueError, "dim", ["0", "at least 1"]),
        ({"dim": -1}, ValueError, "dim", ["-1", "at least 1"]),
        ({"dim": 2.5}, ANY, "dim", ["2.5"]),
        ({"dim": (3, 4)}, ANY, "dim", ["(3, 4)"]),
        ({"dim": DIM, "init": "zeros"}, ValueError, "init", ["zeros", "normal", "ones"]),
        ({"dim": DIM, "init": None}, ValueError, "init", ["None", "normal", "ones"]),
        ({"dim": DIM, "dtype": torch.int64}, ANY, "dtype", ["torch.int64", "floating"]),
    ],
)
def test_constructors(module, keywords, error, name, parts):
    refuses(lambda: module(**keywords), error, name, *parts)


RELAXED = {"dim": DIM, "temperature": 1.0}


@pytest.mark.parametrize(
    "keywords, error, name, parts",
    [
        ({"end": 0.0}, ValueError, "end=0.0", ["0 < end <= start"]),
        ({"end": -1.0}, ValueError, "end=-1.0", ["0 < end <= start"]),
        ({"end": 2.0}, ValueError, "end=2.0", ["start=1.0", "0 < end <= start"]),
        ({"end": float("nan")}, ValueError, "end=nan", ["0 < end <= start"]),
        ({"start": float("nan")}, ValueError, "start=nan", ["0 < end <= start"]),
        ({"start": float("inf")}, ValueError, "start=inf", []),
        ({"end": 1e-60}, ValueError, "end=1e-60", []),
        ({"steps": 0}, ValueError, "steps", ["0", "at least 1"]),
        ({"steps": -5}, ValueError, "steps", ["-5", "at least 1"]),
        ({"steps": float("nan")}, ANY, "steps", ["nan", "at least 1"]),
        ({"modules": nn.FSPool(DIM)}, ValueError, "modules", ["FSPool", "temperature"]),
        ({"modules": []}, ValueError, "modules", ["FSPool", "temperature"]),
        ({"modules": torch.nn.Linear(2, 2)}, ValueError, "modules", ["FSPool", "temperature"]),
        ({"modules": [nn.FSPool(**RELAXED), "encoder"]}, ANY, "modules", ["str"]),
    ],
)
def test_temperature_decay(keywords, error, name, parts):
    keywords = {"modules": nn.FSPool(**RELAXED), "steps": 3} | keywords
    refuses(lambda: nn.TemperatureDecay(keywords.pop("modules"), **keywords), error, name, *parts)


# --------------------------------------------------------------------------------------------------
# z, g and order

POOLED = {
    "list": (lambda: [[1.0] * DIM] * 2, TypeError, "list", "tensor"),
    "int": (lambda: torch.ones(2, DIM).long(), TypeError, "torch.int64", "floating"),
    "other batch": (lambda: torch.ones(3, DIM), ValueError, "(3, 4)", "(2, 4)"),
    "one row for all": (lambda: torch.ones(1, DIM), ValueError, "(1, 4)", "(2, 4)"),
    "other features": (lambda: torch.ones(2, 3), ValueError, "(2, 3)", "(2, 4)"),
    "one feature": (lambda: torch.ones(2, 1), ValueError, "(2, 1)", "(2, 4)"),
    "1-d": (lambda: torch.ones(DIM), ValueError, "(4,)", "(2, 4)"),
    "a whole set": (lambda: padded(), ValueError, "(2, 3, 4)", "(2, 4)"),
    "replicas": (lambda: torch.ones(1, 2, DIM), ValueError, "(1, 2, 4)", "(2, 4)"),
}
TAKE_POOLED = {"z": fsunpool, "g": fspool_vjp}
both_orders = pytest.mark.parametrize("temperature", [None, 1.0], ids=["hard", "relaxed"])


@both_orders
@pytest.mark.parametrize("name", TAKE_POOLED)
@pytest.mark.parametrize("case", POOLED.values(), ids=POOLED.keys())
def test_pooled(case, name, temperature):
    (make, error, *parts), order = case, make_order(temperature)
    refuses(lambda: TAKE_POOLED[name](make(), WEIGHT, order), error, name, *parts)


@both_orders
@pytest.mark.parametrize("name", TAKE_POOLED)
def test_pooled_for_other_layouts(name, temperature):
    function, rows = TAKE_POOLED[name], torch.ones(5, DIM)
    for order in (
        make_order(temperature, packed(), offsets=ints(0, 2, 2, 5)),
        make_order(temperature, jagged()),
    ):
        call = partial(function, rows, WEIGHT, order)
        refuses(call, ValueError, name, "(5, 4)", "(3, 4)")
    weight = torch.ones(3, DIM, KNOTS)
    order = make_order(temperature, padded(3), weight)
    call = partial(function, torch.ones(2, DIM), weight, order)
    refuses(call, ValueError, name, "(2, 4)", "(3, 2, 4)")


@both_orders
@pytest.mark.parametrize("name", TAKE_POOLED)
def test_pooled_on_another_device(name, temperature):
    function, order, z = TAKE_POOLED[name], make_order(temperature), torch.ones(2, DIM)
    far, far_weight = z.to("meta"), WEIGHT.to("meta")
    refuses(lambda: function(z, far_weight, order), ValueError, "weight", "meta", name, "cpu")
    refuses(lambda: function(far, WEIGHT, order), ValueError, "weight", "cpu", name, "meta")
    refuses(lambda: function(far, far_weight, order), ValueError, "order", "cpu", name, "meta")
    refuses(lambda: function(z, WEIGHT, order.to("meta")), ValueError, "order", "meta", name, "cpu")


@pytest.mark.parametrize("name", TAKE_POOLED)
@pytest.mark.parametrize(
    "order, kind", [(None, "NoneType"), ((1, 2), "tuple"), (padded(), "Tensor")]
)
def test_order_of_another_type(name, order, kind):
    refuses(
        lambda: TAKE_POOLED[name](torch.ones(2, DIM), WEIGHT, order),
        TypeError,
        "order",
        kind,
        "Order",
    )


def test_an_unpool_module_and_an_order_of_other_features():
    order, unpool = make_order(), nn.FSUnpool(3, KNOTS)
    refuses(lambda: unpool(torch.ones(2, 3), order), ValueError, "z", "(2, 3)", "(2, 4)")
    refuses(lambda: unpool(torch.ones(2, DIM), order), ValueError, "weight", "(3, 5)", "(4, k)")
    refuses(lambda: unpool(torch.ones(2, 3), None), TypeError, "order", "NoneType", "Order")
    refuses(
        lambda: unpool(torch.ones(2, DIM), order.select([0, 1, 2])),
        ValueError,
        "z",
        "(2, 4)",
        "(2, 3)",
    )


# --------------------------------------------------------------------------------------------------
# Order


def other_jagged():
    """As many rows and sets, cut elsewhere."""
    parts = [torch.ones(n, DIM) for n in (3, 0, 2)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


OTHER_SHAPES = {  # what the order sorted, its keywords, what comes, the error, parts
    "longer sets": (padded, {}, lambda: padded(length=4), ValueError, "(2, 4, 4)", "(2, 3, D)"),
    "other batch": (
        padded,
        {},
        lambda: torch.ones(1, 3, DIM),
        ValueError,
        "(1, 3, 4)",
        "(2, 3, D)",
    ),
    "one set": (padded, {}, lambda: torch.ones(3, DIM), ValueError, "(3, 4)", "(2, 3, D)"),
    "replicas for none": (
        padded,
        {},
        lambda: padded(1),
        ValueError,
        "(1, 2, 3, 4)",
        "(2, 3, D)",
    ),
    "none for replicas": (
        lambda: padded(2),
        {},
        padded,
        ValueError,
        "(2, 3, 4)",
        "(2, 2, 3, D)",
    ),
    "other features": (padded, {}, lambda: padded(dim=3), ValueError, "3 features", "4"),
    "one feature": (padded, {}, lambda: padded(dim=1), ValueError, "1", "4"),
    "list": (padded, {}, lambda: [[[1.0]]], TypeError, "list", "tensor"),
    "padded for packed": (
        packed,
        {"offsets": ints(0, 2, 5)},
        padded,
        ValueError,
        "(2, 3, 4)",
        "(5, D)",
    ),
    "fewer rows for packed": (
        packed,
        {"offsets": ints(0, 2, 5)},
        lambda: packed(rows=4),
        ValueError,
        "(4, 4)",
        "(5, D)",
    ),
    "other features for packed": (
        packed,
        {"offsets": ints(0, 2, 5)},
        lambda: packed(dim=3),
        ValueError,
        "3 features",
        "4",
    ),
    "jagged for padded": (padded, {}, jagged, ValueError, "(2, 3, D)"),
    "jagged for packed": (packed, {"offsets": ints(0, 2, 5)}, jagged, ValueError, "(5, D)"),
    "packed for jagged": (jagged, {}, packed, ValueError, "dense", "jagged", "nested"),
    "list for jagged": (jagged, {}, lambda: [[1.0]], TypeError, "list", "tensor"),
    "jagged with other offsets": (jagged, {}, other_jagged, ValueError, "offsets"),
    "strided for jagged": (
        jagged,
        {},
        lambda: torch.nested.nested_tensor([torch.ones(5, DIM)], layout=torch.strided),
        ValueError,
        "strided",
        "jagged",
    ),
    "other device": (padded, {}, lambda: padded().to("meta"), ValueError, "meta", "cpu"),
}


@both_orders
@pytest.mark.parametrize("method, name", [("sort", "x"), ("unsort", "v")])
@pytest.mark.parametrize("case", OTHER_SHAPES.values(), ids=OTHER_SHAPES.keys())
def test_an_order_of_another_shape(case, method, name, temperature):
    make_x, keywords, make_other, error, *parts = case
    x = make_x()
    weight = torch.ones(2, DIM, KNOTS) if x.ndim == 4 else WEIGHT
    order = make_order(temperature, x, weight, **keywords)
    refuses(lambda: getattr(order, method)(make_other()), error, name, *parts)


@pytest.mark.parametrize("method, name", [("sort", "x"), ("unsort", "v")])
def test_a_relaxed_order_does_not_round_its_averages_to_integers(method, name):
    order = make_order(1.0)
    refuses(
        lambda: getattr(order, method)(padded().long()), TypeError, name, "torch.int64", "floating"
    )


@both_orders
@pytest.mark.parametrize(
    "features, parts",
    [
        ([4], ["4"]),
        ([0, -5], ["-5"]),
        (torch.tensor([0, 7]), ["7"]),
        (2, ["int"]),
        (True, ["bool"]),
        (None, ["NoneType"]),
        ("01", ["str"]),
        ([0.0, 1.0], ["torch.float32"]),
        (torch.tensor(2), ["()"]),
        (torch.tensor([[0, 1]]), ["(1, 2)"]),
        (torch.tensor([True, False]), ["(2,)"]),
    ],
    ids=str,
)
def test_select(features, parts, temperature):
    order = make_order(temperature)
    refuses(lambda: order.select(features), (*ANY, IndexError), "features", *parts)
