"""The pictures and tables of the README and the docs, made with the package itself.

``python docs/pictures.py`` writes ``docs/_static/idea.svg``, the same bytes every time, and
``python docs/pictures.py readme`` fills the table of results in ``README.md``.
Every page of the docs starts with :func:`page`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import matplotlib
import matplotlib.pyplot as plt
import torch
from matplotlib import font_manager
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import fspool

if TYPE_CHECKING:
    from fspool.report.grids import Grid
    from fspool.report.records import Collection, Record

INK, PALE, LINE = "#22303c", "#8695a1", "#3465a4"
TINTS = ["#f6c1b8", "#fbe3a6", "#bfe3c5", "#b9d7f2", "#d9c6ec"]  # one for each element
STRONG = ["#c8553d", "#b8860b", "#3a8a52", "#2f78b7", "#7b52ab"]  # the same, to draw lines with


def page() -> None:
    """Set a notebook up: figures of one look, the printed lines of a cell in one piece."""
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg")
    style()
    sys.stdout.flush_interval = 60
    torch.set_num_threads(1)  # everything here is small


def style() -> None:
    """One look for all figures, in the letters that come with matplotlib.

    A system may have others of the same name, and other bytes would come out.
    """
    font_manager.fontManager.ttflist = []
    for path in sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("*.ttf")):
        font_manager.fontManager.addfont(path)
    matplotlib.rcParams.update(
        {
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "axes.edgecolor": PALE,
            "axes.labelcolor": INK,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlecolor": INK,
            "axes.titlesize": 11,
            "axes.prop_cycle": matplotlib.cycler(color=STRONG),
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "legend.frameon": False,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "svg.fonttype": "path",
            "svg.hashsalt": "fspool",
        }
    )


def show_matrix(ax, matrix: torch.Tensor, title: str, numbers: bool = False, **options):
    """A matrix as a map of colours, with its numbers where there are few."""
    options = {"cmap": "Blues", "vmin": 0, "vmax": 1} | options
    image = ax.imshow(matrix, **options)
    ax.set(title=title, xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    if numbers:
        for (i, j), value in _entries(matrix):
            colour = "white" if value > 0.6 else INK
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
    return image


def _entries(matrix: torch.Tensor):
    for i, row in enumerate(matrix.tolist()):
        for j, value in enumerate(row):
            yield (i, j), value


# --------------------------------------------------------------------------------------------------
# Tables of results

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
GUESS = 0.2  # the largest class of digits is less

TABLES_STYLE = """
figure.table { margin: 1.5rem 0; }
figure.table figcaption { text-align: left; color: inherit; }
figure.table figcaption h3 { margin: 0; padding: 0; font-size: 1.05rem; }
figure.table figcaption p { margin: 0.15rem 0 0.5rem; font-size: 0.85rem;
  color: var(--color-foreground-secondary); }
figure.table .scroll { overflow-x: auto; }
figure.table table { border-collapse: collapse; font-size: 0.78rem; line-height: 1.35;
  font-variant-numeric: tabular-nums; }
figure.table th, figure.table td { padding: 0.35rem 0.4rem; text-align: right; vertical-align: top;
  border-bottom: 1px solid var(--color-background-border); white-space: nowrap; }
figure.table th:first-child { text-align: left; white-space: normal; min-width: 7.5rem; }
figure.table tr.known th, figure.table tr.known td { color: var(--color-foreground-secondary);
  font-weight: normal; }
figure.table td span { display: block; }
figure.table:is([style*=":2"], [style*=":3"]) td span { display: inline; margin-left: 0.3em; }
figure.table .spread, figure.table .paper, figure.table .reached, figure.table .against {
  color: var(--color-foreground-secondary); }
figure.table .against, figure.table .paper { white-space: normal; margin-left: auto; }
figure.table .against { max-width: 8.5em; }
figure.table .paper { max-width: 5.6em; }
figure.table .verdict.level, figure.table .verdict.ahead { color: #2e8b57; }
figure.table .verdict.behind, figure.table .verdict.above, figure.table .verdict.below {
  color: #c8553d; }
"""


def show_tables(*grids) -> None:
    """Filled tables in a notebook."""
    from IPython.display import HTML, display

    from fspool.report.renderings import html_table

    tables = "".join(html_table(grid) for grid in grids)
    display(HTML(f"<style>{TABLES_STYLE}</style>{tables}"))


def show_rows(head: tuple[str, ...], *rows: tuple[str, ...], texts: int = 1) -> None:
    """A small table in a notebook; its first columns are texts, the others numbers."""
    from IPython.display import Markdown, display

    display(Markdown(_markdown(head, *rows, texts=texts)))


def _markdown(head: tuple[str, ...], *rows: tuple[str, ...], texts: int = 1) -> str:
    lines = [head, (*("---",) * texts, *("---:",) * (len(head) - texts)), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _grids(experiment: str) -> tuple[Collection, dict[str, Grid]]:
    """Its results, and its filled tables by title."""
    from fspool import report
    from fspool.experiments import find
    from fspool.report.tables import fill_all

    results = report.collect(RESULTS / experiment / "paper.json")
    return results, {grid.title: grid for grid in fill_all(find(experiment), results)}


def _beside_the_paper(head: str, columns: dict[str, tuple[Grid, int]]) -> tuple[str, int]:
    """What was measured, with the paper's numbers in brackets; the number of runs of a mean."""
    lines, runs = [], 0
    for row in zip(*(grid.rows for grid, _ in columns.values()), strict=True):
        if row[0].measured:
            chosen = zip(row, columns.values(), strict=True)
            places = [part.places[i] for part, (_, i) in chosen]
            paper = [place.published.split(" ±")[0] for place in places]
            texts = (f"{p.value} ({text})" for p, text in zip(places, paper, strict=True))
            lines.append((row[0].label, *texts))
            runs = max(runs, *(place.runs for place in places))
    return _markdown((head, *columns), *lines), runs


def polygons_block() -> str:
    """A short table of the README: assignment loss of each model."""
    title = "Linear assignment loss"
    grid = _grids("polygons")[1][title]
    measured = [row for row in grid.rows if row.measured]
    columns = {
        column: (grid, i)
        for i, column in enumerate(grid.columns)
        if all(row.places[i].published for row in measured)
    }
    table, runs = _beside_the_paper("points", columns)
    return (
        f"{table}\n\n{title} in hundredths, less is better: the mean of {runs} runs, and in "
        "brackets the number in the paper. All tables, with standard deviations: "
        "[RESULTS.md](RESULTS.md)."
    )


def digits_block() -> str:
    """Another one: how many digits each pool tells apart."""
    results, grids = _grids("mnist-classification")
    columns = {}
    for noise in ("0.00", "0.05"):
        grid = grids[f"Accuracy after 1 and 10 epochs, noise {noise}, batches of 8"]
        for epochs in ("1 epoch", "10 epochs"):
            column = grid.columns.index(f"{epochs.split()[0]} random")
            columns[f"noise {noise}, {epochs}"] = grid, column
    table, runs = _beside_the_paper("pool", columns)
    stuck = "; ".join(_stuck(results.of("mnist-classification")))
    return (
        f"{table}\n\nPer cent of the test digits, trained from scratch: the mean of {runs} runs, "
        "and in brackets the number in the paper. Some runs never learn ([why](docs/mnist.md)), "
        f"and are in the means; after 10 epochs: {stuck}."
    )


def _stuck(cells: dict[str, Record]) -> Iterator[str]:
    from fspool.experiments.mnist import POOL_NAMES

    for noise in ("0.00", "0.05"):
        for pool, label in POOL_NAMES.items():
            found = cells[f"{pool}-random-s{noise}"].metrics["accuracy after 10"]
            good = [accuracy for accuracy in found if accuracy >= GUESS]
            if count := len(found) - len(good):
                others = f"{100 * fmean(good):.1f}"
                yield f"{count} of {label} with noise {noise} (the others have {others})"


BLOCKS = {"polygons": polygons_block, "digits": digits_block}


def filled(text: str, block: str, content: str) -> str:
    """The text with this content between ``<!-- block -->`` and ``<!-- /block -->``."""
    start, stop = f"<!-- {block} -->", f"<!-- /{block} -->"
    if text.count(start) != 1 or text.count(stop) != 1:
        raise SystemExit(f"there is no block {start} ... {stop}; expected exactly one.")
    pattern = re.compile(f"{re.escape(start)}.*{re.escape(stop)}", re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n{content}\n{stop}", text)


def readme(path: Path = ROOT / "README.md") -> None:
    text = path.read_text()
    for name, block in BLOCKS.items():
        text = filled(text, f"results:{name}", block())
    path.write_text(text)


# --------------------------------------------------------------------------------------------------
# The idea: pool above, unpool below


CELL_W, CELL_H = 1.0, 0.62
GRID, SORTED, CURVES, VECTOR = 1.0, 6.0, 11.0, 17.0  # left edges of the four columns
TOP, BOTTOM = 7.6, 1.6  # upper edges of the grids of the two rows


def idea(path: Path) -> None:
    """A set of five elements through FSPool, and back through FSUnpool."""
    style()
    x = torch.tensor([[0.2, 2.1, 0.9], [1.9, -0.4, 0.1], [-0.9, 0.7, -1.6], [0.7, -1.2, 1.3],
                      [-1.1, 0.3, 0.8]])  # fmt: skip
    pool, unpool = fspool.FSPool(dim=3, knots=4), fspool.FSUnpool(dim=3, knots=3)
    pool.weight.data = torch.tensor([[1.0, 0.2, -0.2, -0.6], [0.2, 0.9, 0.9, 0.1],
                                     [-0.5, 0.1, 0.6, 1.0]])  # fmt: skip
    y, order = pool(x[None], return_order=True)
    unpool.weight.data = _fitted(y, order, x[None], knots=3)
    back = unpool(y, order)

    fig, ax = plt.subplots(figsize=(10.6, 5.6), constrained_layout=False)
    fig.subplots_adjust(0, 0, 1, 1)
    ax.set(xlim=(0, 20.4), ylim=(-1.75, 9.05))
    ax.axis("off")
    names = order.indices[0]  # which element sits at each rank of each feature
    own = torch.arange(5)[:, None].expand(5, 3)

    with torch.no_grad():
        _label(ax, GRID + 1.5, TOP, "a set", "one row, one colour an element")
        _grid(ax, GRID, TOP, x, own)
        _label(ax, SORTED + 1.5, TOP, "sorted", "each feature on its own")
        _grid(ax, SORTED, TOP, order.sort(x[None])[0], names)
        _label(ax, CURVES + 2.15, TOP, "weighed", "learnt function of relative rank")
        _curves(ax, CURVES, TOP, pool, order, names)
        _label(ax, VECTOR + 1.5, TOP, "summed", "one vector")
        _vector(ax, VECTOR, TOP, y[0])

        _label(ax, GRID + 1.5, BOTTOM, "a set again", "elements where they were")
        _grid(ax, GRID, BOTTOM, back[0], own)
        _label(ax, SORTED + 1.5, BOTTOM, "by rank", "vector times function")
        _grid(ax, SORTED, BOTTOM, order.sort(back)[0], names)
        _label(ax, CURVES + 2.15, BOTTOM, "spread", "a function of its own")
        _curves(ax, CURVES, BOTTOM, unpool, order, names)
        _label(ax, VECTOR + 1.5, BOTTOM, "a vector", "for each set")
        _vector(ax, VECTOR, BOTTOM, y[0])

    for edge, forth, back_text in (
        (SORTED, "sort", "unsort"),
        (CURVES - 0.15, "×", "="),
        (VECTOR, "Σ", "×"),
    ):
        _arrow(ax, edge - 1.75, edge - 0.45, TOP - 2.5 * CELL_H, forth)
        _arrow(ax, edge - 0.45, edge - 1.75, BOTTOM - 2.5 * CELL_H, back_text)
    _arrow(ax, VECTOR + 1.5, VECTOR + 1.5, TOP - 3.4 * CELL_H, "", BOTTOM + 1.4)
    ax.text(0.25, TOP - 2.5 * CELL_H, "FSPool", rotation=90, ha="center", va="center",
            fontsize=15, fontweight="bold", color=LINE)  # fmt: skip
    ax.text(0.25, BOTTOM - 2.5 * CELL_H, "FSUnpool", rotation=90, ha="center", va="center",
            fontsize=15, fontweight="bold", color=LINE)  # fmt: skip
    _remember(ax)
    path.parent.mkdir(exist_ok=True)
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)


def _fitted(y: torch.Tensor, order: fspool.Order, x: torch.Tensor, knots: int) -> torch.Tensor:
    """Knots with which y unpools as closely to x as they can, by least squares."""
    basis = []
    for knot in torch.eye(knots):
        weight = knot.expand(order.dim, knots)
        basis.append(order.sort(fspool.functional.fsunpool(y, weight, order))[0])
    columns = torch.stack(basis).permute(2, 1, 0)  # features, ranks, knots
    sorted_x = order.sort(x)[0].T.unsqueeze(-1)
    fitted = torch.linalg.lstsq(columns, sorted_x).solution.squeeze(-1)
    return fitted.detach().round(decimals=3)  # the same bytes on every machine


def _label(ax, x: float, y: float, title: str, line: str) -> None:
    ax.text(x, y + 0.85, title, ha="center", fontsize=12.5, fontweight="bold")
    ax.text(x, y + 0.33, line, ha="center", fontsize=9, color="#566573")


def _box(ax, x: float, y: float, colour: str, text: str) -> None:
    shape = FancyBboxPatch(
        (x + 0.06, y - CELL_H + 0.05),
        CELL_W - 0.12,
        CELL_H - 0.1,
        boxstyle="round,pad=0,rounding_size=0.09",
        facecolor=colour,
        edgecolor="none",
    )
    ax.add_patch(shape)
    ax.text(x + CELL_W / 2, y - CELL_H / 2 - 0.02, text, ha="center", va="center", fontsize=10)


def _number(value: float) -> str:
    return f"{value + 0.0:.1f}".replace("-0.0", "0.0").replace("-", "−")


def _grid(ax, x: float, y: float, values: torch.Tensor, names: torch.Tensor) -> None:
    for (i, j), value in _entries(values):
        _box(ax, x + j * CELL_W, y - i * CELL_H, TINTS[names[i, j]], _number(value))


def _vector(ax, x: float, y: float, values: torch.Tensor) -> None:
    for i, value in enumerate(values.tolist()):
        _box(ax, x + i * CELL_W, y - 2 * CELL_H, "#e4e8ec", _number(value))


def _curves(ax, x: float, y: float, module, order, names: torch.Tensor) -> None:
    """The weight function of every feature, rank downwards, a dot where an element takes it."""
    at_ranks = fspool.functional.fsunpool(torch.ones(1, 3), module.weight, order)
    at_ranks = order.sort(at_ranks)[0]
    top, bottom = y - CELL_H / 2, y - 4.5 * CELL_H
    for end, height in (("0", top), ("1", bottom)):
        ax.text(x - 0.12, height, end, ha="center", va="center", fontsize=9, color="#566573")
    for feature in range(3):
        scale = 0.5 / float(module.weight[feature].abs().max())
        middle = x + 0.75 + feature * 1.4
        ax.plot([middle] * 2, [top + 0.15, bottom - 0.15], color="#cfd6dc", lw=1, zorder=1)
        knots = module.weight[feature]
        places = torch.linspace(top, bottom, len(knots))
        ax.plot(middle + scale * knots, places, color=LINE, lw=1.6, zorder=2)
        ax.plot(middle + scale * knots, places, "s", color="white", ms=4, zorder=2,
                markeredgecolor=LINE, markeredgewidth=1)  # fmt: skip
        for rank in range(5):
            height = y - (rank + 0.5) * CELL_H
            width = float(scale * at_ranks[rank, feature])
            colour = STRONG[names[rank, feature]]
            ax.plot([middle, middle + width], [height] * 2, color=colour, lw=1, zorder=1)
            ax.plot(middle + width, height, "o", color=colour, ms=6, zorder=3,
                    markeredgecolor="white", markeredgewidth=0.8)  # fmt: skip


def _arrow(ax, x0: float, x1: float, y: float, text: str, y1: float | None = None) -> None:
    ax.add_patch(
        FancyArrowPatch(
            (x0, y), (x1, y if y1 is None else y1), arrowstyle="-|>", mutation_scale=13,
            color=INK, lw=1.4,
        )
    )  # fmt: skip
    ax.text((x0 + x1) / 2, y + 0.22, text, ha="center", va="bottom", fontsize=10.5)


def _remember(ax) -> None:
    """The order goes down from the sort to the unsort."""
    x = SORTED - 1.1
    ax.add_patch(
        FancyArrowPatch(
            (x, TOP - 2.85 * CELL_H), (x, BOTTOM - 1.3 * CELL_H), arrowstyle="-|>",
            mutation_scale=13, color=LINE, lw=1.4, linestyle=(0, (4, 3)), shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip
    ax.text(x + 0.2, 3.95, "order", color=LINE, fontsize=10.5, va="center")


if __name__ == "__main__":
    if sys.argv[1:] == ["readme"]:
        readme()
    elif not sys.argv[1:]:
        idea(Path(__file__).parent / "_static" / "idea.svg")
    else:
        raise SystemExit(f"arguments are {sys.argv[1:]}; expected none, or readme.")
