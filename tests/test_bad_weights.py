"""Weights, temperatures and settings of modules that cannot be right."""

from functools import partial

import numpy as np
import pytest
import torch

from fspool import nn
from fspool.functional import fspool as pool_function
from fspool.functional import fspool_vjp, fsunpool, relaxed_sort

from .refusals import ANY, DIM, KNOTS, WEIGHT, ints, make_order, packed, padded, refuses

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
        (
            {"dim": DIM, "dtype": torch.float8_e4m3fn},
            ANY,
            "dtype",
            ["torch.float8_e4m3fn", "at least 16 bits"],
        ),
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
