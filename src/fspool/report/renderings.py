"""A filled table as a terminal, as Markdown and as HTML show it; the texts are the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html import escape

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from .grids import Grid, Place, Row
from .sentences import plural
from .verdicts import ABOVE, AHEAD, BEHIND, BELOW, LEVEL

STYLES = {LEVEL: "green", AHEAD: "bold green"} | dict.fromkeys((BEHIND, ABOVE, BELOW), "bold red")


def lines_of(row: Row, join: str = "") -> list[tuple[str, list[str]]]:
    """A row as lines of text, each with a label: the measurement first, then what belongs to it.

    With ``join`` the spread stands in the first line, and so does what a test compares with.
    """

    def value(place: Place) -> str:
        if not join:
            return place.value
        text = join.join(filter(None, [place.value, place.spread]))
        return f"{text} ({place.against})" if place.against else text

    def line(label: str, text: Callable[[Place], str]) -> list[tuple[str, list[str]]]:
        texts = [text(place) for place in row.places]
        return [(label, texts)] if any(texts) else []

    return [
        *line(row.label, value),
        *line("±", lambda place: "" if join else place.spread),
        *line("best other", lambda place: "" if join else place.against),
        *line(row.reached, lambda place: place.reached),
        *line("paper", lambda place: place.published),
        *line("verdict", lambda place: place.verdict),
    ]


LABEL = 18  # width that a terminal leaves for labels, which may be wrapped


def fitting(grid: Grid, width: int) -> list[Grid]:
    """The table in as many pieces as it takes to show its numbers uncut."""
    columns = [
        max(len(name), *(len(texts[i]) for row in grid.rows for _, texts in lines_of(row))) + 2
        for i, name in enumerate(grid.columns)
    ]
    pieces: list[list[int]] = [[]]
    for i, wide in enumerate(columns):
        if pieces[-1] and LABEL + sum(columns[j] for j in pieces[-1]) + wide + 4 > width:
            pieces.append([])
        pieces[-1].append(i)
    return [_columns(grid, piece) for piece in pieces]


def _columns(grid: Grid, chosen: list[int]) -> Grid:
    rows = [replace(row, places=[row.places[i] for i in chosen]) for row in grid.rows]
    return replace(grid, columns=[grid.columns[i] for i in chosen], rows=rows)


def rich_table(grid: Grid) -> RichTable:
    title, note = Text(grid.title, "bold"), Text(grid.told, "dim")
    table = RichTable(title=title, caption=note, box=box.SIMPLE)
    table.title_justify = table.caption_justify = "left"
    table.add_column(Text(grid.head), min_width=LABEL)
    for name in grid.columns:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in grid.rows:
        for index, (label, texts) in enumerate(lines_of(row)):
            head = Text(f"  {label}", "dim") if index else Text(label, "bold")
            style = "" if index == 0 else "dim"
            table.add_row(head, *(Text(text, STYLES.get(text, style)) for text in texts))
        table.add_section()
    return table


def markdown_table(grid: Grid) -> str:
    lines = [_markdown_line([grid.head, *grid.columns])]
    lines.append("|---|" + "---:|" * len(grid.columns))
    for row in grid.rows:
        (label, values), *rest = lines_of(row, join=" ± ")
        lines.append(_markdown_line([label, *values], bold=True))
        lines += [_markdown_line([label, *texts]) for label, texts in rest]
    return "\n".join(lines)


def _markdown_line(texts: list[str], bold: bool = False) -> str:
    label, *rest = map(markdown_text, texts)
    return f"| {f'**{label}**' if bold else label} | " + " | ".join(rest) + " |"


def markdown_text(text: str) -> str:
    """No name can end a cell or become markup."""
    text = " ".join(re.sub(r"&(?=#|\w+;)", "&amp;", text).replace("<", "&lt;").split())
    for sign in "\\`*_[]|~":
        text = text.replace(sign, f"\\{sign}")
    return text


def html_table(grid: Grid, *, caption: bool = True) -> str:
    title, note = escape(grid.title), escape(grid.told)
    above = f"<figcaption><h3>{title}</h3><p>{note}</p></figcaption>" if caption else ""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in (grid.head, *grid.columns))
    rows = "".join(_html_row(row) for row in grid.rows)
    return (
        f'<figure class="table" style="--columns:{len(grid.columns)}">'
        f'{above}<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></figure>"
    )


def _html_row(row: Row) -> str:
    kind = "" if row.measured else ' class="known"'
    places = "".join(_html_place(place, row.reached) for place in row.places)
    return f'<tr{kind}><th scope="row">{escape(row.label)}</th>{places}</tr>'


def _html_place(place: Place, reached: str) -> str:
    parts = [f'<span class="value">{escape(place.value)}</span>']
    if place.spread:
        parts.append(f'<span class="spread">± {escape(place.spread)}</span>')
    if place.against:
        parts.append(f'<span class="against">({escape(place.against)})</span>')
    if place.reached:
        parts.append(f'<span class="reached">{escape(place.reached)} {escape(reached)}</span>')
    if place.published:
        parts.append(f'<span class="paper">paper {escape(place.published)}</span>')
    if place.verdict:
        parts.append(f'<span class="verdict {place.verdict}">{place.verdict}</span>')
    runs = plural(place.runs, "run")
    title = f' title="{runs}, the worst {escape(place.worst)}"' if place.worst else ""
    return f"<td{title}>{''.join(parts)}</td>"
