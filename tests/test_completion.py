"""What a shell offers, and help that fits a screen."""

import pytest

from fspool.cli import app
from fspool.data import tu
from fspool.experiments import EXPERIMENTS, find


@pytest.fixture
def complete(fspool, monkeypatch):
    """What bash is offered for the last word."""
    monkeypatch.setenv("_FSPOOL_COMPLETE", "complete_bash")

    def offered(*words):
        monkeypatch.setenv("COMP_WORDS", " ".join(("fspool", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        code, out, error = fspool()
        assert code == 0 and error == ""
        return out.split()

    return offered


def test_a_shell_completes_commands_options_and_names(complete):
    assert complete("do") == ["doctor"]
    assert complete("run", "--over") == ["--overwrite"]
    assert complete("run", "mnist") == [name for name in EXPERIMENTS if name.startswith("mnist")]
    assert complete("run", "dspn", "--preset", "p") == ["paper"]
    assert complete("data", "t") == ["tu"]


@pytest.mark.parametrize("before", [[], ["--preset", "paper"], ["--seeds", "2"]], ids=str)
def test_the_choices_of_an_experiment(complete, before):
    def offered(name, *words):
        return complete("run", *before, name, *words)

    assert offered("graphs", "--dataset", "PROT") == ["PROTEINS"]
    assert offered("graphs", "--dataset", "MUTAG", "--dataset", "NC") == ["NCI1"]
    assert {"sum", "sort", "softmax"} <= set(offered("graphs", "--readout", "s"))
    assert offered("dspn", "--task", "b") == ["boxes"]
    assert offered("dspn", "--preset", "p") == ["paper"]


def test_nothing_is_offered_where_there_is_nothing_to_choose(complete):
    for option in ("--dataset", "--readout", "--task"):
        assert complete("run", "polygons", option, "") == []
    for option in ("--dataset", "--readout", "--task", "--only"):
        assert complete("run", option, "") == []  # of which experiment?
        assert complete("run", "poligons", option, "") == []
    for option in ("--dataset", "--only"):
        assert complete("run", "graphs", "--preset", "papr", option, "") == []


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cells_of_every_experiment_and_preset(complete, name):
    for preset in find(name).seeds:
        cells = list(find(name).preset(preset))
        assert complete("run", name, "--preset", preset, "--only", "") == cells
        assert complete("run", "--preset", preset, "--only", cells[0], name, f"--only={cells[0]}")
    assert complete("run", name, "--only", "") == list(find(name).preset("quick"))


def test_cells_of_what_was_chosen_before(complete):
    cells = complete("run", "graphs", "--dataset", "NCI1", "--readout", "sort", "--only", "")
    assert cells and all("sort-NCI1-" in cell for cell in cells)
    cells = complete("run", "dspn", "--task", "states", "--only", "")
    assert cells == [n for n, cell in find("dspn").preset("quick").items() if cell.task == "states"]
    assert complete("run", "graphs", "--dataset", "MUTGA", "--only", "") == []


def test_parts_of_a_data_set(complete):
    assert complete("data", "tu", "PT") == ["PTC", "PTC_MR"]
    assert complete("data", "tu", "MUTAG", "") == list(tu.SOURCES)
    assert complete("data", "mnist", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how(fspool, monkeypatch, shell):
    monkeypatch.setenv("_FSPOOL_COMPLETE", f"source_{shell}")
    code, out, _ = fspool()
    assert code == 0 and f"_FSPOOL_COMPLETE=complete_{shell}" in out


COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_a_screen(fspool, monkeypatch, command):
    """A screen of 80 by 24; the options of run need one and a half."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = fspool(*command.split(), "--help")
    shown = out.splitlines()
    assert code == 0 and len(shown) <= (40 if command == "run" else 24), out
    assert max(map(len, shown)) <= 80
