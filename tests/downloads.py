"""What the command does while it downloads, whatever that is: for the tests of every data set."""

from pathlib import Path

from fspool import cli


def has_bars(fspool, monkeypatch, mirror, *command):
    """In a terminal."""
    monkeypatch.setattr(cli.console, "_force_terminal", True)
    code, out, _ = fspool("data", *command)
    assert code == 0 and all(name in out for name in mirror.files) and "bytes" in out


def says_that_it_is_offline(fspool, mirror, file, *command):
    mirror.status = 503
    code, out, error = fspool("data", *command)
    assert code == 1 and out == "" and error.count("\n") == 1
    assert f"{mirror.url}: 503 Service Unavailable" in error and file in error


def refuses_another_file(fspool, folder: Path, kept, *command):
    """Where a mirror sends one; what came before stays."""
    code, out, error = fspool("data", *command)
    assert code == 1 and "so it was removed." in out and "sends another file" in error
    assert [path.name for path in folder.iterdir()] == kept


def goes_on_after_ctrl_c(fspool, monkeypatch, module, *command):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "download", stop)
        sentence = "Stopped. The same command goes on with the download.\n"
        assert fspool("data", *command) == (130, sentence, "")
    assert fspool("data", *command)[0] == 0
