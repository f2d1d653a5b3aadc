#!/usr/bin/env bash
# Checks the size of the wheel in dist/, installs it into an empty environment, and runs the first python block of
# README.md there.
set -euo pipefail
cd "$(dirname "$0")/.."

size=$(stat -c %s dist/fspool-*.whl) # bytes
[ "$size" -lt 1000000 ] || { echo "the wheel has $size bytes; expected less than 1,000,000" >&2; exit 1; }

room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT

awk '/^```python/ { on = 1; next } on && /^```/ { exit } on' README.md > "$room/example.py"
[ -s "$room/example.py" ] || { echo "README.md has no python block" >&2; exit 1; }

"${PYTHON:-python3}" -m venv "$room/venv"
"$room/venv/bin/python" -m pip install --quiet --constraint constraints.txt dist/fspool-*.whl
cd "$room"
# -I: only the installed package can be imported, never the source tree.
venv/bin/python -I - <<'PY'
from importlib.metadata import version
from importlib.resources import files

import fspool

assert version("fspool") == fspool.__version__, (version("fspool"), fspool.__version__)
assert files(fspool).joinpath("py.typed").is_file(), "py.typed is not in the wheel"
try:
    import fspool.integrations.pyg
except ImportError as error:
    assert "pip install '.[pyg]' in a clone" in str(error), error
else:
    raise AssertionError("torch_geometric is in the empty environment")
PY
venv/bin/python -I example.py
echo "wheel: $size bytes; the README example passes in an empty environment"
