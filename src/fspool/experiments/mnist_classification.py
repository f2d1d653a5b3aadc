"""Which digit is it? MNIST as sets of points (section 6.2.1 and appendix D of the paper).

The encoder starts from random numbers, or from an auto-encoder of ``mnist-reconstruction``, and is
then trained further, or kept as it is (frozen).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..checks import UserError, check_count, nearest
from ..data.point_sets import Batch
from ..lab.cell import Evaluation, place
from ..lab.runs import seeds_of
from ..models import SetClassifier
from ..storage import Damaged, digest, plain, read_json, read_tensors
from . import mnist_reconstruction
from .experiment import PRESETS, Combined, Experiment
from .mnist import EPOCHS, STARTS, MnistCell, steps_of
from .mnist_deviations import CLASSIFICATION_DEVIATIONS
from .mnist_tables import CLASSIFICATION_TABLES

TITLE = "MNIST as sets: which digit is it?"
CLASSES = 10
AUTO_ENCODERS = {"fspool": "fspool", "sum": "sum-mlp", "mean": "mean-mlp", "max": "max-mlp"}


@dataclass(frozen=True, kw_only=True)
class Classification(MnistCell):
    """One classifier. FSPool sorts hard here, also with weights trained under a relaxed sort."""

    own = (*MnistCell.own, "start", "auto_encoder")

    start: str = "random"
    source: str = ""  # the auto-encoder whose encoder it starts with: its cell
    auto_encoder: str = ""  # and a digest of that one's settings
    temperature: float | None = None
    tf32: bool = False  # in products of matrices, on CUDA
    head: int = 16  # hidden units between the encoder's vector and the classes
    steps: int = steps_of(100, 8)
    batch: int = 8
    encoders: str = place()  # the runs of mnist-reconstruction

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("head", self.head, 1, "a number of them")
        nearest("start", self.start, STARTS)

    def at(self, **places: object) -> Classification:
        """The same cell for the encoders that are there; those of other settings make others."""
        cell = super().at(**places)
        found = _settings_of(Path(cell.encoders), cell.source) if cell.source else None
        return replace(cell, auto_encoder=_digest(found)) if found else cell

    @property
    def matmul_precision(self) -> str:
        return "high" if self.tf32 else "highest"

    def model(self) -> nn.Module:
        encoder = self.encoder(self.temperature).requires_grad_(self.start != "frozen")
        return SetClassifier(encoder, self.latent, self.head, CLASSES)

    def likeness(self) -> tuple:
        """Encoders that are not trained make shorter steps."""
        return *super().likeness(), self.start == "frozen"

    def begin(self, model: nn.Module, seeds: Sequence[int]) -> None:
        if self.start == "random":
            return
        weights = [_encoder(Path(self.encoders), self.source, seed) for seed in seeds]
        stacked = {name: torch.stack([own[name] for own in weights]) for name in weights[0]}
        try:
            model.encoder.load_state_dict(stacked)
        except RuntimeError as error:
            raise UserError(
                f"the encoder of {self.source!r} in {self.encoders} does not fit: "
                f"{str(error).splitlines()[-1].strip()}; expected runs of the same settings."
            ) from None

    def check(self, seeds: Sequence[int]) -> None:
        super().check(seeds)
        if self.start != "random":
            for seed in seeds:
                _encoder(Path(self.encoders), self.source, seed)

    def origins(self, seeds: Sequence[int]) -> dict:
        """Which encoders it started from: their files, by checksum, and how far they had come."""
        if self.start == "random":
            return {}
        folders = {_trained(Path(self.encoders), self.source, seed) for seed in seeds}
        found = []
        for folder in sorted(folders):
            digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
            steps = _steps(folder)
            own = {"cell": self.source, "seeds": seeds_of(folder), "steps": steps}
            found.append(own | {"sha256": digest})
        return {"encoders": found}

    def output(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.input, sizes=batch.sizes)

    def loss(self, output: Tensor, batch: Batch, matched: None) -> Tensor:
        losses = cross_entropy(output.flatten(0, 1), batch.labels.flatten(), reduction="none")
        return losses.unflatten(0, batch.labels.shape).mean(-1)

    @property
    def milestones(self) -> tuple[int, ...]:
        return tuple(steps_of(epochs, self.batch) for epochs in EPOCHS)

    def probe(self, model, seeds, device, step: int) -> dict[str, list[float]]:
        epochs = EPOCHS[self.milestones.index(step)]
        return {f"accuracy after {epochs}": self._right(model, seeds, device)[0]}

    def evaluate(self, model: nn.Module, seeds: Sequence[int], device: torch.device) -> Evaluation:
        accuracy, table = self._right(model, seeds, device)
        return Evaluation({"accuracy": accuracy}, {"confusion": table})

    def _right(self, model, seeds, device) -> tuple[list[float], Tensor]:
        """The fraction that is right in every run; which digits the first run took for which."""
        right, table = 0, torch.zeros(CLASSES, CLASSES, dtype=torch.int64)
        for batch in self.tests(seeds, device):
            guess = self.output(model, batch).argmax(-1)
            right = right + (guess == batch.labels).sum(-1)
            pairs = (batch.labels[0] * CLASSES + guess[0]).bincount(minlength=CLASSES**2)
            table += pairs.view(CLASSES, CLASSES).cpu()
        return (right / self.test_sets).tolist(), table


class Timed(Classification):
    """One run by itself, to see how long an epoch takes it."""

    @property
    def most_runs(self) -> int:
        return 1


def _encoder(runs: Path, source: str, seed: int) -> dict[str, Tensor]:
    """The weights of one encoder that was trained in an auto-encoder."""
    folder = _trained(runs, source, seed)
    try:
        tensors, _ = read_tensors(folder / "model.safetensors")
        index = seeds_of(folder).index(seed)
        return {
            name.removeprefix("encoder."): tensor[index]
            for name, tensor in tensors.items()
            if name.startswith("encoder.")
        }
    except (Damaged, OSError) as error:
        raise UserError(f"{error}; {_make_it(runs, source, seed)}") from None
    except IndexError:
        raise UserError(
            f"{folder / 'model.safetensors'} has no weights of seed {seed}; "
            f"{_make_it(runs, source, seed)}"
        ) from None


def _settings_of(runs: Path, source: str) -> dict | None:
    """The settings of an auto-encoder, which all its runs share; None where there is none."""
    for folder in sorted((runs / source).glob("seeds-*")):
        with suppress(Damaged, OSError, KeyError):
            return read_json(folder / "config.json")["cell"]
    return None


def _digest(settings: dict) -> str:
    return digest(plain(settings))[:16]


def _steps(folder: Path) -> int | None:
    """How far a run had come; not worth losing another one for."""
    try:
        return read_json(folder / "provenance.json")["steps"][-1]
    except (Damaged, OSError, KeyError, IndexError, TypeError):
        return None


def _trained(runs: Path, source: str, seed: int) -> Path:
    """The folder of a finished auto-encoder."""
    for folder in sorted((runs / source).glob("seeds-*")):
        if seed in (seeds_of(folder) or []) and (folder / "result.json").exists():
            return folder
    raise UserError(
        f"{runs / source} has no finished auto-encoder of seed {seed}; "
        f"{_make_it(runs, source, seed)}"
    )


def _make_it(runs: Path, source: str, seed: int) -> str:
    preset = next((name for name in PRESETS if runs.name.endswith(f"-{name}")), "paper")
    preset = "paper" if preset == "quick" else preset
    return (
        f"make it by fspool run mnist-reconstruction --preset {preset} --only {source} "
        f"--seeds {seed + 1} --out {runs}, or pass --encoders DIR."
    )


# --------------------------------------------------------------------------------------------------
# Presets. "sum-frozen-s0.05" is the sum encoder, frozen, with noise of 0.05.


def grid(noise: Sequence[str], starts: Sequence[str], **settings) -> dict[str, Classification]:
    base = Classification(**settings)
    return {
        f"{pool}-{start}-s{sigma}": replace(
            base,
            pool=pool,
            start=start,
            sigma=float(sigma),
            source="" if start == "random" else f"{AUTO_ENCODERS[pool]}-s{sigma}",
        )
        for sigma in noise
        for start in starts
        for pool in AUTO_ENCODERS
    }


def cells(preset: str) -> dict[str, Classification]:
    """They start with the auto-encoders of the same preset."""
    known = mnist_reconstruction.cells(preset)
    return {
        name: replace(cell, auto_encoder=_digest(known[cell.source].settings()))
        if cell.source
        else cell
        for name, cell in _cells(preset).items()
    }


def _cells(preset: str) -> dict[str, Classification]:
    noise = ("0.05", "0.00")
    if preset == "quick":
        return grid(noise[:1], ("random",), steps=steps_of(2, 8))
    if preset == "released":
        cells = grid(noise, STARTS, knots=21, noise_padding=True)
        return {name: _from_noisy(name, cell) for name, cell in cells.items()}
    sixteen = grid(noise, STARTS, batch=16, steps=steps_of(100, 16))
    return grid(noise, STARTS) | {f"{name}-b16": cell for name, cell in sixteen.items()} | extra()


def _from_noisy(name: str, cell: Classification) -> Classification:
    """The released scripts start FSPool from an auto-encoder that was trained with noise."""
    if cell.pool == "fspool" and cell.source:
        return replace(cell, source="fspool-s0.05")
    return cell


def extra() -> dict[str, Classification]:
    """What the paper says without a table."""
    large = Classification(  # 1.6 million parameters
        sigma=0.0, hidden=850, latent=128, head=128, batch=64, steps=steps_of(20, 64), tf32=True
    )
    noisy = Classification(sigma=0.0, source="fspool-s0.05")
    soft = Classification(start="frozen", source="fspool-s0.05", temperature=1.0)
    return {
        "fspool-frozen-relaxed-s0.05": replace(soft, steps=steps_of(10, soft.batch)),
        "fspool-large-s0.00": large,
        "fspool-frozen-from-s0.05-s0.00": replace(noisy, start="frozen"),
        "fspool-unfrozen-from-s0.05-s0.00": replace(noisy, start="unfrozen"),
        "fspool-timed-s0.05": Timed(steps=steps_of(1, 8)),
        "sum-timed-s0.05": Timed(steps=steps_of(1, 8), pool="sum"),
    }


def in_short(records: Iterable) -> dict[str, Combined]:
    """Runs that end before their tenth epoch, which no table of the paper shows."""
    return {
        f"{record.name} in short": Combined({"accuracy": record.metrics["accuracy"]}, [record.name])
        for record in records
        if "accuracy" in record.metrics and "accuracy after 10" not in record.metrics
    }


def of_an_epoch(records: Iterable) -> dict[str, Combined]:
    """What an epoch takes a run by itself."""
    timed = [record for record in records if "-timed-" in record.name]
    return {
        f"{record.name} an epoch": Combined({"seconds": seconds}, [record.name])
        for record in timed
        if (seconds := _seconds_of_an_epoch(record.settings, record.origins))
    }


def _seconds_of_an_epoch(settings: dict, origins: list[dict]) -> list[float]:
    known = [origin["step_seconds"] for origin in origins if "step_seconds" in origin]
    return [own * steps_of(1, settings["batch"]) for own in known]


EXPERIMENT = Experiment(
    name="mnist-classification",
    title=TITLE,
    cell=Classification,
    cells=cells,
    seeds={"quick": 1, "paper": 6, "released": 6},
    settable=("steps", "batch", "learning_rate", "knots", "test_sets", "dtype"),
    tables=CLASSIFICATION_TABLES,
    deviations=CLASSIFICATION_DEVIATIONS,
    combine=lambda records: in_short(records) | of_an_epoch(records),
)
