"""Questions in CLEVR's JSON, checked record by record, in and out."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import torch

from ...checks import UserError, nearest
from . import programs
from .arrays import Questions, Scenes
from .families import recognise
from .programs import Facts, Node, Unanswerable
from .records import in_record, records
from .relations import facts
from .scene_files import image_name
from .vocabulary import ANSWER_NUMBERS, WORD_NUMBERS, tokens


class QuestionRows:
    """Questions as they come."""

    def __init__(self) -> None:
        self.scene, self.offsets = array("i"), array("q", [0])
        self.words, self.answers = bytearray(), bytearray()
        self.families, self.right = bytearray(), bytearray()

    def add(self, scene: int, text: str, answer: str, family: int, right: bool) -> None:
        try:
            self.words.extend([WORD_NUMBERS[word] for word in tokens(text)])
        except KeyError as error:
            raise UserError(f"word is {error}; expected one of CLEVR's.") from None
        self.scene.append(scene)
        self.offsets.append(len(self.words))
        self.answers.append(ANSWER_NUMBERS[nearest("answer", answer, ANSWER_NUMBERS)])
        self.families.append(family)
        self.right.append(right)

    def questions(self) -> Questions:
        def tensor(values, dtype: type) -> torch.Tensor:
            return torch.from_numpy(np.frombuffer(values, dtype).copy())

        return Questions(
            scene=tensor(self.scene, np.int32),
            words=tensor(self.words, np.uint8),
            offsets=tensor(self.offsets, np.int64),
            answers=tensor(self.answers, np.uint8),
            families=tensor(self.families, np.uint8),
            right=tensor(self.right, np.uint8).bool(),
        )


def read_questions(path: Path, scenes: Scenes, scenes_path: Path) -> Questions:
    """The questions of a file about scenes; every program is run and compared with its answer."""
    rows = QuestionRows()
    asked = _Asked(scenes, scenes_path)
    for number, record in enumerate(records(path, "questions")):
        with in_record(path, "question", number):
            row, known = asked.scene(record.get("image_index"))
            text, answer = record.get("question"), record.get("answer")
            if not isinstance(text, str) or not tokens(text):
                raise UserError(f"question is {text!r}; expected a text.")
            program = programs.parse(record.get("program"))
            answer = programs.written(answer)
            rows.add(row, text, answer, recognise(program), _gives(program, known) == answer)
    if not rows.answers:
        raise UserError(f"{path} has no questions; expected some, so fetch it again.")
    return rows.questions()


def _gives(program: list[Node], known: Facts) -> str | None:
    try:
        return programs.answer(program, known)
    except Unanswerable:
        return None


class _Asked:
    """The scene of a question; most questions are about the same one as the last."""

    def __init__(self, scenes: Scenes, path: Path) -> None:
        self.scenes, self.path = scenes, path
        self.rows = {image: row for row, image in enumerate(scenes.image.tolist())}
        self.last: tuple[int, Facts] | None = None

    def scene(self, image: object) -> tuple[int, Facts]:
        row = self.rows.get(image) if type(image) is int else None
        if row is None:
            raise UserError(f"image_index is {image!r}; expected an image of {self.path}.")
        if self.last is None or self.last[0] != row:
            lists = (self.scenes.attributes[row].tolist(), self.scenes.relations[row].tolist())
            self.last = row, facts(*lists)
        return self.last


def question_record(
    split: str, image: int, text: str, answer: str, family: int, program: list[Node]
) -> dict:
    """A question as it is in a file, but for its number."""
    return {
        "split": split,
        "image_index": image,
        "image_filename": image_name(split, image),
        "question_family_index": family,
        "question": text,
        "answer": answer,
        "program": [
            {"function": f, "inputs": inputs, "value_inputs": [] if value is None else [value]}
            for f, inputs, value in program
        ],
    }
