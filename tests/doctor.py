"""What ``fspool doctor`` finds, as its tests read it."""


def findings(fspool, monkeypatch, *arguments, code=0):
    """One for each line: the name, with state and text."""
    monkeypatch.setenv("COLUMNS", "80")
    got, out, _ = fspool("doctor", *arguments)
    assert got == code
    return [(line[8:21].strip(), (line[:8].strip(), line[21:])) for line in out.splitlines()]
