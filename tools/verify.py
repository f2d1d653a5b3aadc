"""Every figure that README.md, RESULTS.md and the docs quote, made again and compared.

    make verify

- Tables and pictures that a command wrote are made again from ``results/`` and
  ``benchmarks/results``.
- Sentences of :func:`quotes` are made again, and must stand where they belong.
- Any other number with a unit of measurement, typed into prose, is an error: put it into a cell of
  the page, which is run when the page is built, into :func:`quotes`, or, where it is no result of
  ours, into ``GIVEN``.
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs"), str(ROOT / "src")]

MEASURE = re.compile(
    r"\d[\d.,]*(?:\s*[x×](?![\w ]*\d)|\s*%|-fold|\s*(?:µs|us|ms|s|seconds?|min|minutes?|hours?|"
    r"days?|per cent|percent|times|hundredths|[KMGT]i?B)\b)"
)
GIVEN = {  # set, published or proved, and not measured here
    "docs/clevr.md": ["takes 18 GB with its pictures"],
    "docs/set_prediction.md": ["100,000 pictures, 18 GB"],
    "docs/responsibility.md": [
        "assignment loss is at least 50 hundredths",
        "which is 50 hundredths",
    ],
    "docs/polygons.md": [
        "FSPool is below 0.1 hundredths",  # a mark; a cell of the page checks that it is met
    ],
    "docs/speed.md": ["aimed at 12 times", "at 15 times", "at 3 times"],
}
TITLES = {
    "polygons": "polygons",
    "mnist-reconstruction": "MNIST auto-encoders",
    "mnist-classification": "MNIST classifiers",
    "graphs": "graphs",
    "clevr": "CLEVR",
    "dspn": "set prediction",
}
HINT = {
    "RESULTS.md": "make results",
    "README.md": "make results, and make bench ARGS=--readme, also with --device cuda",
    "docs/speed.md": 'make bench ARGS="--device cuda --readme"',
    "docs/_static/sweep.svg": 'make bench ARGS="--device cuda --plot"',
    "docs/_static/idea.svg": "python docs/pictures.py",
}


def pages(root: Path) -> list[str]:
    docs = (path.relative_to(root).as_posix() for path in sorted(root.glob("docs/*.md")))
    return ["README.md", "RESULTS.md", *docs]


def problems(root: Path = ROOT) -> list[str]:
    """What is not as it is made; each begins with its place."""
    found = [*differences(root)]
    known = [*quotes()]
    for name in pages(root):
        text = (root / name).read_text()
        said = [sentence for place, sentence in known if place == name]
        found += [f"{name}: does not say {s!r}." for s in said if s not in " ".join(text.split())]
        found += typed(name, text, said)
    return found


def differences(root: Path) -> Iterator[str]:
    """Lines of written files that are not those that a command writes."""
    for name, made in written(root).items():
        there = (root / name).read_bytes()
        if there == made:
            continue
        pairs = zip_longest(there.splitlines(), made.splitlines(), fillvalue=b"")
        line, pair = next((i, pair) for i, pair in enumerate(pairs) if len(set(pair)) > 1)
        texts = [text[:200].decode() for text in pair]
        yield f"{name}:{line + 1}: is {texts[0]!r}; the results give {texts[1]!r}: {HINT[name]}."


def written(root: Path) -> dict[str, bytes]:
    """The files as the commands write them, made in another folder from those of ``root``."""
    from matplotlib import rc_context

    from benchmarks import __main__ as benchmarks
    from benchmarks import plot, results
    from fspool import report

    pictures = importlib.import_module("pictures")
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        copies = {name: Path(folder) / Path(name).name for name in HINT}
        for name in ("README.md", "docs/speed.md"):
            copies[name].write_bytes((root / name).read_bytes())
        report.write_markdown(report.collect(root / "results"), copies["RESULTS.md"])
        pictures.readme(copies["README.md"])
        for device, names in benchmarks.PAGES.items():
            kept = root / "benchmarks" / "results" / f"{device}.csv"
            benchmarks.write_tables([copies[name] for name in names], device, kept)
        with rc_context():  # their look is theirs alone
            gpu = root / "benchmarks" / "results" / "cuda.csv"
            plot.draw(results.read(gpu), copies["docs/_static/sweep.svg"])
            pictures.idea(copies["docs/_static/idea.svg"])
        for name, copy in copies.items():
            made[name] = copy.read_bytes()
    return made


def quotes() -> Iterator[tuple[str, str]]:
    """Sentences with figures, made again: where each one stands, and how it reads."""
    from fspool.data import mnist
    from fspool.experiments.experiment import published

    there = [title for name, title in TITLES.items() if (ROOT / "results" / name).is_dir()]
    yield "README.md", f"results so far of {', '.join(there)}"
    printed = published("polygons.chamfer")["FSPool & FSUnpool"].values()
    largest = max(printed, key=lambda number: number.value).text
    yield (
        "docs/polygons.md",
        f"a little above {largest} hundredths there, the largest that the paper",
    )
    size = sum(source.gz.size for sources in mnist.SOURCES.values() for source in sources)
    yield "docs/mnist.md", f"# {size / 1e6:.0f} MB, verified"


def typed(name: str, text: str, said: list[str]) -> Iterator[str]:
    """Measurements in prose that nothing makes again."""
    prose = without_made(name, text)
    for phrase in (*said, *GIVEN.get(name, [])):
        prose = re.sub(r"\s+".join(map(re.escape, phrase.split())), _blank, prose)
    for match in MEASURE.finditer(prose):
        line = prose.count("\n", 0, match.start()) + 1
        yield (
            f"{name}:{line}: {match.group()!r} is typed in; let a cell make it, or tools/verify.py."
        )


def without_made(name: str, text: str) -> str:
    """The prose alone: without code, formulas, addresses, and what a command wrote."""
    if name == "RESULTS.md":
        return ""
    for pattern in (
        r"<!-- (bench|results)\S* -->.*?<!-- /\1\S* -->",
        r"^```+(?!sh).*?^```+\s*$",  # comments in commands are prose
        r"^\$\$.*?^\$\$\s*$",
        r"`[^`\n]*`",
        r"\$[^$\n]*\$",
        r"\]\([^)\n]*\)",
    ):
        text = re.sub(pattern, _blank, text, flags=re.DOTALL | re.MULTILINE)
    return text


def _blank(match: re.Match) -> str:
    """Nothing, on as many lines."""
    return "\n" * match.group().count("\n")


if __name__ == "__main__":
    found = problems()
    for problem in found:
        print(problem)
    if found:
        raise SystemExit(f"Figures that are not what the results give: {len(found)}.")
    print(f"{len(pages(ROOT))} pages: every figure is what the results give.")
