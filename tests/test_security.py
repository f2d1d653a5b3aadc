"""Nothing that is read can run, fill the memory, leave its folder, or become part of a page."""

import ast
import gzip
import json
import zipfile
import zlib
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from fspool import report, storage
from fspool.checks import UserError
from fspool.data import idx, mnist, tu_sources
from fspool.data.clevr import records
from fspool.data.clevr.image_files import read_image
from fspool.data.tu_files import Archive
from fspool.report.page import page

from .folders import PROVENANCE, flat, write_all, write_plan, write_run
from .fuzz.readers import picture
from .fuzz.running import limits

REPOSITORY = Path(__file__).parents[1]

# --------------------------------------------------------------------------------------------------
# No code comes out of a file

FORBIDDEN_MODULES = {
    *("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "yaml", "marshal", "shelve"),
    *("tarfile", "pty", "xmlrpc"),
}
FORBIDDEN_CALLS = {
    *("torch.load", "torch.save", "np.load", "numpy.load", "np.save", "pd.read_pickle"),
    *("torch.jit.load", "torch.hub.load", "torch.package.PackageImporter"),
    *("eval", "exec", "os.system", "shutil.unpack_archive"),
}
FORBIDDEN_METHODS = {"extractall", "extract", "read_pickle", "to_pickle"}
FORBIDDEN_METHODS |= {"broadcast_object_list", "all_gather_object", "gather_object"}  # they pickle
FORBIDDEN_KEYWORDS = {"allow_pickle", "shell"}


def dangers(text: str) -> list[str]:
    """What a source does that could run something out of a file."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.append(node.module)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found += [name] * (name in FORBIDDEN_CALLS)
            found += [f".{name}"] * (name.rpartition(".")[2] in FORBIDDEN_METHODS and "." in name)
            found += [k.arg for k in node.keywords if k.arg in FORBIDDEN_KEYWORDS]
    modules = {name for name in found if name and name.partition(".")[0] in FORBIDDEN_MODULES}
    return sorted(
        modules | {name for name in found if name in FORBIDDEN_CALLS | FORBIDDEN_KEYWORDS}
    )


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "import yaml.reader",
        "x = torch.load(path, weights_only=True)",
        "np.load(file, allow_pickle=True)",
        "eval(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_the_search_finds_what_it_is_for(text):
    assert dangers(text)
    assert not dangers("import json\nmodel.eval()\nre.compile('x')\njson.load(file)")


@pytest.mark.parametrize("folder", ["src", "benchmarks", "examples", "tools", "docs"])
def test_no_source_unpickles_extracts_or_runs_what_it_reads(folder):
    sources = sorted((REPOSITORY / folder).rglob("*.py"))
    assert sources
    found = {str(path): dangers(path.read_text()) for path in sources}
    assert {path: names for path, names in found.items() if names} == {}


# --------------------------------------------------------------------------------------------------
# Archives and compressed files


def test_a_link_in_an_archive_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("1, 2\n")
    link = zipfile.ZipInfo("X_A.txt")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, str(secret))
    with Archive(tmp_path / "a.zip").open("X_A.txt") as file:
        assert file.read() == str(secret).encode()  # where it points, as text; nothing is opened
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "secret"]


def test_an_idx_file_that_unpacks_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(idx, "LARGEST", 1000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(1000)))
    assert len(idx.content(path)) == 1000
    path.write_bytes(gzip.compress(bytes(1 << 20)))
    with pytest.raises(UserError, match=r"unpacks to more than 1000 bytes; expected fewer, so"):
        idx.content(path)


def test_space_without_end_in_a_record_file(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LARGEST", 1 << 12)
    monkeypatch.setattr(records, "PIECE", 1 << 8)
    path = tmp_path / "a.json"
    path.write_bytes(gzip.compress(b'{"scenes": [' + b" " * (1 << 16) + b"]}"))
    with pytest.raises(UserError, match="4096 characters of space; expected whole JSON, so"):
        list(records.records(path, "scenes"))


def test_a_picture_that_says_it_is_very_large(tmp_path):
    content = bytearray(picture())
    content[16:24] = (1 << 30).to_bytes(4, "big") * 2
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(UserError, match="1073741824 x 1073741824 pixels; expected 480 x 320"):
        read_image(tmp_path / "a.png")


def test_a_picture_that_asks_for_too_much_memory(tmp_path):
    content = bytearray(picture())
    data = content.index(b"IDAT")
    content[data - 4] = 0x80  # the first byte of its length
    (tmp_path / "a.png").write_bytes(content)
    with limits(), pytest.raises(UserError, match=r"cannot be read \(MemoryError\); fetch it"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize(
    "counts, sentence",
    [
        ({"shape": [2, 1 << 40], "zlib": ""}, "counts of at most"),
        (
            {"shape": [2], "zlib": b64encode(zlib.compress(bytes(1 << 24))).decode()},
            "counts in their shapes",
        ),
    ],
)
def test_counts_that_unpack_to_too_much(tmp_path, counts, sentence):
    write_run(tmp_path / "runs", "fspool-n2", [0], flat(0.5, 1))
    report.compact(report.collect(tmp_path / "runs"), tmp_path / "a.json")
    data = storage.read_json(tmp_path / "a.json")
    data["cells"][0]["tallies"] = {"right": counts}
    storage.write_json(tmp_path / "a.json", data)
    with pytest.raises(UserError, match=sentence):
        report.collect(tmp_path / "a.json")


# --------------------------------------------------------------------------------------------------
# Downloads


def test_whatever_is_downloaded_is_known_by_its_content():
    sources = [source for split in mnist.SOURCES.values() for source in split]
    assert all(len(source.sha256) == 64 and source.gz.checksum for source in sources)
    assert all(len(source.content) == 64 for source in tu_sources.SOURCES.values())
    mirrors = [*mnist.MIRRORS, *(m for s in tu_sources.SOURCES.values() for m in s.mirrors)]
    assert mirrors and all(mirror.startswith("https://") for mirror in mirrors)


# --------------------------------------------------------------------------------------------------
# Pages

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"' onmouseover='alert(1)",
    "</title></style></svg><b>",
    "<!--",
    "]]>&lt;b&gt;",
    "`; rm -rf ~ `",
    "javascript:alert(1)",
)


class Structure(HTMLParser):
    """Tags with the names of their attributes, and all text, as a browser sees them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.data = [], [], []
        self.in_data = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, tuple(name for name, _ in attributes)))
        self.in_data = ("type", "application/json") in attributes
        self.texts += [value for _, value in attributes if value]

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")
        self.in_data = False

    def handle_comment(self, text):
        self.tags.append("comment")

    def handle_data(self, text):
        (self.data if self.in_data else self.texts).append(text)


def collected(folder, name):
    """Runs of which all that a user may name, names of files included, has this name."""
    inner = name.replace("/", "∕")  # which the name of a folder cannot have
    write_all(folder, sizes=(2, 4), seeds=2)
    origin = PROVENANCE | {"device": name, "commit": name, "date": name, "versions": {name: name}}
    write_run(folder, f"{inner}-n4", [0, 1], flat(0.3, 2) | {name: [1.0, 2.0]}, provenance=origin)
    write_run(folder, f"{inner}-late-n4", [0, 1], {}, finished=False)
    broken = write_run(folder, f"{inner}-broken-n4", [0], flat(0.3, 1))
    (broken / "result.json").write_text(name)
    for config in folder.glob("*/*/config.json"):
        data = storage.read_json(config)
        data["cell"] |= {"dtype": name, name: name} if "-n4" in str(config) else {}
        storage.write_json(config, data)
    write_plan(folder, ["fspool-n2", name], 2)
    plan = storage.read_json(folder / "plan.json")
    storage.write_json(folder / "plan.json", plan | {"options": {f"--set {name}": 2}})
    return report.collect(folder)


@pytest.fixture(scope="module")
def tame(tmp_path_factory):
    return Structure(page(collected(tmp_path_factory.mktemp("tame") / "runs", "tame")))


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_changes_what_a_page_is_made_of(tmp_path, tame, name):
    runs = collected(tmp_path / "runs", name)
    report.compact(runs, tmp_path / "a.json")
    for found in (runs, report.collect(tmp_path / "a.json")):
        shown = Structure(page(found))
        assert [tag for tag in shown.tags if tag != "comment"] == tame.tags
        assert "comment" not in shown.tags
        assert any(name in text for text in shown.texts)  # it is shown as it is
        for text in shown.data:
            json.loads(text)


def test_what_a_page_may_load_is_nothing(tame):
    policy = next(text for text in tame.texts if "default-src" in text)
    assert policy.startswith("default-src 'none'") and "http" not in policy


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_markup_in_the_markdown(tmp_path, name):
    text = report.markdown.markdown(collected(tmp_path / "runs", name))
    outside = "".join(text.split("`")[::2])  # commands stand in code
    assert not any(sign in outside for sign in ("<script", "<img", "<b>", "<!--"))


def test_a_file_of_torch_is_refused(tmp_path):
    """The one reader of tensors takes nothing that may hold code."""
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    with pytest.raises(storage.Damaged):
        storage.read_tensors(tmp_path / "a.pt")
