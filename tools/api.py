"""The public names with their signatures, one a line, as text.

    python tools/api.py > tests/api.txt

The test of the same name compares: a change of the interface shows as a difference there.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

MODULES = (
    "fspool",
    "fspool.compat",
    "fspool.functional",
    "fspool.losses",
    "fspool.losses.detection",
    "fspool.models",
    "fspool.nn",
    "fspool.sets",
    "fspool.integrations.pyg",
    "fspool.lab.cell",
)


def surface() -> Iterator[str]:
    """All lines: modules and what is in them, then commands and their options."""
    for name in MODULES:
        module = import_module(name)
        for public in names(module):
            yield from described(f"{name}.{public}", getattr(module, public))
    yield from commands()


def names(module) -> list[str]:
    """What the module says, else what it defines without a leading underscore."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(getattr(module, "__all__", own))


def described(path: str, value: object) -> Iterator[str]:
    if inspect.ismodule(value):
        yield f"{path} (module)"
    elif inspect.isclass(value):
        yield f"{path}{signature(value)}"
        if value.__module__.startswith("fspool"):
            yield from members(path, value)
    elif callable(value):
        yield f"{path}{signature(value)}"
    else:
        yield f"{path}: {type(value).__name__}"


def members(path: str, kind: type) -> Iterator[str]:
    """Methods and properties that it or its ancestors in the package define."""
    own = {}
    for ancestor in reversed(kind.__mro__):
        if ancestor.__module__.startswith("fspool"):
            own |= vars(ancestor)
    for name, value in sorted(own.items()):
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"{path}.{name} (property)"
        elif isinstance(value, (classmethod, staticmethod)):
            yield f"{path}.{name}{signature(value.__func__)}"
        elif inspect.isfunction(value):
            yield f"{path}.{name}{signature(value)}"


def signature(value) -> str:
    """Without the quotes that annotations have where they are kept as text."""
    text = str(inspect.signature(value))
    return re.sub(r"(: |-> )(?:ForwardRef\('([^']*)'\)|'([^']*)')", r"\1\2\3", text)


def commands() -> Iterator[str]:
    from typer.main import get_command

    from fspool.cli import app

    for name, command in sorted(get_command(app).commands.items()):
        words = [_parameter(parameter) for parameter in command.params]
        yield " ".join(("fspool", name, *words)).strip()


def _parameter(parameter) -> str:
    if parameter.param_type_name == "argument":
        return parameter.name.upper()
    return "/".join((*parameter.opts, *parameter.secondary_opts))


if __name__ == "__main__":
    print("\n".join(surface()))
