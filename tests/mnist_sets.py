"""MNIST that was made up: few digits, in files of the published names."""

import gzip
import hashlib

import numpy as np
import pytest
import torch

from fspool.data import mnist
from fspool.data.download import Wanted

from .data_files import put

NAMES = [source.gz.name for sources in mnist.SOURCES.values() for source in sources]
LABELS = {"train": [3, 0, 9, 9, 1], "test": [7, 2, 0]}


def pack(array, code=0x08, zeros=b"\0\0"):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return zeros + bytes([code, array.ndim]) + sizes + array.tobytes()


def small_images(split):
    """Few images, with an empty one, a full one, and many values around the threshold."""
    draw = np.random.default_rng(len(split))
    images = draw.integers(30, 38, (len(LABELS[split]), 28, 28), dtype=np.uint8)
    images[0], images[1] = 0, 255
    return images


@pytest.fixture
def arrays():
    return {
        f"{stem}-{name}-ubyte.gz": array
        for split, stem in (("train", "train"), ("test", "t10k"))
        for name, array in (
            ("images-idx3", small_images(split)),
            ("labels-idx1", np.array(LABELS[split], np.uint8)),
        )
    }


@pytest.fixture
def packed(arrays, monkeypatch):
    """Small files in place of the published ones, by name, and their checksums."""
    contents = {name: pack(array) for name, array in arrays.items()}
    files = {name: gzip.compress(content, mtime=0) for name, content in contents.items()}

    def small(source):
        content, file = contents[source.gz.name], files[source.gz.name]
        wanted = Wanted(source.gz.name, len(file), hashlib.md5(file).hexdigest())
        return source._replace(gz=wanted, sha256=hashlib.sha256(content).hexdigest())

    sources = {split: tuple(map(small, pair)) for split, pair in mnist.SOURCES.items()}
    monkeypatch.setattr(mnist, "SOURCES", sources)
    return files


@pytest.fixture
def root(packed, tmp_path):
    put(packed, tmp_path / "root" / "mnist")
    return tmp_path / "root"


def same(a, b):
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


def check(sets, split):
    """Against the plainest way to make them."""
    lists = [
        [[row, column] for row in range(28) for column in range(28) if image[row, column] > 33]
        for image in small_images(split)
    ]
    points = torch.tensor([point for points in lists for point in points], dtype=torch.uint8)
    offsets = torch.tensor([0] + [len(points) for points in lists]).cumsum(0)
    labels = torch.tensor(LABELS[split], dtype=torch.uint8)
    assert same(sets, (points, offsets, labels))


def left(folder):
    """What is there besides the files themselves."""
    return sorted(path.name for path in folder.iterdir() if path.name not in NAMES)
