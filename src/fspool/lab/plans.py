"""``plan.json`` beside the runs: what the commands for a folder asked for, joined into one plan."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

from ..checks import UserError
from ..storage import read_json, read_or_set_aside, write_json


def write_plan(out: Path, plan: dict, overwrite: bool, say: Callable[[str], None] = print) -> None:
    """What was asked for, so far, so that a report can say what is missing, and how it was made.

    A folder is for one preset of one experiment.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(out / "plan.json"):
            before = read_or_set_aside(out / "plan.json", read_json, say)
            kind, joined = _kind(plan), plan
            with suppress(AttributeError, KeyError, TypeError, ValueError):  # it may be of any form
                joined, kind = plan | _joined(before, plan, overwrite), _kind(before)
            if kind == _kind(plan):
                plan = joined
            elif not overwrite:
                raise UserError(  # a report would know of one of two plans
                    f"{out} is for {kind}, and this is {_kind(plan)}; choose another --out, or "
                    "pass --overwrite."
                )
            write_json(out / "plan.json", plan)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"out is {str(out)!r}, where nothing can be written: {reason}.") from None


def _kind(plan: dict) -> str:
    return f"{plan['experiment']} --preset {plan['preset']}"


def _joined(before: dict, plan: dict, overwrite: bool) -> dict:
    """Two plans for one folder as one."""
    runs = _runs(before)
    for cell, count in _runs(plan).items():
        runs[cell] = max(count, runs.get(cell, 0))
    seeds = max(runs.values())
    options = dict(before.get("options", {"": before["seeds"]}))
    if overwrite and set(before["cells"]) <= set(plan["cells"]):
        options = {}  # nothing of what they made is left
    for text, count in plan["options"].items():
        options[text] = max(count, options.get(text, 0))
    fewer = {cell: count for cell, count in runs.items() if count < seeds}
    joined = {"seeds": seeds, "cells": list(runs), "options": options}
    return joined | ({"runs": fewer} if fewer else {})


def _runs(plan: dict) -> dict[str, int]:
    """How many runs of each cell."""
    own = plan.get("runs", {})
    return {cell: own.get(cell, plan["seeds"]) for cell in plan["cells"]}


@contextmanager
def _one_at_a_time(path: Path):
    """Whoever reads a file, changes it and writes it again lets others wait meanwhile."""
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
