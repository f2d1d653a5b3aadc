"""Time against N, from the rows of the sweep."""

from __future__ import annotations

import runpy
from pathlib import Path

from .results import Row

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "_static" / "sweep.svg"
LABELS = {
    "plain": "plain eager",
    "compiled": "torch.compile",
    "fspool": "fspool",
    "sum": "sum pooling",
    "floor": "reading x once",
}
APART = 1.35  # the least ratio of two labels' heights


def curves(rows: list[Row]) -> dict[str, tuple[list[int], list[float]]]:
    """N and milliseconds of every variant of the sweep."""
    found = {}
    for name in LABELS:
        points = sorted(
            (int(row["N"]), float(row["seconds"]) * 1e3)
            for row in rows
            if row["benchmark"] == "sweep" and row["variant"] == name and row["seconds"]
        )
        if points:
            found[name] = tuple(map(list, zip(*points, strict=True)))
    return found


def spread(heights: dict[str, float]) -> dict[str, float]:
    """Heights of labels, moved up from below until none touches the next."""
    placed, least = {}, 0.0
    for name in sorted(heights, key=heights.get):
        placed[name] = max(heights[name], least)
        least = placed[name] * APART
    return placed


def draw(rows: list[Row], path: Path = PICTURE) -> None:
    """A line for each variant, its name at its end; the same bytes from the same rows."""
    import matplotlib.pyplot as plt

    lines = curves(rows)
    if not lines:
        raise SystemExit("there are no rows of the sweep; run python -m benchmarks sweep first.")
    look = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    with plt.rc_context():  # the style is for this picture alone
        look["style"]()
        colours = dict(zip(LABELS, look["STRONG"], strict=True))
        fig, ax = plt.subplots(figsize=(7, 4))
        places = spread({name: ms[-1] for name, (_, ms) in lines.items()})
        for name, (n, ms) in lines.items():
            strong = name == "fspool"
            ax.plot(
                n, ms, "o-", color=colours[name], lw=2.4 if strong else 1.4, ms=4 if strong else 3
            )
            ax.annotate(
                LABELS[name],
                (n[-1], places[name]),
                xytext=(8, 0),
                textcoords="offset points",
                color=colours[name],
                va="center",
                fontweight="bold" if strong else "normal",
            )
        _axes(ax, rows, next(iter(lines.values()))[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.savefig(path, metadata={"Date": None})
        plt.close(fig)


def _axes(ax, rows: list[Row], lengths: list[int]) -> None:
    from matplotlib.ticker import LogLocator

    row = next(row for row in rows if row["benchmark"] == "sweep")
    elements = int(row["B"]) * int(row["N"])
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, [str(n) for n in lengths])
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.minorticks_off()
    ax.grid(axis="y", color="#e4e8ec")
    ax.set_xlabel("elements in a set, N")
    ax.set_ylabel("milliseconds, forward + backward")
    ax.set_title(
        f"Hard pool: {elements:,} elements of {row['D']} features, in sets of N\n"
        f"{row['machine']}, float32, replayed CUDA graphs",
        loc="left",
        fontsize=10,
    )
