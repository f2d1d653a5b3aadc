"""The command ``fspool``, as a user types it."""

import importlib
import io
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from rich.console import Console

from fspool import __version__, cli
from fspool.cli.screen import terminable
from fspool.experiments import find
from fspool.experiments.polygons import Polygons
from fspool.lab import display as display_module
from fspool.lab.display import Bars, Lines, display
from fspool.lab.launch import Event, Job
from fspool.storage import read_json

pytestmark = pytest.mark.usefixtures("one_thread")

ONLY = ("--only", "fspool-n2", "--only", "random-n2")
SMALL = ("--set", "steps=64", "--set", "evaluation_sets=16", "--set", "batch=4", "--seeds", "2")
TABLES = ("Direct mean squared error", "Chamfer loss", "Linear assignment loss")


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("FSPOOL_COMMIT", "0123456789ab")


@pytest.fixture
def run(fspool, tmp_path):
    """Run two small cells into one folder."""

    def command(*arguments, only=ONLY, small=SMALL, out=tmp_path / "out"):
        given = ("--workers", 1, "--no-page") if "--workers" not in arguments else ("--no-page",)
        return fspool("run", "polygons", "--out", out, *only, *small, *given, *arguments)

    return command


def files(out, name="*"):
    """Content and time of the files of all runs."""
    return {
        str(path.relative_to(out)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(out.glob(f"*/*/{name}"))
        if path.name != "lock"
    }


def results(out):
    return {name: content for name, (content, _) in files(out, "result.json").items()}


# --------------------------------------------------------------------------------------------------
# What can be asked for


def test_list(fspool):
    code, out, _ = fspool("list")
    rows, experiment = [line.split() for line in out.splitlines()], find("polygons")
    assert code == 0 and list(experiment.seeds) == ["quick", "paper", "released"]
    for preset, seeds in experiment.seeds.items():
        start = ["polygons", preset, str(len(experiment.preset(preset))), str(seeds)]
        assert any(row[:4] == start for row in rows)


def test_list_of_one_experiment(fspool):
    code, out, _ = fspool("list", "polygons")
    experiment, words = find("polygons"), out.replace(",", " ").split()
    assert code == 0
    assert {name for preset in experiment.seeds for name in experiment.preset(preset)} <= {*words}
    assert {*experiment.settable} <= {*words}
    rows = [line.split() for line in out.splitlines()]
    assert ["knots", "20", "20", "21"] in rows  # in quick, paper, released
    code, _, error = fspool("list", "polygon")
    assert code == 1 and error.startswith("experiment is 'polygon'; expected one of polygons, ")


def test_version_and_help(fspool):
    assert fspool("--version")[:2] == (0, __version__ + "\n")
    code, out, _ = fspool("run", "--help")
    assert code == 0 and all(option in out for option in ("--preset", "--overwrite", "--device"))


def test_as_a_module_of_one_python():
    command = [sys.executable, "-m", "fspool", "--version"]
    assert subprocess.check_output(command, text=True) == __version__ + "\n"


def test_polygons_need_no_data(fspool):
    code, out, _ = fspool("data", "polygons")
    assert code == 0 and "nothing to fetch" in out


def test_without_its_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.delitem(sys.modules, "fspool.cli")
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("fspool.cli")
    assert ended.value.code == "typer is not installed; pip install '.[lab]' in a clone."


# --------------------------------------------------------------------------------------------------
# Runs


def test_a_run_prints_its_tables_and_a_second_one_skips_what_is_finished(run, tmp_path):
    out = tmp_path / "out"
    code, text, error = run()
    assert code == 0 and not error
    for words in (*TABLES, "FSPool & FSUnpool", "Random", "paper", "fspool-n2 (seeds 0-1) done"):
        assert words in text
    assert sorted(results(out)) == [
        f"{name}-n2/seeds-0-1/result.json" for name in ("fspool", "random")
    ]
    plan = read_json(out / "plan.json")
    assert (plan["preset"], plan["seeds"], plan["cells"]) == (
        "quick",
        2,
        ["fspool-n2", "random-n2"],
    )

    before = files(out)
    code, text, _ = run()
    assert code == 0 and all(title in text for title in TABLES) and "finished" in text
    assert files(out) == before


def test_more_seeds_add_only_the_missing_ones(run, tmp_path):
    run()
    before = files(tmp_path / "out")
    code, text, _ = run("--seeds", 3)
    after = files(tmp_path / "out")
    assert code == 0 and "fspool-n2 (seed 2) done" in text
    assert read_json(tmp_path / "out" / "plan.json")["seeds"] == 3
    assert {name: value for name, value in after.items() if name in before} == before
    assert {name.split("/")[1] for name in after.keys() - before.keys()} == {"seeds-2-2"}


def test_other_settings_are_refused_unless_they_may_overwrite(run, tmp_path):
    run()
    before = files(tmp_path / "out")
    code, text, error = run("--set", "steps=128")
    assert code == 1 and "Traceback" not in text + error
    assert error.count("\n") == 1 and "holds another configuration" in error
    assert "cell.steps is 64 there and 128 here" in error and "--overwrite" in error
    assert files(tmp_path / "out") == before
    plan = (tmp_path / "out" / "plan.json").read_bytes()
    code, _, error = run("--set", "steps=128", "--seeds", "4")  # nor are seeds added beside them
    assert code == 1 and "holds another configuration" in error
    assert files(tmp_path / "out") == before
    assert (tmp_path / "out" / "plan.json").read_bytes() == plan

    code, text, _ = run("--set", "steps=128", "--overwrite")
    assert code == 0
    config = read_json(tmp_path / "out" / "fspool-n2" / "seeds-0-1" / "config.json")
    assert config["cell"]["steps"] == 128
    after = files(tmp_path / "out")
    assert all(after[name] == before[name] for name in before if name.startswith("random"))


def test_two_workers_find_what_one_finds(run, tmp_path):
    only = ("--only", "fspool-n2", "--only", "mlp-assignment-n2")
    code, one, _ = run(only=only, out=tmp_path / "one")
    assert code == 0
    code, two, error = run("--workers", 2, only=only, out=tmp_path / "two")
    assert code == 0 and not error
    assert len(results(tmp_path / "one")) == 2
    assert results(tmp_path / "one") == results(tmp_path / "two")
    assert one[one.index(TABLES[0]) :] == two[two.index(TABLES[0]) :]


def test_a_page_is_written_unless_it_is_not_wanted(fspool, run, tmp_path):
    out = tmp_path / "out"
    for again in (lambda: run("--page"), lambda: fspool("report", out)):
        run()
        assert not (out / "report.html").exists()
        code, text, _ = again()
        assert code == 0 and f"Open {out / 'report.html'} in a browser." in text
        assert "<html" in (out / "report.html").read_text() and TABLES[0] in text
        (out / "report.html").unlink()


def test_a_report_in_other_forms(fspool, run, tmp_path):
    run()
    small, text = tmp_path / "small.json", tmp_path / "tables.md"
    assert fspool("report", tmp_path / "out", "--compact", small, "--markdown", text)[0] == 0
    assert TABLES[0] in text.read_text()
    code, shown, _ = fspool("report", small, "--page", tmp_path / "page.html")
    assert code == 0 and TABLES[0] in shown and (tmp_path / "page.html").exists()
    both = ("--compact", tmp_path / "again.json", "--page", tmp_path / "again.html")
    code, shown, _ = fspool("report", small, *both)
    assert code == 0 and TABLES[0] in shown and (tmp_path / "again.html").exists()
    assert (tmp_path / "again.json").read_bytes() == small.read_bytes()
    run(only=("--only", "mlp-chamfer-n2", "--out", tmp_path / "other"))
    together = ("report", small, tmp_path / "other", "--compact", tmp_path / "together.json")
    assert fspool(*together)[0] == 0
    cells = [cell["name"] for cell in read_json(tmp_path / "together.json")["cells"]]
    assert cells == ["fspool-n2", "random-n2", "mlp-chamfer-n2"]


def test_a_report_names_the_commands_that_made_it(fspool, run, tmp_path):
    def commands():
        assert fspool("report", tmp_path / "out", "--markdown", tmp_path / "tables.md")[0] == 0
        made = (tmp_path / "tables.md").read_text().split("Made by ")[1].split(".\n")[0]
        return made.replace("fspool run polygons --preset quick ", "").split(" and ")

    changed = "--set steps=64 --set evaluation_sets=16 --set batch=4`"
    run(only=("--only", "random-n[2]"))
    assert commands() == [f"`--seeds 2 --only 'random-n[2]' {changed}"]
    run()
    both = f"--only fspool-n2 --only random-n2 {changed}"
    assert commands() == [f"`--seeds 2 --only 'random-n[2]' {changed}", f"`--seeds 2 {both}"]
    run("--seeds", 3)
    assert commands()[1] == f"`--seeds 3 {both}"
    run("--set", "batch=5", "--overwrite")
    assert commands() == [f"`--seeds 2 {both[:-1]} --set batch=5`"]


def test_damage_that_only_a_figure_finds_is_told_too(fspool, run, tmp_path):
    run()
    path = tmp_path / "out" / "fspool-n2" / "seeds-0-1" / "arrays.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    code, text, _ = fspool("report", tmp_path / "out")
    assert code == 0 and text.count(f"{path} ") == 1 and "the figures go without it, so" in text
    small = ("--compact", tmp_path / "small.json")
    for more in ((), ("--markdown", tmp_path / "tables.md"), ("--page", tmp_path / "page.html")):
        code, text, _ = fspool("report", tmp_path / "out", *small, *more)
        assert code == 0 and text.count(f"{path} ") == 1 and "the figures go without it, so" in text
    (damage,) = read_json(small[1])["damaged"]
    assert damage.startswith(f"{path} ") and damage.endswith(
        f"; the figures go without it, so remove {path.parent} and run the same command to make it "
        "again."
    )


def test_settings_reach_the_cells(run, tmp_path):
    code, _, _ = run("--set", "learning_rate=0.25", "--set", "dtype=float64", "--set", "steps=0")
    assert code == 0
    config = read_json(tmp_path / "out" / "fspool-n2" / "seeds-0-1" / "config.json")
    expected = {"learning_rate": 0.25, "dtype": "float64", "steps": 0, "batch": 4, "points": 2}
    assert expected.items() <= config["cell"].items()


def test_one_group_that_fails_does_not_take_the_others_with_it(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "random-n2").write_text("in the way")
    code, text, error = run()
    assert code == 1 and error == "1 of 2 groups of runs failed; see above.\n"
    assert "random-n2 (seeds 0-1) failed: cannot write" in text and "Traceback" not in text
    assert TABLES[0] in text and len(results(tmp_path / "out")) == 1


def test_tensorboard_that_is_not_there(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, text, error = run("--tensorboard", only=ONLY[:2])
    assert code == 1 and "TensorBoard is not installed; pip install tensorboard" in text
    assert "Traceback" not in text + error


# --------------------------------------------------------------------------------------------------
# Bad input


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["run", "poligons"], "experiment is 'poligons'; expected one of polygons, .*perhaps"),
        (["run", "polygons", "--preset", "papr"], "preset is 'papr'; .* perhaps 'paper'"),
        (["run", "polygons", "--only", "fspol-n4"], "only is 'fspol-n4'; .* perhaps 'fspool-n4'"),
        (["run", "polygons", "--only", "x*"], r"only is 'x\*'; expected one of fspool-n2, "),
        (["run", "polygons", "--set", "stps=3"], "set is 'stps'; .* perhaps 'steps'"),
        (["run", "polygons", "--set", "points=3"], "set is 'points'; expected one of steps, "),
        (["run", "polygons", "--set", "steps"], "set is 'steps'; expected NAME=VALUE"),
        (["run", "polygons", "--set", "steps=many"], "steps is 'many'; expected int"),
        (["run", "polygons", "--set", "steps=-1"], "steps is -1; expected .* at least 0"),
        (["run", "polygons", "--set", "batch=0"], "batch is 0; expected .* at least 1"),
        (["run", "polygons", "--set", "knots=1"], "knots is 1; expected .* at least 2"),
        (["run", "polygons", "--set", "learning_rate=nan"], "learning_rate is nan; expected"),
        (["run", "polygons", "--set", "dtype=float23"], "dtype is 'float23'; .*'float32'"),
        (["run", "polygons", "--device", "cuda"], "torch sees no CUDA device; pass --device cpu"),
        (["run", "polygons", "--device", "gpu"], "device is 'gpu'; .* perhaps 'cpu'"),
        (
            ["data", "polygon"],
            "data set is 'polygon'; expected one of polygons, mnist, tu, clevr, perhaps",
        ),
        (["data", "minst"], "data set is 'minst'; expected one of .* perhaps 'mnist'"),
        (["data", "mnist", "MUTAG"], "mnist has no parts, but 'MUTAG' was asked for; leave it out"),
        (["data", "polygons", "4"], "polygons has no parts, but '4' was asked for"),
        (["data", "tu", "NCI1", "MUTGA"], "graph set is 'MUTGA'; .* perhaps 'MUTAG'"),
        (["data", "tu", "IMDB-B"], "graph set is 'IMDB-B'; .* perhaps 'IMDB-BINARY'"),
        (["data", "tu", "RDT-M5K"], "graph set is 'RDT-M5K'; .* perhaps 'REDDIT-MULTI-5K'"),
        (["report", "nowhere"], "'nowhere' is not there; expected a folder of runs"),
        (["report", "."], r"'\.' has no finished runs"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_errors_are_one_sentence(fspool, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    code, out, error = fspool(*arguments)
    assert code == 1 and out == "" and error.count("\n") == 1 and error.endswith(".\n")
    assert re.search(sentence, error), error
    assert not list(tmp_path.iterdir())  # nothing was begun


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["rn"], ["No such command 'rn'", "'run'"]),
        (["run", "polygons", "--sed", "3"], ["No such option: --sed", "--seeds"]),
        (["run", "polygons", "--seeds", "0"], ["--seeds", "greater than or equal to 1"]),
        (["run", "polygons", "--workers", "two"], ["--workers", "valid integer"]),
        (["run"], ["Missing argument 'EXPERIMENT'"]),
    ],
)
def test_options_that_are_not_there(fspool, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, error = fspool(*arguments)
    assert code == 2 and all(word in error for word in words) and "Traceback" not in error


@pytest.mark.parametrize("package", [[], ["benchmarks/__init__.py", "benchmarks/__main__.py"]])
def test_benchmarks_of_others_are_left_alone(fspool, tmp_path, monkeypatch, package):
    for name in package:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('a stranger')")
    monkeypatch.chdir(tmp_path)
    sentence = "the benchmarks are not part of the package; run this in a clone of it.\n"
    assert fspool("bench") == (1, "", sentence)


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_folder_that_cannot_be_written(run, tmp_path, inside):
    out = tmp_path / "file"
    out.write_text("in the way")
    code, text, error = run(out=out / inside if inside else out)
    assert code == 1 and text == "" and error.startswith(f"out is '{out}")
    assert "where nothing can be written" in error and error.count("\n") == 1
    assert out.read_text() == "in the way"


# --------------------------------------------------------------------------------------------------
# Ctrl-C

LONGER = ("--set", "steps=192", *SMALL[2:])
TWO = ("--only", "fspool-n2", "--only", "mlp-chamfer-n2")
STOPPED = "Stopped. The same command goes on from the last saved states.\n"


@pytest.fixture
def start(tmp_path):
    """The same in a process group of its own, as a shell would."""
    started = []

    def command(workers):
        # As in a terminal: whatever a shell starts in the background is born deaf to Ctrl-C.
        script = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from fspool.cli import main; main()"
        )
        arguments = ["run", "polygons", "--out", tmp_path / "out", *TWO, *LONGER, "--no-page"]
        options = ["--workers", workers, "--save-every", 0]
        process = subprocess.Popen(
            [str(word) for word in (sys.executable, "-c", script, *arguments, *options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield command
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def interrupt(process, condition, times=1):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    for _ in range(times):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.002)  # or the second is taken for the first
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


def test_a_damaged_plan_is_named_and_written_anew(run, tmp_path):
    assert run()[0] == 0
    plan = tmp_path / "out" / "plan.json"
    good = plan.read_bytes()
    plan.write_bytes(good[:-9])
    code, out, _ = run()
    assert code == 0 and "plan.json.damaged-0" in out and plan.read_bytes() == good


def test_ctrl_c_has_the_exit_code_that_shells_expect(run, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.running, "launch", stop)
    assert run() == (130, STOPPED, "")


def test_ctrl_c_before_a_command_begins_is_silent(fspool, monkeypatch):
    def stop(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", stop)
    assert fspool("list") == (130, "", "")


def test_sigterm_is_heard_too_and_the_handler_is_put_back(run, monkeypatch):
    def stop(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli.running, "launch", stop)
    assert run() == (143, STOPPED, "")
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigterm_is_left_alone_where_several_processes_train_together(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.getsignal(signal.SIGTERM)
    with terminable():
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_is_a_sentence_and_the_same_command_goes_on(run, start, tmp_path, workers):
    out = tmp_path / "out"
    code, text, error = interrupt(start(workers), lambda: list(out.glob("*/*/state-*")))
    assert (code, error) == (130, "") and text.endswith(STOPPED) and "Traceback" not in text
    assert len(results(out)) < 2

    assert run(only=TWO, small=LONGER)[0] == 0
    assert run(only=TWO, small=LONGER, out=tmp_path / "undisturbed")[0] == 0
    assert len(results(out)) == 2 and results(out) == results(tmp_path / "undisturbed")


def test_a_second_ctrl_c_does_not_leave_processes_behind(start, tmp_path):
    saved = lambda: list(tmp_path.glob("out/*/*/state-*"))  # noqa: E731
    code, text, error = interrupt(start(2), saved, times=5)
    assert (code, error) == (130, "") and text.endswith(STOPPED)


# --------------------------------------------------------------------------------------------------
# What is seen meanwhile

JOBS = [
    Job("polygons", name, Polygons(points=2, steps=128), seeds, None)
    for name, seeds in (("a", (0, 1, 2)), ("b", (5,)))
]
EVENTS = [
    Event(JOBS[0], "start"),
    Event(JOBS[0], "say", text="a file [1] is damaged."),
    Event(JOBS[0], "step", 64, 0.25),
    Event(JOBS[0], "step", 128, 0.125),
    Event(JOBS[0], "evaluate", 128),
    Event(JOBS[0], "done", 128, text="3 s"),
    Event(JOBS[1], "failed", text="no room [2]."),
]


def shown(events, **options):
    console = Console(file=io.StringIO(), width=120, **options)
    with display(console, JOBS) as view:
        for event in events:
            view.handle(event)
            if isinstance(view, Bars):
                view.progress.refresh()
    return view, console.file.getvalue()


def test_lines_where_there_is_no_terminal(monkeypatch):
    view, text = shown(EVENTS)
    assert isinstance(view, Lines) and text.splitlines() == [
        "a file [1] is damaged.",
        "[1/2] a (seeds 0-2) done: 3 s",
        "[2/2] b (seed 5) failed: no room [2].",
    ]
    monkeypatch.setattr(display_module, "PAUSE", 0)  # the first record only starts the clock
    _, text = shown(EVENTS)
    assert "a (seeds 0-2): step 128 of 128, loss 0.125, 0 s left" in text.splitlines()
    assert "step 64" not in text


def test_bars_in_a_terminal():
    view, text = shown(EVENTS, force_terminal=True)
    assert isinstance(view, Bars)
    for words in ("groups of runs", "a (seeds 0-2)", "64/128", "loss 0.25", "evaluating", "2/2"):
        assert words in text
    assert "a file [1] is damaged." in text and "b (seed 5) failed: no room [2]." in text
    assert not view.tasks and view.progress.tasks[0].completed == 2


def test_a_run_in_a_terminal_has_bars(run, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        cli.running, "console", Console(file=screen, force_terminal=True, width=120)
    )
    code, _, _ = run()
    assert code == 0 and "groups of runs" in screen.getvalue() and "2/2" in screen.getvalue()
    assert "[1/2]" not in screen.getvalue() and TABLES[0] in screen.getvalue()


def test_a_folder_may_have_any_name(run, tmp_path):
    out = tmp_path / "[/b] a [red] 'x' <script>"
    code, text, error = run("--page", out=out)
    assert (code, error) == (0, "") and f"Open {out / 'report.html'} in a browser." in text


@pytest.mark.parametrize("command", ["run polygons --out", "doctor --data", "report"])
def test_a_path_that_is_too_long_is_a_sentence(fspool, command):
    code, _, error = fspool(*command.split(), "a" * 300)
    assert code == 1 and "File name too long" in error and error.count("\n") == 1
