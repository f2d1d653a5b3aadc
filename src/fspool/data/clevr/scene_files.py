"""Scenes in CLEVR's JSON, checked record by record, in and out."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from ...checks import UserError, nearest
from .arrays import Scenes
from .records import in_record, records
from .relations import members
from .vocabulary import DIRECTIONS, FEATURES, OBJECTS, RELATIONS, VALUES

NUMBER_OF = {name: {v: i for i, v in enumerate(VALUES[name], 1)} for name in FEATURES}


def read_scenes(path: Path) -> Scenes:
    """The scenes of a file."""
    rows = _SceneRows()
    for number, record in enumerate(records(path, "scenes")):
        with in_record(path, "scene", number):
            rows.add(record)
    if not rows.image:
        raise UserError(f"{path} has no scenes; expected some, so fetch it again.")
    return rows.scenes()


class _SceneRows:
    """Scenes as they come."""

    def __init__(self) -> None:
        self.image: dict[int, None] = {}
        self.sizes = array("B")
        self.coords, self.rotation, self.pixels = array("f"), array("f"), array("f")
        self.attributes, self.relations = array("B"), array("h")

    def add(self, record: dict) -> None:
        image, objects = record.get("image_index"), record.get("objects")
        if type(image) is not int or image in self.image or not 0 <= image < 1 << 31:
            raise UserError(f"image_index is {image!r}; expected a number of its own.")
        if not isinstance(objects, list) or not 0 < len(objects) <= OBJECTS:
            found = f"{len(objects)} objects" if isinstance(objects, list) else "no list of objects"
            raise UserError(f"it has {found}; expected 1 to {OBJECTS}, the slots of a scene.")
        for place, item in enumerate(objects):
            try:
                self._add_object(item)
            except UserError as error:
                raise UserError(f"object {place}: {error}") from None
        for values, width in ((self.coords, 3), (self.rotation, 1), (self.pixels, 3)):
            values.extend([0.0] * (OBJECTS - len(objects)) * width)
        self.attributes.extend([0] * (OBJECTS - len(objects)) * len(FEATURES))
        self.relations.extend(_relations(record, len(objects)))
        self.image[image] = None
        self.sizes.append(len(objects))

    def _add_object(self, item: object) -> None:
        if not isinstance(item, dict):
            raise UserError(f"it is {str(item)[:40]!r}; expected shape, size, material, ....")
        for name in FEATURES:
            value = item.get(name)
            number = NUMBER_OF[name].get(value) if isinstance(value, str) else None
            self.attributes.append(number or NUMBER_OF[name][nearest(name, value, VALUES[name])])
        self.coords.extend(_numbers(item, "3d_coords", 3))
        self.pixels.extend(_numbers(item, "pixel_coords", 3))
        self.rotation.extend(_numbers({"rotation": [item.get("rotation")]}, "rotation", 1))

    def scenes(self) -> Scenes:
        def tensor(values, dtype: type, *shape: int) -> torch.Tensor:
            return torch.from_numpy(np.array(values, dtype).reshape(len(self.image), *shape))

        return Scenes(
            image=tensor(list(self.image), np.int32),
            sizes=tensor(self.sizes, np.uint8),
            coords=tensor(self.coords, np.float32, OBJECTS, 3),
            attributes=tensor(self.attributes, np.uint8, OBJECTS, len(FEATURES)),
            rotation=tensor(self.rotation, np.float32, OBJECTS),
            pixels=tensor(self.pixels, np.float32, OBJECTS, 3),
            relations=tensor(self.relations, np.int16, len(RELATIONS), OBJECTS),
        )


def _numbers(item: dict, name: str, count: int) -> list[float]:
    values = item.get(name)
    if not isinstance(values, list) or len(values) != count or not all(map(_is_number, values)):
        raise UserError(f"{name} is {str(values)[:40]}; expected {count} finite number(s).")
    return values


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 1e6 and math.isfinite(value)


def _relations(record: dict, count: int) -> Iterator[int]:
    """Masks; the readme of v1.0 calls relations what its files call relationships."""
    found = record.get("relationships", record.get("relations"))
    for name in RELATIONS:
        lists = found.get(name) if isinstance(found, dict) else None
        if not isinstance(lists, list) or len(lists) != count:
            raise UserError(
                f"relationships have no {count} lists for {name}; expected one a object."
            )
        for places in lists:
            yield _mask(places, count, name)
        yield from [0] * (OBJECTS - count)


def _mask(places: object, count: int, name: str) -> int:
    if not isinstance(places, list) or not all(type(i) is int and 0 <= i < count for i in places):
        raise UserError(f"{name} has {str(places)[:40]}; expected objects from 0 to {count - 1}.")
    return sum(1 << i for i in set(places))


def scene_records(scenes: Scenes, split: str) -> Iterator[dict]:
    """Scenes as they are in a file."""
    for image, count, *objects, masks in zip(*(part.tolist() for part in scenes), strict=True):
        coords, attributes, rotation, pixels = (column[:count] for column in objects)
        rows = zip(coords, attributes, rotation, pixels, strict=True)
        yield {
            "split": split,
            "image_index": image,
            "image_filename": image_name(split, image),
            "objects": [_object_record(*row) for row in rows],
            "directions": DIRECTIONS,
            "relationships": {
                name: [members(mask) for mask in row[:count]]
                for name, row in zip(RELATIONS, masks, strict=True)
            },
        }


def _object_record(coords, attributes, rotation, pixels) -> dict:
    names = {name: VALUES[name][i - 1] for name, i in zip(FEATURES, attributes, strict=True)}
    column, row, depth = pixels
    return names | {
        "3d_coords": coords,
        "pixel_coords": [int(column), int(row), depth],
        "rotation": rotation,
    }


def image_name(split: str, image: int) -> str:
    return f"CLEVR_{split}_{image:06d}.png"
