"""The files of a twin, written while it is made: whole in the end, or not there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from ... import storage
from .arrays import Clevr, Questions, Scenes
from .blocks import Made
from .compact import kept_path, notes, pack, source_paths

INFO = {
    "version": "fspool twin 1",
    "license": "Creative Commons Attribution (CC BY 4.0)",
    "note": "Made by fspool in the format of CLEVR v1.0. It is not CLEVR, and has no pictures.",
}


class List:
    """A file with a list of records under one key; it gets its name when it is left whole."""

    def __init__(self, path: Path, key: str, info: dict) -> None:
        self.path, self.key, self.info = path, key, info
        self.part = storage.part_of(path)
        self.count = 0

    def __enter__(self) -> List:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(self.part, "wb")
        self.file.write(f'{{"info": {json.dumps(self.info)}, "{self.key}": [\n'.encode())
        return self

    def add(self, record: bytes) -> None:
        self.file.write(b",\n" + record if self.count else record)
        self.count += 1

    def __exit__(self, kind: type | None, error: object, trace: TracebackType | None) -> None:
        try:
            with self.file:
                if kind is None:
                    self.file.write(b"\n]}\n")
            if kind is None:
                storage.give_name(self.part, self.path)
        finally:
            self.part.unlink(missing_ok=True)


def write(out: Path, split: str, seed: int, results: Iterable[Made], files: bool) -> Clevr:
    """Write what comes as it comes, and in the end the compact form."""
    paths = source_paths(out, split) if files else ()
    info = {"split": split, "seed": seed, **INFO}
    scenes, questions = [], []
    with ExitStack() as stack:
        lists = [
            stack.enter_context(List(path, key, info))
            for path, key in zip(paths, ("scenes", "questions"), strict=False)
        ]
        for made in results:
            scenes.append(made.scenes)
            questions.append(made.questions)
            if lists:
                _add(*lists, made)
    data = Clevr(_join_scenes(scenes), _join_questions(questions, scenes))
    out.mkdir(parents=True, exist_ok=True)
    storage.write_tensors(kept_path(out, split), pack(data), notes(paths))
    return data


def _add(scenes: List, questions: List, made: Made) -> None:
    for record in made.scene_records:
        scenes.add(record)
    for record in made.question_records:
        questions.add(b'{"question_index": %d, ' % questions.count + record)


def _join_scenes(parts: list[dict[str, np.ndarray]]) -> Scenes:
    return Scenes(*(_join([part[name] for part in parts]) for name in Scenes._fields))


def _join_questions(parts: list[dict[str, np.ndarray]], scenes: list[dict]) -> Questions:
    """Rows of scenes and of words are counted on from block to block."""
    joined = {
        name: [part[name] for part in parts] for name in Questions._fields if name != "offsets"
    }
    rows = np.cumsum([0] + [len(part["sizes"]) for part in scenes])
    joined["scene"] = [
        (part + row).astype(part.dtype)
        for part, row in zip(joined["scene"], rows[:-1], strict=True)
    ]
    sizes = np.concatenate([[0], *(np.diff(part["offsets"]) for part in parts)])
    tensors = {name: _join(values) for name, values in joined.items()}
    return Questions(offsets=torch.from_numpy(sizes.cumsum()), **tensors)


def _join(arrays: list[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(arrays))
