"""Where the tests of data sets put their files."""

import pytest


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """Whoever forgets to say where the data is finds nothing."""
    monkeypatch.delenv("FSPOOL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.chdir(tmp_path)


def put(files, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
