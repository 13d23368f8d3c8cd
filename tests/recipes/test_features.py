"""Features that are kept: of these images and these weights, whole, or computed anew."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import quietgrad as qg
from quietgrad.errors import DataError
from quietgrad.recipes import Places
from quietgrad.recipes.features import Extractor, _resnet18_features, feature_split


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QUIETGRAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def places(tmp_path):
    """A CIFAR-10 of five training images and two for tests."""
    rows = np.random.default_rng(0).integers(0, 10, (7, 3073)).astype(np.uint8)
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for number in range(5):
        (folder / f"data_batch_{number + 1}.bin").write_bytes(rows[number].tobytes())
    (folder / "test_batch.bin").write_bytes(rows[5:].tobytes())
    return Places(folder)


class Counting:
    """Means of each image's channels; knows how often it was asked."""

    def __init__(self, kind="means"):
        self.kind, self.calls = kind, 0

    def __call__(self):
        return Extractor(self.kind, self.extract)

    def extract(self, images):
        self.calls += 1
        return images.float().mean((2, 3))


def train_features(places, means):
    return feature_split("cifar10", means)(places).train.tensors[0]


def kept(cache):
    """The file of the training images' features."""
    files = (cache / "features").iterdir()
    return next(path for path in files if len(load_file(path)["features"]) == 5)


def test_features_are_computed_once(cache, places, capsys):
    means = Counting()
    first = train_features(places, means)
    assert first.shape == (5, 3)
    assert means.calls == 2  # for training and for tests
    assert torch.equal(train_features(places, means), first)
    assert means.calls == 2
    assert "anew" not in capsys.readouterr().err
    assert len(list((cache / "features").iterdir())) == 2
    train_features(places, Counting("others"))
    assert len(list((cache / "features").iterdir())) == 4


def constant(path):
    save_file({"features": torch.ones(5, 3).half()}, path)


def constant_with_what_was_said(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        said = file.metadata()
    save_file({"features": torch.ones(5, 3).half()}, path, said)


def fewer_rows(path):
    save_file({"features": load_file(path)["features"][:4].clone()}, path)


def fewer_columns(path):
    save_file({"features": load_file(path)["features"][:, :2].clone()}, path)


def of_other_images(path):
    other = next(each for each in path.parent.iterdir() if each != path)
    path.write_bytes(other.read_bytes())


def cut(path):
    path.write_bytes(path.read_bytes()[:-9])


def another_tensor(path):
    save_file({"weights": torch.ones(1)}, path)


DAMAGES = [
    constant,
    constant_with_what_was_said,
    fewer_rows,
    fewer_columns,
    of_other_images,
    cut,
    another_tensor,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_computed_anew(cache, places, capsys, damage):
    whole = train_features(places, Counting())
    path = kept(cache)
    damage(path)
    capsys.readouterr()
    means = Counting()
    assert torch.equal(train_features(places, means), whole)
    assert means.calls == 1
    told = " ".join(capsys.readouterr().err.split())
    assert f"{path.name}" in told
    assert "computed anew" in told
    train_features(places, means)
    assert means.calls == 1


@pytest.mark.parametrize("place", ["", "features"])
def test_a_cache_that_is_a_file(cache, places, place):
    (cache / place).parent.mkdir(exist_ok=True)
    (cache / place).write_text("")
    means = Counting()
    with pytest.raises(DataError, match=r"cannot be made.*QUIETGRAD_CACHE"):
        train_features(places, means)
    assert means.calls == 0


def test_features_that_cannot_be_kept_are_used(cache, places, capsys):
    whole = train_features(places, Counting())
    path = kept(cache)
    path.unlink()
    path.mkdir()
    assert torch.equal(train_features(places, Counting()), whole)
    assert "cannot be kept" in " ".join(capsys.readouterr().err.split())


def test_one_row_for_each_image(cache, places):
    def too_few():
        return Extractor("too-few", lambda images: images[:-1].float().flatten(1))

    with pytest.raises(ValueError, match=r"'too-few' made 4 rows of features of 5 images"):
        train_features(places, too_few)


def test_other_weights_make_other_features(tmp_path, monkeypatch):
    kinds = []
    for seed in (1, 2, 1):
        folder = tmp_path / str(len(kinds)) / "resnet18"
        folder.mkdir(parents=True)
        torch.manual_seed(seed)
        torch.save(qg.nn.resnet18().state_dict(), folder / "resnet18.pth")
        monkeypatch.setenv("QUIETGRAD_DATA", str(folder.parent))
        kinds.append(_resnet18_features().kind)
    assert kinds[0] == kinds[2] != kinds[1]
