"""Damage to what is kept beside data: the compact form of a small twin of CLEVR."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

from fspool import storage

from .command import Call
from .damage import damage
from .trial import Trial, last_line, whole

RUN = ["run", "clevr", "--only", "fspool-short", "--seeds", 1, "--device", "cpu", "--workers", 1]
RUN += ["--no-page", "--set", "scenes=7", "--set", "epochs=1", "--set", "batch=16"]


@cache
def made(folder: Path) -> Path:
    """A twin with its files, one without, and what a run makes of them."""
    for kind in ("--json", "--no-json"):
        words = ["data", "clevr", "--scenes", 14, kind, "--data", folder / kind]
        call = Call(words, folder / "said.txt")
        if call.wait() or _run(folder / kind, folder / kind / "out", folder / "said.txt").wait():
            raise RuntimeError((folder / "said.txt").read_text())
    return folder


def _run(data: Path, out: Path, log: Path) -> Call:
    return Call([*RUN, "--data", data, "--out", out], log)


def damaged_cache(trial: Trial) -> None:
    """With the files beside it, it is made again; a lone twin cannot be, so that is said."""
    source = trial.expected.out.parents[1] / "twins"
    source.mkdir(exist_ok=True)
    kind = trial.random.choice(("--json", "--json", "--no-json"))
    data = trial.folder / "data"
    shutil.copytree(made(source) / kind, data)
    expected = (data / "out/fspool-short/seeds-0-0/result.json").read_bytes()
    shutil.rmtree(data / "out")
    path = data / "clevr" / f"compact-{trial.random.choice(('train', 'val'))}.safetensors"
    damage(path, trial.random, lambda path: not whole(path, storage.read_tensors))
    call = _run(data, trial.out, trial.log())
    call.wait()
    trial.judge_sentences(call, (path,))
    if kind == "--no-json":
        if call.code != 1 or "make it again by" not in last_line(call):
            trial.unclear.append(f"not what to do about it: {last_line(call)!r}")
        shutil.copy(source / kind / "clevr" / path.name, path)
        call = _run(data, trial.out, trial.log())
    if call.wait() != 0:
        return trial.lost.append(f"it ends with {call.code}: {last_line(call)}")
    if (trial.out / "fspool-short/seeds-0-0/result.json").read_bytes() != expected:
        trial.wrong.append("the result is not the same")
