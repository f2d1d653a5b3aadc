"""Reads finished runs, and nothing else: tables beside the paper's, figures, one HTML page."""

from .collect import collect
from .compact import compact
from .markdown import write_markdown
from .page import write_page
from .records import Collection, Record
from .terminal import render_terminal

__all__ = [
    "Collection",
    "Record",
    "collect",
    "compact",
    "render_terminal",
    "write_markdown",
    "write_page",
]
