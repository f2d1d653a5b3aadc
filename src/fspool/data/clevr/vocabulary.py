"""The names of CLEVR: attributes, relations, answers, words, and the numbers that stand for them.

A *description* says what an object is like; each of its four slots may be empty. It is one number
below 324: in every scene a table then says which objects it fits.
"""

from __future__ import annotations

import re

OBJECTS = 10  # at most, in a scene
SPLITS = ("train", "val", "test")

ATTRIBUTES = ("size", "color", "material", "shape")  # in the order of a phrase and of a program
VALUES = {
    "size": ("large", "small"),
    "color": ("cyan", "blue", "yellow", "purple", "red", "green", "gray", "brown"),
    "material": ("rubber", "metal"),
    "shape": ("sphere", "cube", "cylinder"),
}
FEATURES = ("color", "material", "shape", "size")  # in the order of a model's inputs
RELATIONS = ("left", "right", "front", "behind")
DIRECTIONS = {  # as they are in every scene of v1.0
    "left": (-0.6563112735748291, -0.7544902563095093, 0.0),
    "right": (0.6563112735748291, 0.7544902563095093, -0.0),
    "front": (0.754490315914154, -0.6563112735748291, -0.0),
    "behind": (-0.754490315914154, 0.6563112735748291, 0.0),
    "above": (0.0, 0.0, 1.0),
    "below": (-0.0, -0.0, -1.0),
}
RADII = {"large": 0.7, "small": 0.35}  # also the height of the centre, whatever the shape

TRUTHS = ("yes", "no")
NUMBERS = tuple(map(str, range(OBJECTS + 1)))
ANSWERS = TRUTHS + NUMBERS + VALUES["color"] + VALUES["shape"] + VALUES["size"] + VALUES["material"]
ANSWER_NUMBERS = {answer: number for number, answer in enumerate(ANSWERS)}

WORDS = tuple(
    """; ? a an and another any anything are as ball balls behind big block blocks blue both brown
    color cube cubes cyan cylinder cylinders do does either else equal fewer front gray greater
    green has have how in is it its large left less made many material matte metal metallic more
    number object objects of on or other purple red right rubber same shape shiny side size small
    sphere spheres than that the there thing things tiny to visible what yellow""".split()
)
WORD_NUMBERS = {word: number for number, word in enumerate(WORDS, 1)}  # 0 is padding

_TOKEN = re.compile(r"[.,;:!?()]|[^\s.,;:!?()]+")


def tokens(text: str) -> list[str]:
    """The words of a question in lower case; a punctuation mark is a word."""
    return _TOKEN.findall(text.lower())


# --------------------------------------------------------------------------------------------------
# Descriptions

RADIX = tuple(len(VALUES[name]) + 1 for name in ATTRIBUTES)  # slot 0 is empty, value i is i + 1
DESCRIPTIONS = tuple(
    (size, color, material, shape)
    for shape in range(RADIX[3])
    for material in range(RADIX[2])
    for color in range(RADIX[1])
    for size in range(RADIX[0])
)
FILLED = tuple(sum(1 << k for k in range(4) if slots[k]) for slots in DESCRIPTIONS)  # bits by slot


def describe(**values: str) -> int:
    """The description of some values, such as ``color="red"``."""
    slots = [VALUES[name].index(values[name]) + 1 if name in values else 0 for name in ATTRIBUTES]
    return DESCRIPTIONS.index(tuple(slots))
