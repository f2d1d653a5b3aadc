"""What an experiment adds to the tables of its page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parts:
    """HTML before and after the tables, and data for the script."""

    opening: str = ""
    figures: str = ""
    data: dict | None = None
