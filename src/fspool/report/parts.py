"""What an experiment adds to the tables of its page."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

Panel = tuple[str, str]  # a caption and a picture


@dataclass(frozen=True)
class Parts:
    """HTML before and after the tables, and data for the script."""

    opening: str = ""
    figures: str = ""
    data: dict | None = None


def section(title: str, text: str, shown: list[Panel], legend: str = "") -> str:
    """Nothing where there is nothing to show."""
    if not shown:
        return ""
    return f"<section><h2>{title}</h2><p>{text}</p>{legend}{panels(shown)}</section>"


def panels(shown: list[Panel]) -> str:
    items = "".join(
        f'<figure class="panel"><figcaption>{escape(caption)}</figcaption>{picture}</figure>'
        for caption, picture in shown
    )
    return f'<div class="panels">{items}</div>'


def legend(colours: dict[str, str]) -> str:
    """Labels, each with its colour as CSS knows it."""
    items = "".join(
        f'<li><span class="swatch" style="background:{colour}"></span>{escape(label)}</li>'
        for label, colour in colours.items()
    )
    return f'<ul class="legend">{items}</ul>'
