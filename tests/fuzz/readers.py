"""Every reader of files, with valid files to start from and what must hold of what it returns."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from rich.console import Console

from fspool import storage
from fspool.checks import UserError
from fspool.data import idx, mnist, tu, tu_text
from fspool.data.clevr import compact as clevr_compact
from fspool.data.clevr.image_files import read_image
from fspool.data.clevr.question_files import read_questions
from fspool.data.clevr.records import records
from fspool.data.clevr.scene_files import read_scenes
from fspool.data.clevr.vocabulary import OBJECTS
from fspool.data.tu_files import Archive, Folder
from fspool.experiments.polygons import Polygons
from fspool.lab.launch import Job, Options, perform
from fspool.lab.plans import write_plan as write_a_plan
from fspool.lab.runs import RunFolder
from fspool.report.collect import collect
from fspool.report.compact import compact
from fspool.report.markdown import markdown
from fspool.report.page import page
from fspool.report.terminal import render_terminal

from ..clevr import block, write_split
from ..folders import flat, write_plan, write_run
from ..tu_sets import TWO, as_gin, as_tu, zipped
from .mutations import VALUES, changed, mutated

Files = dict[str, bytes]


@dataclass(frozen=True)
class Reader:
    """``files`` draws the content of a folder, ``read`` reads it and checks what it gets."""

    name: str
    files: st.SearchStrategy[Files]
    read: Callable[[Path], None]
    errors: tuple[type[Exception], ...] = (UserError,)


def one_of_them(files: Files, change=mutated) -> st.SearchStrategy[Files]:
    """Valid files, one of them changed."""
    return st.sampled_from(sorted(files)).flatmap(
        lambda name: change(files[name]).map(lambda content: files | {name: content})
    )


# --------------------------------------------------------------------------------------------------
# MNIST


def idx_file(shape: tuple[int, ...]) -> bytes:
    header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
    return header + bytes(range(int(np.prod(shape))))


@st.composite
def idx_files(draw) -> Files:
    content = draw(mutated(idx_file((2, 3, 4))) | st.binary(max_size=40))
    if draw(st.booleans()):
        content = gzip.compress(content, mtime=0)
        content = draw(mutated(content) | st.just(content))
    return {"a": content}


def read_idx(folder: Path) -> None:
    array = idx.parse(idx.content(folder / "a"), 3, folder / "a")
    assert array.ndim == 3 and array.dtype == np.uint8


# --------------------------------------------------------------------------------------------------
# Graphs


def graphs_hold(graphs: tu.Graphs) -> None:
    nodes, edges = int(graphs.offsets[-1]), graphs.edge_index
    assert graphs.offsets[0] == 0 and (graphs.offsets.diff() >= 0).all()
    assert (
        len(graphs.kind) == nodes and 0 <= graphs.kind.min() <= graphs.kind.max() < graphs.columns
    )
    assert not edges.numel() or 0 <= edges.min() <= edges.max() < nodes
    assert 0 <= graphs.labels.min() <= graphs.labels.max() < graphs.classes
    assert graphs.edge_offsets[-1] == edges.shape[1] and len(graphs.offsets) == len(graphs) + 1


def read_graphs(place: Callable[[Path], Folder | Archive], folder: Path) -> None:
    for features in ("label", "degree"):
        text = tu_text.read(place(folder), "X", features == "label")
        graphs_hold(tu.unpack("X", tu.pack(text, features)))


@st.composite
def made_archives(draw) -> Files:
    """Members with any names, texts damaged or not."""
    files = draw(one_of_them(as_tu("X", TWO)) | one_of_them(as_gin("X", TWO)))
    method = draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA]))
    inside = draw(st.sampled_from(["", "X/", "../", "/", "a/b/", "C:"]) | st.text(max_size=3))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in files.items():
            info = zipfile.ZipInfo((inside + name).encode(errors="replace").decode())
            info.external_attr = draw(st.sampled_from([0, 0o120777 << 16]))  # perhaps a link
            archive.writestr(info, content, method)
    return {"a.zip": buffer.getvalue()}


def archives() -> st.SearchStrategy[Files]:
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    valid = [zipped(as_tu("X", TWO), "X/", method) for method in methods]
    broken = st.sampled_from(valid).flatmap(mutated) | st.binary(max_size=60)
    return broken.map(lambda content: {"a.zip": content}) | made_archives()


# --------------------------------------------------------------------------------------------------
# CLEVR


@cache
def clevr_files() -> Files:
    with tempfile.TemporaryDirectory() as folder:
        write_split(Path(folder), made=block(3))
        return {
            f"{key}.json": (Path(folder) / key / f"CLEVR_train_{key}.json").read_bytes()
            for key in ("scenes", "questions")
        }


def as_json(tree: object) -> bytes:
    return json.dumps(tree).encode()


def damaged_json(content: bytes) -> st.SearchStrategy[bytes]:
    tree = json.loads(content)
    made = mutated(content) | changed(tree).map(as_json) | VALUES.map(as_json)
    return made | made.map(lambda content: gzip.compress(content, mtime=0))


def read_records(folder: Path) -> None:
    assert all(isinstance(record, dict) for record in records(folder / "scenes.json", "scenes"))


def scenes_hold(scenes) -> None:
    count = len(scenes.sizes)
    assert all(len(tensor) == count for tensor in scenes) and count
    assert 0 < scenes.sizes.min() <= scenes.sizes.max() <= OBJECTS
    assert scenes.coords.isfinite().all() and scenes.pixels.isfinite().all()
    assert (scenes.attributes[scenes.mask] > 0).all() and not scenes.attributes[~scenes.mask].any()
    assert (scenes.relations >= 0).all()


def questions_hold(questions, scenes) -> None:
    count = len(questions.answers)
    assert count and len(questions.offsets) == count + 1 and (questions.offsets.diff() > 0).all()
    assert questions.offsets[0] == 0 and questions.offsets[-1] == len(questions.words)
    assert 0 <= questions.scene.min() <= questions.scene.max() < len(scenes.sizes)
    assert questions.words.min() > 0


def read_scene_file(folder: Path) -> None:
    scenes_hold(read_scenes(folder / "scenes.json"))


def read_question_file(folder: Path) -> None:
    scenes = read_scenes(folder / "scenes.json")
    questions_hold(
        read_questions(folder / "questions.json", scenes, folder / "scenes.json"), scenes
    )


def questions_alone(files: Files) -> st.SearchStrategy[Files]:
    return damaged_json(files["questions.json"]).map(lambda made: files | {"questions.json": made})


@cache
def picture() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.zeros((320, 480, 3), np.uint8) + 90).save(buffer, "png")
    return buffer.getvalue()


def read_picture(folder: Path) -> None:
    image = read_image(folder / "a.png")
    assert image.shape == (3, 320, 480) and image.dtype == torch.uint8


# --------------------------------------------------------------------------------------------------
# What is kept: tensors with notes and a checksum. A file may be right in form and say anything.


@st.composite
def other_tensors(draw, tensors: dict, notes: dict) -> bytes:
    """The same checksum rules, other tensors and notes."""
    made = dict(tensors)
    for name in draw(st.lists(st.sampled_from(sorted(tensors)), max_size=2, unique=True)):
        made[name] = draw(_other_tensor(tensors[name]))
    if draw(st.integers(0, 9)) == 0:
        made.pop(draw(st.sampled_from(sorted(made))))
    notes = draw(changed(notes) | st.just(notes))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        storage.write_tensors(path, made, notes if isinstance(notes, dict) else {"notes": notes})
        return path.read_bytes()


def _other_tensor(tensor: torch.Tensor) -> st.SearchStrategy[torch.Tensor]:
    ways = [
        lambda t: t[:-1] if t.ndim and len(t) else t,
        lambda t: t.double(),
        lambda t: t.flatten(),
        lambda t: t[None],
        lambda t: t[:0] if t.ndim else t,
        lambda t: torch.full_like(t, 120),
        lambda t: -t if t.dtype not in (torch.bool, torch.uint8) else t,
        lambda t: t.flip(0) if t.ndim else t,
    ]
    return st.sampled_from(ways).map(lambda way: way(tensor).contiguous())


def kept_bytes(tensors: dict, notes: dict) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        storage.write_tensors(Path(folder) / "a", tensors, notes)
        return (Path(folder) / "a").read_bytes()


def kept_file(name: str, tensors: dict, notes: dict) -> st.SearchStrategy[Files]:
    made = mutated(kept_bytes(tensors, notes)) | other_tensors(tensors, notes)
    return made.map(lambda content: {name: content})


def any_tensors() -> st.SearchStrategy[Files]:
    tensors = {"a": torch.ones(2, 3), "b": torch.tensor([True]), "c": torch.tensor(3)}
    return kept_file("a", tensors, {"step": 3}) | headers().map(lambda content: {"a": content})


@st.composite
def headers(draw) -> bytes:
    """Any header before any bytes."""
    valid = kept_bytes({"a": torch.ones(2)}, {"step": 1})
    size = int.from_bytes(valid[:8], "little")
    header = as_json(draw(changed(json.loads(valid[8 : 8 + size]))))
    length = draw(st.just(len(header)) | st.integers(0, 1 << 63))
    return length.to_bytes(8, "little") + header + draw(st.just(valid[8 + size :]) | st.binary())


def read_tensors(folder: Path) -> None:
    tensors, notes = storage.read_tensors(folder / "a")
    assert isinstance(notes, dict) and all(isinstance(t, torch.Tensor) for t in tensors.values())


def checked_json(tree: object) -> bytes:
    """With the checksum of a good writer, whatever it says."""
    tree = tree if isinstance(tree, dict) else {"a": tree}
    tree = json.loads(json.dumps(storage.plain(tree)))
    return json.dumps({**tree, storage.KEY: storage.digest(tree)}).encode()


def rewritten(content: bytes) -> st.SearchStrategy[bytes]:
    """Of a JSON file with a checksum: other bytes, or other content with the right checksum."""
    tree = json.loads(content)
    tree.pop(storage.KEY, None)
    return changed(tree).map(checked_json) | mutated(content)


def read_json(folder: Path) -> None:
    assert isinstance(storage.read_json(folder / "a"), dict)


@cache
def mnist_sets() -> mnist.MnistSets:
    images = np.random.default_rng(0).integers(0, 255, (3, 28, 28), dtype=np.uint8)
    return mnist.sets_of(images, np.arange(3, dtype=np.uint8))


def read_mnist_cache(folder: Path) -> None:
    """Whatever was kept, the sets are those of the files."""
    root = folder / "root"
    root.mkdir()
    sources = mnist.SOURCES["test"]
    for source in sources:
        (root / source.names[0]).write_bytes(b"")
    shutil.copy(folder / "a", root / "sets-test.safetensors")
    real, mnist._read = mnist._read, lambda root, source: None
    make, mnist.sets_of = mnist.sets_of, lambda *_: mnist_sets()
    try:
        sets = mnist.load(root, "test", lambda text: None)
    finally:
        mnist._read, mnist.sets_of = real, make
    count = len(sets.labels)
    assert sets.points.dtype == torch.uint8 and sets.points.shape[1:] == (2,)
    assert len(sets.offsets) == count + 1 and sets.offsets[-1] == len(sets.points)
    assert (sets.offsets.diff() >= 0).all() and sets.points.max() < 28 and sets.labels.max() < 10


def mnist_notes() -> dict:
    digests = [source.sha256 for source in mnist.SOURCES["test"]]
    return {"format": mnist.FORMAT, "dark": mnist.DARK, "sources": digests}


@cache
def packed_graphs() -> tuple[dict, dict]:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in as_tu("MUTAG", TWO).items():
            (Path(folder) / name).write_bytes(content)
        place = Folder(Path(folder))
        notes = {"format": tu.FORMAT, "name": "MUTAG"}
        notes["source"] = place.digest(tu_text.files_of(place, "MUTAG", True))
        return tu.pack(tu_text.read(place, "MUTAG", True), "label"), notes


def read_graph_cache(folder: Path) -> None:
    for name, content in as_tu("MUTAG", TWO).items():
        (folder / name).write_bytes(content)
    verify, tu._verify = tu._verify, lambda *_: None
    try:
        graphs_hold(tu.load(folder, "MUTAG", lambda text: None))
    finally:
        tu._verify = verify


@cache
def clevr_kept() -> dict:
    with tempfile.TemporaryDirectory() as folder:
        write_split(Path(folder), made=block(3))
        return clevr_compact.pack(clevr_compact.load(folder, "train", lambda text: None))


def read_clevr_cache(folder: Path) -> None:
    """A twin without its files."""
    data = clevr_compact.load(folder, "train", lambda text: None)
    scenes_hold(data.scenes)
    questions_hold(data.questions, data.scenes)


# --------------------------------------------------------------------------------------------------
# Run folders, as the laboratory and as the report read them


CELL = Polygons(points=2, batch=2, steps=64, evaluation_sets=4)


@cache
def reported() -> Files:
    """Two cells of two seeds, one of which is not finished, and a plan."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        write_run(out, "fspool-n2", [0, 1], flat(0.5, 2))
        write_run(out, "mlp-chamfer-n2", [0, 1], flat(0.5, 2))
        write_run(out, "fspool-n4", [0, 1], {}, finished=False)
        write_plan(out, ["fspool-n2", "mlp-chamfer-n2", "fspool-n4"], 2)
        return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def change_by_name(files: Files) -> st.SearchStrategy[Files]:
    def change(name: str) -> st.SearchStrategy[bytes]:
        return rewritten(files[name]) if name.endswith(".json") else mutated(files[name])

    chosen = st.lists(st.sampled_from(sorted(files)), min_size=1, max_size=2, unique=True)
    return chosen.flatmap(
        lambda names: st.fixed_dictionaries({name: change(name) for name in names})
    ).map(lambda new: files | new)


def show(collection) -> None:
    """Tables on a terminal and in Markdown."""
    render_terminal(collection, Console(file=io.StringIO(), width=100))
    markdown(collection).encode()


PLAN = {"experiment": "polygons", "preset": "quick", "seeds": 2, "cells": ["a"], "options": {"": 2}}


def add_to_a_plan(folder: Path) -> None:
    """Whatever the plan of earlier commands looks like, this one's is in the new one."""
    write_a_plan(folder, PLAN, False, lambda text: None)
    assert "a" in storage.read_json(folder / "plan.json")["cells"]


def read_runs(folder: Path) -> None:
    show(collect(folder))


def read_runs_for_a_page(folder: Path) -> None:
    text = page(collect(folder)).encode()
    assert b"<script>" not in text.partition(b"<script>")[2].partition(b"</script>")[2]


@cache
def compact_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in reported().items():
            path = Path(folder) / "runs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        compact(collect(Path(folder) / "runs"), Path(folder) / "a.json")
        return (Path(folder) / "a.json").read_bytes()


def read_compact_file(folder: Path) -> None:
    show(collect(folder / "a.json"))


def read_compact_file_for_a_page(folder: Path) -> None:
    page(collect(folder / "a.json")).encode()


@cache
def begun() -> Files:
    """A run folder with states, as a killed process leaves it."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job("polygons", "a", replace(CELL, steps=128), (0, 1), Path(folder) / "run")

        class Killed(BaseException):
            pass

        def post(event) -> None:
            if event.kind == "evaluate":
                raise Killed

        try:
            perform([job], Options(save_every=0), post)
        except Killed:
            pass
        return {path.name: path.read_bytes() for path in job.path.iterdir()}


def state_files() -> st.SearchStrategy[Files]:
    files = begun()
    name = max(name for name in files if name.startswith("state-"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").write_bytes(files[name])
        tensors, notes = storage.read_tensors(Path(folder) / "a")
    other = other_tensors(tensors, notes).map(lambda content: files | {name: content})
    return other | change_by_name(files)


def go_on(folder: Path) -> None:
    """The run goes on to its result, or says why not; never with a trace."""
    said = []
    job = Job("polygons", "a", replace(CELL, steps=128), (0, 1), folder)
    failed = perform([job], Options(), lambda event: said.append(event))
    texts = [event.text for event in said if event.kind in ("say", "failed")]
    assert not any("Traceback" in text for text in texts), texts
    if failed:
        raise UserError(texts[-1])
    assert RunFolder(folder, lambda text: None).finished


# --------------------------------------------------------------------------------------------------


def readers() -> list[Reader]:
    damaged = (storage.Damaged,)
    as_zip = partial(read_graphs, lambda folder: Archive(folder / "a.zip"))
    clevr, notes = clevr_files(), {"format": 1, "words": 1, "sources": []}
    packed = packed_graphs()
    valid = checked_json({"seeds": [0, 1], "loss": 0.25, "a": {"b": None}})
    return [
        Reader("idx", idx_files(), read_idx),
        Reader("TU text", one_of_them(as_tu("X", TWO)), partial(read_graphs, Folder)),
        Reader("GIN text", one_of_them(as_gin("X", TWO)), partial(read_graphs, Folder)),
        Reader("TU archives", archives(), as_zip),
        Reader("CLEVR records", one_of_them(clevr, damaged_json), read_records),
        Reader("CLEVR scenes", one_of_them(clevr, damaged_json), read_scene_file),
        Reader("CLEVR questions", questions_alone(clevr), read_question_file),
        Reader("CLEVR pictures", one_of_them({"a.png": picture()}), read_picture),
        Reader(
            "CLEVR compact form",
            kept_file("compact-train.safetensors", clevr_kept(), notes),
            read_clevr_cache,
        ),
        Reader(
            "MNIST sets", kept_file("a", mnist_sets()._asdict(), mnist_notes()), read_mnist_cache
        ),
        Reader("TU graphs", kept_file("graphs-MUTAG.safetensors", *packed), read_graph_cache),
        Reader("JSON files", rewritten(valid).map(lambda c: {"a": c}), read_json, damaged),
        Reader("safetensors files", any_tensors(), read_tensors, damaged),
        Reader("run folders to go on", state_files(), go_on),
        Reader(
            "plans", rewritten(checked_json(PLAN)).map(lambda c: {"plan.json": c}), add_to_a_plan
        ),
        Reader("run folders, tables", change_by_name(reported()), read_runs),
        Reader("run folders, page", change_by_name(reported()), read_runs_for_a_page),
        Reader(
            "results, tables",
            rewritten(compact_file()).map(lambda c: {"a.json": c}),
            read_compact_file,
        ),
        Reader(
            "results, page",
            rewritten(compact_file()).map(lambda c: {"a.json": c}),
            read_compact_file_for_a_page,
        ),
    ]
