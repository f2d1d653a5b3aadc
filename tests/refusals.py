"""What cannot be right raises one sentence: the argument's name, what came, what was expected."""

import re

import pytest
import torch

from fspool.functional import fspool as pool_function

DIM, KNOTS = 4, 5
WEIGHT = torch.ones(DIM, KNOTS)
ANY = (TypeError, ValueError)


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
