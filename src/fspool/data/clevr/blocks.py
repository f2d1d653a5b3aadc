"""Blocks of a twin: 250 scenes with their questions, made alone, whoever makes the others."""

from __future__ import annotations

import json
import random
from typing import NamedTuple

import numpy as np

from .. import draws
from .clock import Clock
from .families import FAMILIES, recognise
from .placement import sample
from .question_files import QuestionRows, question_record
from .questions import BLOCK, Asker
from .scene_files import scene_records
from .tables import tables
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
    rows, texts = QuestionRows(), []
    chance = random.Random(draws.seed_of(block.seed, f"{purpose}/questions")).random
    asker = Asker(chance)
    with clock.on("questions"):
        asked = [asker.ask(table) for table in tables(scenes)]
    with clock.on("words and files"):
        for row, (image, found) in enumerate(zip(scenes.image.tolist(), asked, strict=True)):
            for one in found:
                text = word(FAMILIES[one.family], one.choices, chance)
                family = recognise(one.program)
                rows.add(row, text, one.answer, family)
                if block.files:
                    texts.append(
                        question_record(block.split, image, text, one.answer, family, one.program)
                    )
        records = list(scene_records(scenes, block.split)) if block.files else []
        lines = [json.dumps(record).encode() for record in records]
        tails = [json.dumps(record).encode()[1:] for record in texts]
    return Made(_arrays(scenes), _arrays(rows.questions()), lines, tails, clock)


def _arrays(tensors: NamedTuple) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors._asdict().items()}
