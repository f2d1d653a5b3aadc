"""``fspool doctor``: versions, kernels, disks and packages."""

import shutil
from collections import namedtuple
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from fspool import __version__
from fspool.cli import doctor
from fspool.functional import dispatch

from .doctor import findings

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def lines(fspool, monkeypatch):
    """The findings by name: state and text."""
    return lambda *arguments, code=0: dict(findings(fspool, monkeypatch, *arguments, code=code))


def test_what_is_here(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = lines()
    assert found["fspool"] == ("ok", __version__) and found["torch"] == ("ok", torch.__version__)
    state, text = found["kernels cpu"]
    assert state == "ok" and text.startswith(f"{len(dispatch.registered('cpu'))} operators")
    assert found["disk, runs"][0] == "ok" and str(tmp_path) in found["disk, runs"][1]
    assert found["lab"][0] == "ok" and "safetensors" in found["lab"][1]


def test_a_gpu(lines, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"GPU {i}")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert lines()["CUDA"] == ("ok", "13.0: GPU 0, GPU 1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    state, text = lines()["CUDA"]
    assert state == "missing" and "nvidia-smi" in text
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without it" in lines()["CUDA"][1]


def test_kernels_that_fail_or_are_wrong(lines, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def fail(device):
        if device == "cuda":
            raise RuntimeError("no driver\nand more")
        return 0.5

    monkeypatch.setattr(dispatch, "registered", lambda device: ["pool"])
    monkeypatch.setattr(doctor, "_error_of_pool", fail)
    found = lines(code=1)
    assert found["kernels cpu"] == ("wrong", "the pool is off by 5e-01; set FSPOOL_KERNELS=0.")
    assert found["kernels cuda"] == ("wrong", "the pool fails (no driver); set FSPOOL_KERNELS=0.")


def test_kernels_that_do_not_run(lines, monkeypatch):
    monkeypatch.setattr(dispatch, "registered", lambda device: [])
    assert lines()["kernels cpu"][0] == "missing"
    monkeypatch.setattr(dispatch, "OFF", True)
    assert "FSPOOL_KERNELS=0 is set" in lines()["kernels cpu"][1]


def test_a_disk_that_is_full(lines, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, 1e9))
    state, text = lines()["disk, data"]
    assert state == "missing" and text.startswith("1 GB free in /") and "make room" in text


def test_packages_that_are_not_installed(lines, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", absent)
    found = lines()
    for extra in ("lab", "pyg", "ray"):
        state, text = found[extra]
        assert state == "missing" and text.endswith(f"pip install '.[{extra}]' in a clone")
    assert found["tensorboard"][0] == found["Triton"][0] == "missing"


def test_triton_without_a_compiler(lines, monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "3.6.0")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert lines()["Triton"] == ("missing", "3.6.0 finds no C compiler; install gcc or clang.")
