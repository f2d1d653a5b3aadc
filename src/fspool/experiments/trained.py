"""Trained models, from the run folders that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from .. import storage
from ..checks import UserError
from ..lab.cell import Cell
from ..lab.runs import seeds_of


class Trained(NamedTuple):
    """What lies in a finished run folder."""

    folder: Path
    experiment: str | None
    settings: dict | None
    tensors: dict[str, Tensor]


def read_trained(folder: Path | str) -> Trained:
    folder = Path(folder)
    try:
        config = storage.read_json(folder / "config.json")
        tensors, _ = storage.read_tensors(folder / "model.safetensors")
    except (OSError, storage.Damaged) as error:
        raise UserError(
            f"{folder} has no trained model ({error}); expected the folder of finished runs, such "
            "as runs/polygons-quick/fspool-n4/seeds-0-2."
        ) from None
    settings = config.get("cell")
    settings = settings if isinstance(settings, dict) else None
    return Trained(folder, config.get("experiment"), settings, tensors)


def model_of(found: Trained, kind: type[Cell], seed: int | None = None) -> nn.Module:
    """In ``eval()`` mode; of one of its seeds, or of the first."""
    seeds = seeds_of(found.folder) or [0]
    if seed is not None and seed not in seeds:
        known = ", ".join(map(str, seeds))
        raise UserError(f"{found.folder} has no seed {seed}; expected one of {known}.")
    place = 0 if seed is None else seeds.index(seed)
    try:
        model = kind(**found.settings).model()
        own = model.state_dict()
        one = {
            name: tensor[place] if name in own and tensor.ndim > own[name].ndim else tensor
            for name, tensor in found.tensors.items()
        }
        model.load_state_dict(one)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[-1].strip().rstrip(".")
        raise UserError(
            f"{found.folder} is of another version ({reason}); run {found.experiment} again."
        ) from None
    return model.eval()
