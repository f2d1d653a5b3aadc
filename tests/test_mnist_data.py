"""MNIST as sets: files that are verified, and sets that are kept beside them."""

import errno
import gzip
import hashlib
import os
import re

import numpy as np
import pytest

from fspool import storage
from fspool.checks import UserError
from fspool.data import idx, mnist
from fspool.data.files import find_root
from fspool.data.mnist import MnistSets
from fspool.experiments.mnist import _on_device
from fspool.experiments.mnist_classification import Classification

from . import data_files, downloads, kept, mnist_sets
from .data_files import put
from .mirror import Mirror, serve
from .mnist_sets import NAMES, check, left, pack, same

pytestmark = pytest.mark.usefixtures("one_thread")

elsewhere = data_files.elsewhere
arrays, packed, root = mnist_sets.arrays, mnist_sets.packed, mnist_sets.root


# --------------------------------------------------------------------------------------------------
# idx files


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (0, 28, 28), (1, 1)])
@pytest.mark.parametrize("form", [bytes, gzip.compress])
@pytest.mark.parametrize("name", ["a", "a.gz"])
def test_arrays_come_back(tmp_path, shape, form, name):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    (tmp_path / name).write_bytes(form(pack(array)))
    got = idx.parse(idx.content(tmp_path / name), len(shape), tmp_path / name)
    assert got.dtype == np.uint8 and got.shape == shape and np.array_equal(got, array)


GOOD = pack(np.zeros((2, 3, 4), np.uint8))  # 16 bytes of header, 24 entries


@pytest.mark.parametrize(
    "content, sentence",
    [
        (b"", "has 0 bytes; expected a header of 16"),
        (GOOD[:15], "has 15 bytes; expected a header of 16"),
        (GOOD[:-1], "has 39 bytes; expected 40 for 2 x 3 x 4 entries"),
        (GOOD[:16], "has 16 bytes; expected 40 for 2 x 3 x 4 entries"),
        (GOOD + b"x", "has 41 bytes; expected 40 for 2 x 3 x 4 entries"),
        (b"<html>" + GOOD, "begins with 0x3c68746d; expected 0x0000, as every idx file"),
        (pack(np.zeros((2, 3, 4), ">f4"), 0x0D), "type code 0x0d; expected 0x08, unsigned bytes"),
        (pack(np.zeros(30, np.uint8)), "has 1 dimensions; expected 3"),
        (b"\0\0\x08\xff" + bytes(2000), "has 255 dimensions; expected 3"),
        (b"\0\0\x08\x03" + b"\xff" * 20, "has 24 bytes; expected 79228162458924105385300197391"),
    ],
)
def test_files_that_are_no_idx_files(content, sentence, tmp_path):
    with pytest.raises(UserError) as error:
        idx.parse(content, 3, tmp_path / "name")
    text = str(error.value)
    assert text.startswith(f"{tmp_path / 'name'} ") and sentence in text
    assert text.endswith(", so fetch it again.")


def test_every_broken_gzip_file_is_noticed(tmp_path):
    path, good = tmp_path / "a.gz", gzip.compress(GOOD, mtime=0)
    broken = [good[:length] for length in range(2, len(good))] + [good + b"x" * 9]
    broken += [good[:i] + bytes([good[i] ^ 0xFF]) + good[i + 1 :] for i in range(10, len(good))]
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(
            UserError, match=rf"{path}, with md5 [0-9a-f]{{32}}, is not a whole gzip file"
        ):
            idx.content(path)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=rf"{tmp_path} cannot be read \(Is a directory\)"):
        idx.content(tmp_path)


# --------------------------------------------------------------------------------------------------
# Where the files are


def test_where_data_is_looked_for(monkeypatch):
    assert str(find_root(None)) == str(find_root("")) == "data"
    monkeypatch.setenv("FSPOOL_DATA", "/some/where")
    assert str(find_root(None)) == "/some/where"
    assert str(find_root("here")) == "here"
    monkeypatch.setenv("FSPOOL_DATA", "")
    assert str(find_root(None)) == "data"


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
@pytest.mark.parametrize("zipped", [True, False, None])
def test_files_are_found_in_every_layout(packed, tmp_path, folder, zipped):
    if zipped is False:
        packed = {n.removesuffix(".gz"): gzip.decompress(data) for n, data in packed.items()}
    elif zipped is None:  # by somebody else's gzip
        packed = {n: gzip.compress(gzip.decompress(data), 1) for n, data in packed.items()}
    put(packed, tmp_path / folder)
    assert mnist.missing(tmp_path) == []
    mnist.verify(tmp_path)
    for split in ("train", "test"):
        check(mnist.load(tmp_path, split), split)
        assert (tmp_path / folder / f"sets-{split}.safetensors").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing(root, name):
    (root / "mnist" / name).unlink()
    split = "train" if name.startswith("train") else "test"
    for call in (lambda: mnist.load(root, split), lambda: mnist.verify(root)):
        with pytest.raises(UserError) as error:
            call()
        assert str(error.value) == (
            f"{name} is not in {root}/mnist, {root}/MNIST/raw or {root}; fetch it by "
            f"fspool data mnist --data {root}, or point --data at a folder that has it."
        )
    assert [source.gz.name for source in mnist.missing(root)] == [name]
    other = "test" if split == "train" else "train"
    check(mnist.load(root, other), other)


def test_no_folder_at_all(packed, tmp_path):
    (tmp_path / "file").touch()
    for root in ("no where", "file", "file/x"):
        with pytest.raises(UserError, match=f"{NAMES[0]} is not in {root}/mnist, ") as error:
            mnist.load(root, "train")
        assert ("--data 'no where'," in str(error.value)) == (root == "no where")


def test_a_split_that_is_not_there(root):
    with pytest.raises(UserError, match="split is 'tset'; .* perhaps 'test'"):
        mnist.load(root, "tset")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_was_altered(root, packed, name, zipped):
    content = bytearray(gzip.decompress(packed[name]))
    wanted = hashlib.sha256(content).hexdigest()
    content[-1] ^= 1
    found = hashlib.sha256(content).hexdigest()
    path = root / "mnist" / name
    if not zipped:
        path.unlink()
        path = path.with_suffix("")
    path.write_bytes(gzip.compress(content) if zipped else content)
    split = "train" if name.startswith("train") else "test"
    for call in (lambda: mnist.load(root, split), lambda: mnist.verify(root)):
        with pytest.raises(UserError) as error:
            call()
        assert str(error.value) == (
            f"{path} is not MNIST's: its content has sha256 {found}; expected {wanted}, "
            f"so remove it and run fspool data mnist --data {root}."
        )
    assert left(root / "mnist") in ([], [path.name])  # nothing was kept


@pytest.mark.parametrize("name", NAMES)
def test_a_run_does_not_begin_with_an_altered_file(root, name):
    cell = Classification(data=str(root))
    cell.check([0])
    for path in (root / "mnist").glob("sets-*"):
        path.unlink()
    (root / "mnist" / name).write_bytes(gzip.compress(b"something else"))
    _on_device.cache_clear()
    with pytest.raises(UserError, match=f"{name} is not MNIST's"):
        cell.check([0])


def test_files_that_changed_places(root):
    train, test = (root / "mnist" / f"{stem}-labels-idx1-ubyte.gz" for stem in ("train", "t10k"))
    train.write_bytes(test.read_bytes())
    with pytest.raises(UserError, match=f"{train} is not MNIST's"):
        mnist.load(root, "train")
    train.write_bytes((root / "mnist" / NAMES[0]).read_bytes())
    with pytest.raises(UserError, match=f"{train} is not MNIST's"):
        mnist.load(root, "train")
    (root / "mnist" / NAMES[0]).write_bytes(b"")
    with pytest.raises(UserError, match="sha256 e3b0.*; expected .* remove it and run fspool data"):
        mnist.load(root, "train")


# --------------------------------------------------------------------------------------------------
# Sets


def test_the_threshold_lies_between_two_integers():
    values = np.arange(256, dtype=np.uint8)
    assert (values > mnist.DARK).tolist() == [value / 255 > 0.1307 for value in range(256)]
    sets = mnist.sets_of(values.reshape(1, 16, 16), np.zeros(1, np.uint8))
    assert len(sets.points) == 222 and sets.points[0].tolist() == [2, 2]  # 34


def test_sets_are_kept_and_come_back_the_same(root, monkeypatch):
    said, made = [], {split: mnist.load(root, split) for split in ("train", "test")}
    check(made["train"], "train")
    check(made["test"], "test")
    assert left(root / "mnist") == ["sets-test.safetensors", "sets-train.safetensors"]

    monkeypatch.setattr(mnist, "sets_of", None)  # not needed any more
    for split, sets in made.items():
        again = mnist.load(str(root), split, said.append)
        assert isinstance(again, MnistSets) and same(again, sets) and not said
        moved = again.to("meta")
        assert isinstance(moved, MnistSets) and {tensor.device.type for tensor in moved} == {"meta"}


@pytest.fixture
def train(root):
    """Load the sets of the split, and check them."""
    return lambda say=print: check(mnist.load(root, "train", say), "train")


@kept.every_spoil
def test_damaged_and_foreign_sets_are_set_aside_and_made_again(root, train, spoil):
    for split in ("train", "test"):
        mnist.load(root, split)
    kept.is_set_aside_and_made_again(root / "mnist" / "sets-train.safetensors", train, spoil)


@pytest.mark.parametrize("what", ["FORMAT", "DARK"])
def test_sets_of_another_version_are_not_used(root, monkeypatch, what):
    said, before = [], mnist.load(root, "train")
    monkeypatch.setattr(mnist, what, 35)
    after = mnist.load(root, "train", said.append)
    assert len(said) == 1 and "was made of other files, or by another version" in said[0]
    assert same(before, after) == (what == "FORMAT")


@kept.every_failure
def test_a_write_that_fails_leaves_nothing(root, train, monkeypatch, call, error):
    path = root / "mnist" / "sets-train.safetensors"
    kept.leaves_nothing_where_it_cannot_be_written(path, train, monkeypatch, call, error)


def test_what_a_killed_process_wrote_does_not_count(root, train):
    kept.does_not_count_before_it_has_its_name(root / "mnist" / "sets-train.safetensors", train)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_folder_that_cannot_be_written(root, monkeypatch, damaged):
    def fail(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    path, said = root / "mnist" / "sets-train.safetensors", []
    if damaged:
        path.write_text("something else")
    monkeypatch.setattr(storage.Path, "rename", fail)
    monkeypatch.setattr(storage.Path, "write_bytes", fail)
    for _ in range(2):
        check(mnist.load(root, "train", said.append), "train")
    assert left(root / "mnist") == [path.name] * damaged and len(said) == 2 * damaged
    assert all("cannot be used" in text and "Read-only" in text for text in said)


def test_sets_that_can_be_neither_read_nor_replaced(root):
    path, said = root / "mnist" / "sets-train.safetensors", []
    (path / "in the way").mkdir(parents=True)
    for _ in range(2):
        check(mnist.load(root, "train", said.append), "train")
    assert len(said) == 2 and said[0].startswith(f"{path} cannot be used (")
    assert said[0].endswith("; the sets are made again.") and left(path.parent) == [path.name]


# --------------------------------------------------------------------------------------------------
# The command


@pytest.fixture
def mirror(packed, monkeypatch):
    with serve(Mirror(dict(packed))) as server:
        monkeypatch.setattr(mnist, "MIRRORS", (server.url,))
        yield server


SIZES = ["train: 5 sets of 0 to 784 elements, ", "test: 3 sets of 0 to 784 elements, "]


def test_the_command_downloads_verifies_and_makes_the_sets(fspool, mirror, tmp_path, monkeypatch):
    code, out, error = fspool("data", "mnist", "--data", "some where")
    first, *rest = out.splitlines()
    assert (code, error) == (0, "")
    assert first == "MNIST in some where: 4 of 4 files downloaded; all checksums are right."
    assert all(line.startswith(sizes) for line, sizes in zip(rest, SIZES, strict=True))
    folder = tmp_path / "some where" / "mnist"
    assert {name for name, _ in mirror.asked} == set(NAMES) == {p.name for p in folder.glob("*gz")}
    assert left(folder) == ["sets-test.safetensors", "sets-train.safetensors"]

    monkeypatch.setenv("FSPOOL_DATA", "some where")
    code, out, _ = fspool("data", "mnist")
    assert code == 0 and out.splitlines()[1:] == rest and len(mirror.asked) == 4
    assert out.startswith("MNIST in some where: everything is there already; all checksums are")


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
def test_only_what_is_missing_is_downloaded_to_where_the_rest_is(fspool, mirror, packed, folder):
    *some, last = packed
    put({name: packed[name] for name in some}, find_root("data") / folder)
    code, out, _ = fspool("data", "mnist")
    assert code == 0 and "1 of 4 files downloaded" in out and mirror.asked == [(last, None)]
    assert (find_root("data") / folder / last).read_bytes() == packed[last]


def test_the_command_in_a_terminal_has_bars(fspool, mirror, monkeypatch):
    downloads.has_bars(fspool, monkeypatch, mirror, "mnist")


def test_the_command_names_altered_files_and_touches_none(fspool, root, mirror):
    path = root / "mnist" / NAMES[2]
    path.write_bytes(gzip.compress(pack(np.zeros((3, 28, 28), np.uint8))))
    before = path.read_bytes()
    code, out, error = fspool("data", "mnist", "--data", root)
    assert code == 1 and out == "" and re.match(f"{path} is not MNIST's: .* expected ", error)
    assert path.read_bytes() == before and left(root / "mnist") == [] and mirror.asked == []


def test_the_command_offline(fspool, mirror):
    downloads.says_that_it_is_offline(fspool, mirror, NAMES[0], "mnist")


def test_a_wrong_download_is_told_and_not_kept(fspool, mirror, tmp_path):
    mirror.files[NAMES[1]] = mirror.files[NAMES[1]][::-1]
    folder = tmp_path / "data" / "mnist"
    downloads.refuses_another_file(fspool, folder, NAMES[:1], "mnist")


def test_ctrl_c_while_it_downloads(fspool, mirror, monkeypatch):
    downloads.goes_on_after_ctrl_c(fspool, monkeypatch, mnist, "mnist")


# --------------------------------------------------------------------------------------------------
# The real thing

DATA = os.environ.get("FSPOOL_DATA")
LABEL_COUNTS = {
    "train": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "test": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
}
STATISTICS = {"train": (60000, 133.13, 38.8, 32, 342), "test": (10000, 134.35, 38.9, 40, 290)}


@pytest.fixture
def real(tmp_path):
    """Links in a folder of our own: nothing is written beside the files themselves."""
    if not DATA or mnist.missing(find_root(DATA)):
        pytest.skip("FSPOOL_DATA is not a folder with MNIST in it")
    (tmp_path / "mnist").mkdir()
    for source in (source for pair in mnist.SOURCES.values() for source in pair):
        path = mnist._path(find_root(DATA), source).absolute()
        (tmp_path / "mnist" / path.name).symlink_to(path)
    return tmp_path


def test_the_published_files(real):
    mnist.verify(real)
    for split, (count, mean, deviation, least, most) in STATISTICS.items():
        sets = mnist.load(real, split)
        sizes = sets.offsets.diff()
        assert len(sizes) == count and (sizes.min(), sizes.max()) == (least, most)
        assert round(sizes.double().mean().item(), 2) == mean
        assert round(sizes.double().std().item(), 1) == deviation
        assert sets.labels.bincount().tolist() == LABEL_COUNTS[split]
        assert sets.points.shape == (sizes.sum(), 2) and sets.points.max() <= 27
        assert same(mnist.load(real, split), sets)
    assert left(real / "mnist") == ["sets-test.safetensors", "sets-train.safetensors"]
    assert all((real / "mnist" / name).is_symlink() for name in NAMES)


def test_the_published_archives_are_those_that_are_downloaded(real):
    for source in (source for pair in mnist.SOURCES.values() for source in pair):
        path = real / "mnist" / source.gz.name
        if path.exists():  # somebody may have unzipped them
            content = path.read_bytes()
            assert len(content) == source.gz.size
            assert hashlib.md5(content).hexdigest() == source.gz.checksum
