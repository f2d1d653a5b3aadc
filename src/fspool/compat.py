"""Weights that were trained with the code that the authors of the paper released.

Whoever has such a file loads it; :func:`from_reference` only renames and turns tensors. Its layer
is called FSPool too, and is both pool and unpool. The copy of it in the graph experiments sorts in
ascending order, so that its weights are read from the other end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from .checks import UserError, check_floating

__all__ = ["from_reference"]


class Kind(NamedTuple):
    """What a dict may be of: names there, as patterns, and the names here; None is left out.
    A ``sign`` is how at least one of them begins."""

    of: str
    names: dict[str, str | None]
    ascending: bool = False
    sign: str = ""


LAYER = r"\.(\d+\.(?:weight|bias))"  # of an nn.Sequential
NORM = r"\.(weight|bias|running_mean|running_var)"
AUTOENCODER = {
    rf"encoder\.conv{LAYER}": r"encoder.elements.\1",
    r"encoder\.pool\.weight": "encoder.pool.weight",
    rf"encoder\.lin{LAYER}": r"encoder.vector.\1",
}
KINDS = (
    Kind("a pool or unpool", {"weight": "weight"}),
    Kind("a graph pool", {r"pool\.weight": "pool.weight"}, ascending=True),
    Kind(
        "a set auto-encoder",
        AUTOENCODER
        | {
            rf"decoder\.lin{LAYER}": r"decoder.vector.\1",
            r"decoder\.unpool\.weight": "decoder.unpool.weight",
            rf"decoder\.conv{LAYER}": r"decoder.elements.\1",
        },
    ),
    Kind(
        "a set classifier",
        AUTOENCODER | {rf"classifier{LAYER}": r"head.\1", r"decoder\..*": None},
        sign="classifier.",
    ),
    Kind(
        "a graph network",
        {
            r"convs\.(\d+)\.conv\.nn\.0\.(weight|bias)": r"blocks.\1.first.\2",
            rf"convs\.(\d+)\.conv\.nn\.2{NORM}": r"blocks.\1.norms.0.\2",
            r"convs\.(\d+)\.conv\.nn\.3\.(weight|bias)": r"blocks.\1.second.\2",
            rf"convs\.(\d+)\.conv\.nn\.5{NORM}": r"blocks.\1.norms.1.\2",
            r"convs\.\d+\.conv\.eps": None,  # GIN(wide_eps=True)
            r"pools\.(\d+)\.pool\.weight": r"pools.\1.weight",
            rf"classifier\.0{NORM}": r"norm.\1",
            r"classifier\.1\.(weight|bias)": r"hidden.\1",
            r"classifier\.4\.(weight|bias)": r"scores.\1",
            r".*\.num_batches_tracked": None,
        },
        ascending=True,
    ),
)
POOL = re.compile(r"(.*\.)?((un)?pool|pools\.\d+)\.weight|weight")  # by its name here
ELEMENTS = re.compile(r".*\.elements\.\d+\.weight")  # a convolution there, a linear layer here


def from_reference(
    state_dict: Mapping[str, Tensor], *, ascending: bool | None = None
) -> dict[str, Tensor]:
    """The state of a module of this package, from weights of the released code.

    Args:
        state_dict: What was loaded. Of one FSPool (its ``weight``) for :class:`~fspool.FSPool` or
            :class:`~fspool.FSUnpool`; of one of its layers for graphs for ``FSPoolAggregation``; of
            its auto-encoder, classifier or graph network for
            :func:`~fspool.models.set_autoencoder`, ``SetClassifier`` or ``GIN(wide_eps=True)``.
        ascending: Whether it sorted in ascending order, so that the weights have to be turned.
            None: if the names are those of the graph code.

    Shapes:
        A weight of ``in_channels`` and ``n_pieces`` is ``(in_channels, n_pieces + 1)`` there, and
        ``(dim, knots)`` here.

    Example:
        >>> state = fspool.compat.from_reference({"weight": torch.randn(64, 21)})
        >>> pool = fspool.FSPool(*state["weight"].shape)
        >>> pool.load_state_dict(state)
        <All keys matched successfully>
    """
    if ascending not in (None, True, False):
        raise UserError(f"ascending is {ascending!r}; expected True, False or None.")
    kind = _kind(state_dict)
    turned = kind.ascending if ascending is None else ascending
    state = {}
    for key, value in state_dict.items():
        name = _renamed(kind, key)
        if name is not None:
            state[name] = _converted(key, name, value, turned)
    if not state:
        raise UserError(f"state_dict has no weights, only {', '.join(map(repr, state_dict))}.")
    return state


def _kind(state_dict: Mapping[str, Tensor]) -> Kind:
    """What all keys fit; the error names the first that does not fit where most others do."""
    if isinstance(state_dict, Mapping) and isinstance(state_dict.get("weights"), Mapping):
        raise UserError("state_dict is a whole log of a training; pass its entry 'weights'.")
    if not isinstance(state_dict, Mapping) or not state_dict:
        kind = type(state_dict).__name__
        raise UserError(f"state_dict is a {kind} without tensors; expected a state dict.")
    if all(str(key).startswith("module.") for key in state_dict):
        raise UserError("state_dict is of nn.DataParallel; remove 'module.' from its keys.")
    possible = [kind for kind in KINDS if any(str(key).startswith(kind.sign) for key in state_dict)]
    kind = min(possible, key=lambda kind: len(_strangers(kind, state_dict)))
    for stranger in _strangers(kind, state_dict):
        known = ", ".join(kind.of for kind in KINDS)
        raise UserError(
            f"state_dict has the key {stranger!r}; expected those of {known} of the released code. "
            "Of a model of your own pass its pools, each as {'weight': tensor}."
        )
    return kind


def _strangers(kind: Kind, keys: Iterable[str]) -> list[str]:
    patterns = [re.compile(pattern) for pattern in kind.names]
    return [key for key in keys if not any(p.fullmatch(str(key)) for p in patterns)]


def _renamed(kind: Kind, key: str) -> str | None:
    pattern, name = next(item for item in kind.names.items() if re.fullmatch(item[0], key))
    return name and re.sub(pattern, name, key)


def _converted(key: str, name: str, value: Tensor, turned: bool) -> Tensor:
    check_floating(f"state_dict[{key!r}]", value)
    value = value.detach()
    if POOL.fullmatch(name):
        _check_shape(
            key, value, value.ndim == 2 and value.shape[1] >= 2, "channels, 2 or more knots"
        )
        return value.flip(1) if turned else value
    if ELEMENTS.fullmatch(name):
        _check_shape(key, value, value.ndim == 3 and value.shape[2] == 1, "out, in, 1")
        return value.squeeze(2)
    return value


def _check_shape(key: str, value: Tensor, right: bool, expected: str) -> None:
    if not right:
        raise UserError(
            f"state_dict[{key!r}] has shape {tuple(value.shape)}; expected ({expected})."
        )
