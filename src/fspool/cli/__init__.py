"""The command ``fspool``: parses, and calls `experiments`, `lab`, `report`, `data`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

try:
    import matplotlib  # noqa: F401
    import safetensors  # noqa: F401
    import scipy  # noqa: F401
    import typer
    from rich.console import Console
except ImportError as error:
    raise SystemExit(f"{error.name} is not installed; pip install '.[lab]' in a clone.") from None

from .. import __version__
from ..checks import UserError
from .data import fetch_data
from .doctor import look
from .running import list_experiments, make_report, run
from .screen import console, terminable

app = typer.Typer(
    help="The experiments of the FSPool paper, each as one command.",
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes are three times as long
    pretty_exceptions_enable=False,
)
app.command("list")(list_experiments)
app.command("run")(run)
app.command("report")(make_report)
app.command("data")(fetch_data)
app.command("doctor")(look)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure speed against plain PyTorch; takes the options of python -m benchmarks."""
    here = Path.cwd()  # another package may have benchmarks of its own
    if not all((here / path).exists() for path in ("benchmarks/__main__.py", "src/fspool")):
        raise UserError("the benchmarks are not part of the package; run this in a clone of it.")
    sys.path.insert(0, str(here))
    from benchmarks.__main__ import main as run_benchmarks

    run_benchmarks(context.args)


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Show it.")] = False) -> None:
    if version:
        console.print(__version__, highlight=False)
        raise typer.Exit


def _end(sentence: str) -> NoReturn:
    Console(stderr=True).print(sentence, markup=False, highlight=False, soft_wrap=True)
    raise SystemExit(1) from None


def main() -> None:
    """Errors that the user can put right are one sentence."""
    try:
        with terminable():
            app(prog_name="fspool")  # whatever started it
    except UserError as error:
        _end(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        _end(f"{error.filename} cannot be used ({error.strerror}); choose another path.")
    except KeyboardInterrupt:  # before a command began
        raise SystemExit(130) from None
