"""What the report says in words, the same on a terminal, in Markdown and on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ..lab.seconds import may_have_moved, seconds_of
from .grids import Grid
from .records import Collection, Plan, Record
from .verdicts import AHEAD, BEHIND, LEVEL

PARTS = 3  # commands that are quoted

RULE = (
    "Each number is the mean over seeds, ± the sample standard deviation. Level means that it "
    "differs from the published number by at most 2 √(s² + p²) plus one unit of the last printed "
    "digit, where s is our standard deviation, 0 of a single run, and p the published one, 0 where "
    "none is published. What is not trained has the same s and p: the error of one evaluation. "
    "Ahead and behind: better, or worse, by more. A closed form is compared with the standard "
    "error of our mean; above and below: by more than twice that and a digit."
)

UNLIKE = (
    "Settings, data or what was searched are not the paper's, whose numbers are only shown beside "
    "these."
)


def verdict_sentence(grids: list[Grid]) -> str:
    """How many of the paper's numbers were met; empty where there are none to meet."""
    of_paper = [grid for grid in grids if grid.published and grid.judged]
    counts = sum((grid.verdicts() for grid in of_paper), Counter())
    if not counts:
        places = [place for grid in of_paper for row in grid.rows for place in row.places]
        return UNLIKE if any(place.published and place.runs for place in places) else ""
    number = counts.total()
    text = f"Beside the paper's {number} number{'s' * (number > 1)} for these cells: "
    text += f"{_counted(counts)}."
    lead = of_paper[0].lead
    own = sum((grid.verdicts(lead) for grid in of_paper), Counter())
    return f"{text} {lead} alone: {_counted(own)}." if own else text


def _counted(counts: Counter) -> str:
    return ", ".join(f"{counts[word]} {word}" for word in (LEVEL, AHEAD, BEHIND) if counts[word])


def how_made(
    records: list[Record],
    collection: Collection,
    code: str = "",
    escape: Callable[[str], str] = str,
) -> str:
    """Machine, commit and command, in a sentence or two; names are escaped, commands are code."""
    origins = [origin for record in records for origin in record.origins]
    runs = sum(len(record.seeds) for record in records)
    seconds = sum(filter(None, seconds_of(origins)))
    took = "they took" if all("clock" in origin for origin in origins) else "added up, they took"
    took += " at most" if may_have_moved(origins) else ""
    text = f"{plural(len(records), 'cell')}, {plural(runs, 'run')}; {took} {duration(seconds)}"
    if devices := _list(origins, "device"):
        text += f" on {devices}"
    if torches := _list([origin.get("versions", {}) for origin in origins], "torch"):
        text += f" with torch {torches}"
    if commits := _list(origins, "commit"):
        text += f", at commit {commits}"
    if dates := sorted({origin["date"] for origin in origins if origin.get("date")}):
        text += f", {dates[0]}" if len(dates) == 1 else f", {dates[0]} to {dates[-1]}"
    text = escape(text)
    plans = [plan for plan in collection.plans if plan.experiment == records[0].experiment]
    return f"{text}. Made by {_commands(plans, code)}." if plans else f"{text}."


def _commands(plans: list[Plan], code: str) -> str:
    """All of them, or if they are many what they are parts of."""
    texts = [text for plan in plans for text in plan.commands]
    if len(texts) <= PARTS:
        return " and ".join(f"{code}{text}{code}" for text in texts)
    whole = dict.fromkeys(f"fspool run {plan.experiment} --preset {plan.preset}" for plan in plans)
    whole = " and ".join(f"{code}{text}{code}" for text in whole)
    return f"{len(texts)} commands, parts of {whole}"


def _list(origins: list[dict], key: str) -> str:
    return ", ".join(sorted({str(origin[key]) for origin in origins if origin.get(key)}))


def plural(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def duration(seconds: float) -> str:
    for size, name in ((3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {name}s"
    count = max(1, round(seconds))
    return f"{count} second{'s' * (count > 1)}"


def gaps(collection: Collection) -> list[str]:
    """What was asked for and is not there, and what could not be read."""
    return [*collection.missing, *collection.unfinished, *collection.problems]
