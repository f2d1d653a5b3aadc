"""Blocks of a twin: 250 scenes with their questions, made alone, whoever makes the others."""

from __future__ import annotations

import json
import random
from typing import NamedTuple

import numpy as np

from .. import draws
from . import programs
from .clock import Clock
from .families import FAMILIES, recognise
from .placement import sample
from .question_files import QuestionRows, question_record
from .questions import BLOCK, Asker, Found
from .scene_files import scene_records
from .tables import Random, Table, tables
from .words import word


class Block(NamedTuple):
    """What to make; the same block gives the same bytes."""

    seed: int
    split: str
    first: int  # image
    count: int  # of scenes
    files: bool  # the JSON too


class Made(NamedTuple):
    """Arrays rather than tensors, since they come from another process."""

    scenes: dict[str, np.ndarray]
    questions: dict[str, np.ndarray]
    scene_records: list[bytes]
    question_records: list[bytes]  # each without its number, which is the first entry
    clock: Clock


def blocks(seed: int, split: str, scenes: int, files: bool) -> list[Block]:
    starts = range(0, scenes, BLOCK)
    return [Block(seed, split, start, min(BLOCK, scenes - start), files) for start in starts]


def make(block: Block) -> Made:
    """Scenes, questions about them, and their records."""
    clock = Clock()
    purpose = f"clevr/{block.split}/{block.first}"
    scenes = sample(block.seed, purpose, block.count, block.first, clock)
    chance = random.Random(draws.seed_of(block.seed, f"{purpose}/questions")).random
    with clock.on("questions"):
        asker = Asker(chance)
        asked = [(table, asker.ask(table)) for table in tables(scenes)]
    with clock.on("words and files"):
        rows, questions = _worded(block, asked, chance)
        records = scene_records(scenes, block.split) if block.files else ()
        lines = [json.dumps(record).encode() for record in records]
    return Made(_arrays(scenes), _arrays(rows.questions()), lines, questions, clock)


def _worded(
    block: Block, asked: list[tuple[Table, list[Found]]], chance: Random
) -> tuple[QuestionRows, list[bytes]]:
    """Questions with their texts, each answered once more by its program, and their records."""
    rows, records = QuestionRows(), []
    for row, (table, found) in enumerate(asked):
        for one in found:
            text = word(FAMILIES[one.family], one.choices, chance)
            family = recognise(one.program)
            right = programs.answer(one.program, table.facts) == one.answer
            rows.add(row, text, one.answer, family, right)
            if block.files:
                image = block.first + row
                content = (image, text, one.answer, family, one.program)
                record = question_record(block.split, *content)
                records.append(json.dumps(record).encode()[1:])
    return rows, records


def _arrays(tensors: NamedTuple) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors._asdict().items()}
