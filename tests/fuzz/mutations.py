"""Valid files made invalid, in bytes and in what JSON says."""

from __future__ import annotations

import copy
import re

from hypothesis import strategies as st

PLACE = st.integers(0, 1 << 20)
BYTES = st.binary(max_size=8) | st.sampled_from(
    [b"\0" * 8, b"\xff" * 8, b"[" * 5000, b'{"a":' * 2000, b"\n" * 3, b'"', b"\\ud800", b"\r", b"-"]
)
NUMBERS = st.sampled_from(
    b"0 -1 1 -0 2147483648 4294967295 9223372036854775808 1e400 -1e400 NaN 0.5 null true".split()
    + [b"9" * 18, b"9" * 5000, b'"x"', b"[]", b"{}"]
)

_edits = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), PLACE, st.integers(0, 7)),
        st.tuples(st.just("set"), PLACE, BYTES),
        st.tuples(st.just("insert"), PLACE, BYTES),
        st.tuples(st.just("cut"), PLACE, st.integers(1, 64)),
        st.tuples(st.just("copy"), PLACE, PLACE),
        st.tuples(st.just("end"), PLACE, st.none()),
        st.tuples(st.just("number"), PLACE, NUMBERS),
    ),
    min_size=1,
    max_size=4,
)


def mutated(content: bytes) -> st.SearchStrategy[bytes]:
    """A valid file with a few edits."""
    return _edits.map(lambda edits: _edit(content, edits))


def _edit(content: bytes, edits: list[tuple]) -> bytes:
    for kind, place, what in edits:
        at = place % (len(content) + 1)
        if kind == "flip" and content:
            at = place % len(content)
            content = content[:at] + bytes([content[at] ^ 1 << what]) + content[at + 1 :]
        elif kind == "set":
            content = content[:at] + what + content[at + len(what) :]
        elif kind == "insert":
            content = content[:at] + what + content[at:]
        elif kind == "cut":
            content = content[:at] + content[at + what :]
        elif kind == "copy":
            piece = content[at : at + 40]
            at = what % (len(content) + 1)
            content = content[:at] + piece + content[at:]
        elif kind == "end":
            content = content[:at]
        elif kind == "number" and (found := [*re.finditer(rb"-?\d[\d.e+-]*", content)]):
            match = found[place % len(found)]
            content = content[: match.start()] + what + content[match.end() :]
    return content


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-2, 4),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(
            ["\ud800", "</script><script>", "a\nb", "../x", "\0", "1" * 400, 10**400, "[red]x[/x]"]
        ),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)

_changes = st.lists(
    st.tuples(
        st.lists(st.integers(0, 200), max_size=7),
        st.sampled_from(["replace", "replace", "remove", "wrap", "add", "swap"]),
        VALUES,
        st.text(max_size=4),
    ),
    min_size=1,
    max_size=3,
)


def changed(tree: object) -> st.SearchStrategy[object]:
    """What valid JSON says, with a few things replaced, removed, wrapped or added."""
    return _changes.map(lambda changes: _change(tree, changes))


def _change(tree: object, changes: list[tuple]) -> object:
    tree = [copy.deepcopy(tree)]  # so that the whole can be replaced too
    for path, kind, value, name in changes:
        holder, key = tree, 0
        for number in path:
            inner = holder[key]
            if not isinstance(inner, (list, dict)) or not inner:
                break
            keys = list(inner) if isinstance(inner, dict) else range(len(inner))
            holder, key = inner, keys[number % len(keys)]
        _act(holder, key, kind, value, name)
        if not tree:
            return {}
    return tree[0]


def _act(holder, key, kind: str, value: object, name: str) -> None:
    if kind == "replace":
        holder[key] = value
    elif kind == "remove":
        del holder[key]
    elif kind == "wrap":
        holder[key] = [holder[key]]
    elif kind == "add" and isinstance(holder[key], dict):
        holder[key][name] = value
    elif kind == "add" and isinstance(holder[key], list):
        holder[key].append(value)
    elif kind == "swap" and isinstance(holder, dict):
        holder[name] = holder.pop(key)
