"""The graph sets of the paper (section 6.4), most of them from TU Dortmund's collection.

A set may lie there as the archive ``NAME.zip``, as its text files, or as a folder of
torch_geometric's, of which only ``raw`` is read. What is in it decides, so archives that somebody
else packed will do. The graphs are kept beside it, so that only the first :func:`load` has to read
the text.

``PTC`` is the set that GIN was published with; TU's collection has it without the hydrogen atoms,
as ``PTC_MR``, which is what the authors' code reads.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .. import storage
from ..checks import UserError, nearest
from . import files, tu_text
from .download import Progress, download
from .tu_files import Archive, Folder
from .tu_sources import SOURCES, Counts, Source

FORMAT = 1  # of the kept graphs
KEPT = ("sizes", "degrees", "sources", "labels", "kind")
MOMENT = 1 << 23  # bytes of text that are read in a fraction of a second


@dataclass(frozen=True, eq=False)  # tensors have no one answer to whether they are equal
class Graphs:
    """A packed set of graphs: graph i has the nodes from ``offsets[i]`` up to ``offsets[i + 1]``.

    Every edge is there in both directions and once, and no node has one to itself. Features are
    one-hot: of a node only the place of its 1 is kept. A constant is a single column.
    """

    name: str
    offsets: Tensor  # int64 (graphs + 1,)
    edge_index: Tensor  # int64 (2, edges): source and destination, by destination and then source
    edge_offsets: Tensor  # int64 (graphs + 1,)
    labels: Tensor  # int64 (graphs,), from 0
    kind: Tensor  # int64 (nodes,): the feature that is 1
    columns: int
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    def features(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The features as a matrix, ``(nodes, columns)``."""
        matrix = torch.zeros(len(self.kind), self.columns, dtype=dtype, device=self.kind.device)
        return matrix.scatter_(1, self.kind[:, None], 1)

    def to(self, device: torch.device | str) -> Graphs:
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return dataclasses.replace(self, **tensors)


# --------------------------------------------------------------------------------------------------
# Files


def missing(root: Path, names: list[str]) -> list[str]:
    """The sets that are not there."""
    return [name for name in names if _find(root, name) is None]


def fetch(
    root: Path,
    name: str,
    progress: Progress = lambda *_: None,
    say: Callable[[str], None] = print,
) -> None:
    """Download the archive of a set to where those of others are."""
    source, places = SOURCES[name], [root / "tu", root]
    archives = {other.archive.name for other in SOURCES.values()}
    there = (place for place in places if any((place / file).is_file() for file in archives))
    path = download(source.archive, next(there, places[0]), source.mirrors, progress, say)
    if source.archive.checksum is None:  # so only what is in it can tell
        try:
            _read(Archive(path), name, root)
        except UserError:
            path.unlink()
            say(f"{path} was not what was expected, so it was removed.")
            raise


def _find(root: Path, name: str) -> Folder | Archive | None:
    """Archives first, for they are ours; then the text, as it is unpacked or in a root of PyG's."""
    archives = dict.fromkeys((f"{name}.zip", SOURCES[name].archive.name))
    for place in (root / "tu", root):
        for path in (place / archive for archive in archives):
            if path.is_file():
                return Archive(path)
        for folder in (place / name / "raw", place / name, place / "raw", place):
            if Folder(folder).has(f"{name}_A.txt"):
                return Folder(folder)
    return None


def check(root: Path, name: str) -> Folder | Archive:
    """Where the files of a set are; an error where they are not."""
    if (place := _find(root, name)) is None:
        raise UserError(
            f"{SOURCES[name].archive.name} is not in {root / 'tu'} or {root}, and there is no "
            f"folder with {name}_A.txt; fetch it by {_command(root, name)}, or point --data at a "
            "folder that has it."
        )
    return place


def verified(root: Path, name: str) -> bool:
    """Is this set what was published? An error where it is not; False where a moment cannot tell.

    The checksum of the archive tells, graphs that were made of just these files and are kept, or
    what is in them, as long as it is little.
    """
    place, source = check(root, name), SOURCES[name]
    with _with_the_command(place, name, root):
        files = tu_text.files_of(place, name, source.labelled)
        digest = place.digest(files)
        if digest == source.archive.checksum or _was_read(place, name, digest):
            return True
        if place.size(files) > MOMENT:
            return False
        _read(place, name, root)
    return True


def _was_read(place: Folder | Archive, name: str, digest: str) -> bool:
    """Are graphs of just these files kept? Then they were verified."""
    try:
        return storage.read_tensors(_kept_path(place, name))[1] == _notes(name, digest)
    except (OSError, storage.Damaged):
        return False


@contextmanager
def _with_the_command(place: Folder | Archive, name: str, root: Path) -> Iterator[None]:
    """To an error the command that fetches the set, and the checksums of its archive."""
    try:
        yield
    except UserError as error:
        sentence, command = str(error).rstrip("."), _command(root, name)
        sentence = sentence.replace(", so fetch it", ", so remove it and fetch it")  # else it stays
        if not sentence.endswith(command):
            sentence += f" by {command}"
        with suppress(OSError):  # the sentence is about that
            if isinstance(place, Archive) and (fault := SOURCES[name].archive.fault(place.path)):
                sentence += f"; {place.path.name} has {fault}"
        raise UserError(f"{sentence}.") from None


def _command(root: Path, name: str) -> str:
    return f"fspool data tu {name} --data {shlex.quote(str(root))}"


def _read(place: Folder | Archive, name: str, root: Path, digest: str = "") -> dict[str, Tensor]:
    """The graphs of a set as they are kept; verified, unless this is the published archive."""
    source = SOURCES[name]
    graphs = pack(tu_text.read(place, name, source.labelled), source.features)
    if digest != source.archive.checksum:
        _verify(graphs, source, f"{place.path} is not {name} as published", _command(root, name))
    return graphs


def _verify(graphs: dict[str, Tensor], source: Source, wrong: str, command: str) -> None:
    counts, content = count(graphs), fingerprint(graphs)
    if counts != source.counts:
        found, expected = str(counts), str(source.counts)
    elif content != source.content:
        found, expected = (f"content with sha256 {digest}" for digest in (content, source.content))
    else:
        return
    raise UserError(
        f"{wrong}: it has {found}; expected {expected}, so remove it and run {command}."
    )


# --------------------------------------------------------------------------------------------------
# Graphs


def load(root: Path | str, name: str, say: Callable[[str], None] = print) -> Graphs:
    """The graphs of a set, verified; kept beside its files where that is possible."""
    root, name = Path(root), nearest("graph set", name, SOURCES)
    place = check(root, name)
    with _with_the_command(place, name, root):
        digest = place.digest(tu_text.files_of(place, name, SOURCES[name].labelled))
        path, notes = _kept_path(place, name), _notes(name, digest)

        def make() -> dict[str, Tensor]:
            return _read(place, name, root, digest)

        return unpack(name, files.kept(path, notes, KEPT, make, say, fit=_fit))


def _kept_path(place: Folder | Archive, name: str) -> Path:
    return place.folder / f"graphs-{name}.safetensors"


def _notes(name: str, digest: str) -> dict:
    """What the kept graphs are made of."""
    return {"format": FORMAT, "name": name, "source": digest}


def _fit(kept: dict[str, Tensor]) -> bool:
    """Can these be graphs that :func:`pack` packed?"""
    small = (torch.uint8, torch.int16, torch.int32)
    if not all(t.dtype in small and t.ndim == 1 and (t >= 0).all() for t in kept.values()):
        return False
    sizes, degrees, sources, labels, kind = (kept[key] for key in KEPT)
    if not len(sizes) or len(sizes) != len(labels) or len(degrees) != len(kind):
        return False
    if sizes.sum() != len(degrees) or degrees.sum() != len(sources) or not len(kind):
        return False
    own = sizes.long().repeat_interleave(sizes.long())  # of every node, how large its graph is
    return bool((sources < own.repeat_interleave(degrees.long())).all())


def pack(text: tu_text.Text, features: str) -> dict[str, Tensor]:
    """The least that says all: neighbours as places in their graph, in small integers."""
    degrees, sources = _neighbours(text)
    labels = np.unique(text.labels, return_inverse=True)[1]
    kinds = {"constant": np.zeros_like(degrees), "degree": degrees}
    if features == "label":
        kinds["label"] = np.unique(text.node_labels, return_inverse=True)[1]
    arrays = (text.sizes, degrees, sources, labels, kinds[features])
    return {name: _small(array) for name, array in zip(KEPT, arrays, strict=True)}


def _neighbours(text: tu_text.Text) -> tuple[np.ndarray, np.ndarray]:
    """How many neighbours each node has, and these, in order and counted in their graph."""
    nodes = text.sizes.sum()
    a, b = text.edges.T
    apart = a != b  # no node has an edge to itself
    pairs, mirrored = _distinct((a * nodes + b)[apart]), _distinct((b * nodes + a)[apart])
    if not np.array_equal(pairs, mirrored):
        pairs = _distinct(np.concatenate((pairs, mirrored)))
    destinations = pairs // nodes
    first = np.repeat(text.sizes.cumsum() - text.sizes, text.sizes)  # node of the same graph
    pairs -= (destinations * nodes) + first[destinations]
    return np.bincount(destinations, minlength=nodes), pairs


def _distinct(values: np.ndarray) -> np.ndarray:
    """Sorted, each once; np.unique would copy them more often."""
    values.sort()
    new = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return values[new]


def _small(values: np.ndarray) -> Tensor:
    largest = values.max(initial=0)
    dtype = next(d for d in (np.uint8, np.int16, np.int32) if largest <= np.iinfo(d).max)
    return torch.from_numpy(values.astype(dtype))


def unpack(name: str, kept: dict[str, Tensor]) -> Graphs:
    """The graphs that :func:`pack` packed."""
    sizes, degrees, sources, labels, kind = (kept[key].long() for key in KEPT)
    offsets = _offsets(sizes)
    edge_offsets = _offsets(degrees)[offsets]
    first = offsets[:-1].repeat_interleave(edge_offsets.diff())
    destinations = torch.arange(len(degrees)).repeat_interleave(degrees)
    return Graphs(
        name=name,
        offsets=offsets,
        edge_index=torch.stack((sources + first, destinations)),
        edge_offsets=edge_offsets,
        labels=labels,
        kind=kind,
        columns=int(kind.max()) + 1,
        classes=int(labels.max()) + 1,
    )


def _offsets(sizes: Tensor) -> Tensor:
    return torch.cat((sizes.new_zeros(1), sizes.cumsum(0)))


def count(kept: dict[str, Tensor]) -> Counts:
    """What there is of everything."""
    classes, columns = (int(kept[key].max()) + 1 for key in ("labels", "kind"))
    edges = len(kept["sources"]) // 2
    return Counts(len(kept["sizes"]), len(kept["degrees"]), edges, classes, columns)


def fingerprint(kept: dict[str, Tensor]) -> str:
    """A checksum of the degrees in each graph of each class, and of how often features occur.

    It does not depend on the order of graphs, nodes and names.
    """
    sizes, degrees, labels = (kept[key].numpy() for key in ("sizes", "degrees", "labels"))
    graph = np.repeat(np.arange(len(sizes)), sizes)
    degrees = degrees[np.lexsort((degrees, graph))].astype("<u4")
    graphs = [_hash(part.tobytes()) for part in np.split(degrees, sizes.cumsum()[:-1])]
    classes = [
        _hash(b"".join(sorted(graphs[i] for i in np.flatnonzero(labels == label))))
        for label in range(labels.max() + 1)
    ]
    features = np.sort(kept["kind"].long().bincount().numpy()).astype("<u8")
    return _hash(b"".join(sorted(classes)) + features.tobytes()).hex()


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
