"""What result files look like. A checksum says that a file is as it was written, not by whom: so
whoever reads one looks at its form first, and the rest of the report can rely on it.
"""

from __future__ import annotations

from collections.abc import Callable

Form = Callable[[object], bool]


def number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # which no NaN is


def measured(value: object) -> bool:
    return value is None or number(value)


def count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def real(value: object) -> bool:
    """Of an array, in which anything may come out."""
    return type(value) is float or number(value)


def text(value: object) -> bool:
    """What can be printed: JSON also has halves of characters."""
    return isinstance(value, str) and not any("\ud800" <= sign <= "\udfff" for sign in value)


def maybe_text(value: object) -> bool:
    return value is None or text(value)


def anything(value: object) -> bool:
    """Of JSON, that can be printed and is not nested beyond reason."""
    return _nested(value, 8)


def _nested(value: object, depth: int) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(text(k) and _nested(v, depth - 1) for k, v in value.items())
    if isinstance(value, list):
        return depth > 0 and all(_nested(item, depth - 1) for item in value)
    return value is None or isinstance(value, bool) or real(value) or text(value)


def list_of(form: Form) -> Form:
    return lambda value: isinstance(value, list) and all(map(form, value))


def by_name(form: Form) -> Form:
    return lambda value: (
        isinstance(value, dict) and all(text(name) and form(item) for name, item in value.items())
    )


def record(_optional: dict[str, Form] | None = None, /, **forms: Form) -> Form:
    """An object with these keys, and perhaps others."""
    optional = _optional or {}

    def fits(value: object) -> bool:
        return (
            isinstance(value, dict)
            and all(name in value and form(value[name]) for name, form in forms.items())
            and all(form(value[name]) for name, form in optional.items() if name in value)
        )

    return fits


def seeds(value: object) -> bool:
    return list_of(count)(value) and 0 < len(value) == len(set(value))


def interval(value: object) -> bool:
    return list_of(number)(value) and len(value) == 2 and value[0] <= value[1]


def array(value: object) -> bool:
    return record(shape=list_of(count), values=list_of(real))(value)


curve = list_of(record({"metrics": by_name(list_of(measured))}, step=count, loss=list_of(measured)))
settings = by_name(anything)
config = record(experiment=text, cell=settings, seeds=seeds)
result = record(metrics=by_name(list_of(measured)), curve=curve)
plan = record(
    {"options": by_name(count), "runs": by_name(count)},
    experiment=text,
    preset=text,
    seeds=count,
    cells=list_of(text),
)
provenance = record(
    {
        "device": text,
        "unit": text,
        "threads": count,
        "versions": by_name(text),
        "commit": maybe_text,
        "date": maybe_text,
        "seconds": by_name(number),
        "step_seconds": number,
        "steps": list_of(count),
        "clock": list_of(interval),
        "runs": count,
    }
)
cell = record(
    {"tallies": by_name(record(shape=list_of(count), zlib=text))},
    experiment=text,
    name=text,
    settings=settings,
    seeds=seeds,
    metrics=by_name(list_of(measured)),
    curve=record(
        step=list_of(count), mean=list_of(number), low=list_of(number), high=list_of(number)
    ),
    arrays=by_name(array),
    groups=list_of(provenance),
)
results = record(
    plans=list_of(plan),
    unfinished=list_of(text),
    damaged=list_of(text),
    machines=list_of(provenance),
    cells=list_of(cell),
)
