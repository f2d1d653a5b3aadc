"""The figure of the report in which one turns a polygon, for a page of the docs.

Its data is that of the runs in ``results/polygons``; markup, script and style are the report's.
"""

from __future__ import annotations

import re
from importlib.resources import files

from fspool import report
from fspool.report.page import embed
from fspool.report.polygon_page import FIGURE
from fspool.report.sweeps import packed_sweeps

EXTRA = """
p, figure { margin: 0.4rem 0; }
p.hint { font-size: 0.85rem; color: var(--soft); }
.stage { text-align: left; }
.stage h3 { padding: 0; }
.stage .numbers { color: var(--soft); }
"""


def show_turning(results: str) -> None:
    """Display it in a notebook, from a compact result file."""
    from IPython.display import HTML, display

    packed = packed_sweeps(report.collect(results).of("polygons"))
    data = f'<script type="application/json" class="data">{embed(packed)}</script>'
    figure = f'<div id="polygons" class="turning">{FIGURE}{data}</div>'
    script = (files(report) / "page.js").read_text()
    display(HTML(f"<style>{style()}</style>{figure}<script>{script}</script>"))


def style() -> str:
    """The report's rules for the figure, kept to it, with colours that follow the theme."""
    text = (files(report) / "page.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    rules = text.partition("/* The figure that turns */")[2].partition("/* Tables */")[0]
    narrow = text[text.rindex("@media (max-width") :]
    by_night = f"body:not([data-theme=light]) .turning {{{dark}}}"
    return (
        f".turning {{{light}}}\n@media (prefers-color-scheme: dark) {{ {by_night} }}\n"
        f"body[data-theme=dark] .turning {{{dark}}}\n.turning {{ {EXTRA} {rules} {narrow} }}"
    )
