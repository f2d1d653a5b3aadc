"""Orders that cannot be right, and what does not fit an order."""

from functools import partial

import pytest
import torch

from fspool import nn
from fspool.functional import fspool_vjp, fsunpool

from .refusals import ANY, DIM, KNOTS, WEIGHT, ints, jagged, make_order, packed, padded, refuses

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


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
