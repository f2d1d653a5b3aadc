"""The page: one HTML file that needs nothing else, no network, no server."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from pathlib import Path

from ..experiments import Experiment
from .cost import cost
from .pages import parts_of
from .records import Collection, Record, split_origin
from .renderings import html_table
from .saving import save
from .sentences import RULE, gaps, how_made, verdict_sentence
from .tables import fill_all

# Nothing is loaded from anywhere, whatever a name in a run folder may contain.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def write_page(collection: Collection, path: Path | str) -> None:
    save(path, page(collection))


def page(collection: Collection) -> str:
    titles = [experiment.title for experiment in collection.experiments]
    body = "".join(_experiment(experiment, collection) for experiment in collection.experiments)
    missing = _missing(collection)  # last: drawing may find more
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape('; '.join(titles))}</title><style>{_file('page.css')}</style></head>"
        f"<body><main>{body}{missing}</main><script>{_file('page.js')}</script></body></html>\n"
    )


def embed(data: dict) -> str:
    """JSON inside of a page: no text in it can end the element that it stands in."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _experiment(experiment: Experiment, collection: Collection) -> str:
    records = collection.of(experiment.name)
    parts = parts_of(experiment.name, records)
    data = f'<script type="application/json" class="data">{embed(parts.data or {})}</script>'
    return (
        f'<article id="{escape(experiment.name)}"><h1>{escape(experiment.title)}</h1>'
        f"{parts.opening}{_tables(experiment, collection)}{parts.figures}"
        f"{_settings(records)}{_cost(records)}{_origins(records, collection)}{data}</article>"
    )


def _tables(experiment: Experiment, collection: Collection) -> str:
    grids = fill_all(experiment, collection)
    first = "".join(html_table(grid) for grid in grids if grid.published)
    others = "".join(html_table(grid) for grid in grids if not grid.published)
    text = f"<p>{escape(verdict_sentence(grids))}</p>"
    if any(grid.verdicts() for grid in grids):
        text += f"<details><summary>What level means</summary><p>{RULE}</p></details>"
    return _table_section("Beside the paper", text, first) + _table_section(
        "A closer look", "", others
    )


def _table_section(title: str, text: str, tables: str) -> str:
    if not tables:
        return ""
    return f'<section><h2>{title}</h2>{text}<div class="tables">{tables}</div></section>'


def _missing(collection: Collection) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in gaps(collection))
    if not items:
        return ""
    return f'<section id="missing"><h2>What is missing</h2><ul>{items}</ul></section>'


def _settings(records: dict[str, Record]) -> str:
    """What all cells share once; of each cell only the rest."""
    rows = list(records.values())
    keys = list(dict.fromkeys(key for record in rows for key in record.settings))
    values = {key: {json.dumps(record.settings.get(key)) for record in rows} for key in keys}
    own = [key for key in keys if len(values[key]) > 1]
    first = rows[0].settings
    shared = ", ".join(f"{_key(key)} {_word(first.get(key))}" for key in keys if key not in own)
    heads = "".join(f'<th scope="col">{escape(_key(key))}</th>' for key in ("cell", "seeds", *own))
    lines = "".join(
        f'<tr><th scope="row">{escape(record.name)}</th><td>{len(record.seeds)}</td>'
        + "".join(f"<td>{escape(_word(record.settings.get(key)))}</td>" for key in own)
        + "</tr>"
        for record in rows
    )
    return (
        "<section><h2>Settings</h2>"
        f"<p>All cells: {escape(shared)}.</p><details><summary>Each of the {len(rows)} cells"
        f'</summary><div class="scroll" tabindex="0" role="region" aria-label="Settings">'
        f'<table class="plain"><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'
        "</details></section>"
    )


def _key(name: str) -> str:
    return name.replace("_", " ")


def _word(value: object) -> str:
    if value in (None, "") or isinstance(value, bool):
        return "none" if value in (None, "") else "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cost(records: dict[str, Record]) -> str:
    grid = cost(list(records.values()))
    if grid is None:
        return ""
    return _table_section(
        grid.title, f"<p>{escape(grid.told)}</p>", html_table(grid, caption=False)
    )


def _origins(records: dict[str, Record], collection: Collection) -> str:
    machines: list[tuple[dict, list[str]]] = []
    for record in records.values():
        for origin in record.origins:
            machine = split_origin(origin)[0]
            names = next((names for known, names in machines if known == machine), None)
            if names is None:
                machines.append((machine, names := []))
            names.append(record.name)
    items = "".join(_machine(machine, names) for machine, names in machines)
    text = how_made(list(records.values()), collection)
    return (
        f"<section><h2>Where it comes from</h2><p>{escape(text)}</p>"
        f"<details><summary>Machines and versions</summary><ul>{items}</ul></details></section>"
    )


def _machine(machine: dict, names: list[str]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in machine.get("versions", {}).items())
    threads = f"{machine.get('threads', '?')} threads"
    parts = [machine.get("device"), threads, versions, machine.get("commit"), machine.get("date")]
    text = "; ".join(str(part) for part in parts if part)
    cells = ", ".join(dict.fromkeys(names))
    return f"<li>{escape(text)}<br><small>{escape(cells)}</small></li>"
