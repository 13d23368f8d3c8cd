"""What every data set must be: not empty, labels in step with records, tests held out."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from tests.data.test_data import idx, pixels

from quietgrad import data
from quietgrad.data.records import require_sound
from quietgrad.errors import DataError


def mnist(folder, *, train=64, tests=32, labels=None, side=28, label=None):
    """The four idx files; `label` is that of every training image."""
    whole = pixels(train + tests, side, side)
    numbers = np.arange(train if labels is None else labels) % 10 if label is None else label
    files = {
        "train-images-idx3": whole[:train],
        "train-labels-idx1": np.full(train if labels is None else labels, numbers, np.uint8),
        "t10k-images-idx3": whole[train:],
        "t10k-labels-idx1": (np.arange(tests) % 10).astype(np.uint8),
    }
    for name, array in files.items():
        (folder / f"{name}-ubyte").write_bytes(idx(array))
    return folder


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"label": 200}, r"train-labels-idx1-ubyte has label 200: expected 0 to 9"),
        ({"side": 20}, r"train-images-idx3-ubyte has images of 20x20 pixels: expected 28x28"),
        ({"labels": 60}, r"train-labels-idx1-ubyte has 60 labels: expected 64"),
        ({"train": 0}, r"train-images-idx3-ubyte has no images"),
        ({"tests": 0}, r"t10k-images-idx3-ubyte has no images"),
    ],
)
def test_wrong_idx_files_are_named(tmp_path, changed, said):
    for name in ("mnist", "fashion-mnist"):
        with pytest.raises(DataError, match=said):
            data.load(name, mnist(tmp_path, **changed))


def test_images_in_place_of_labels(tmp_path):
    images = (mnist(tmp_path) / "train-images-idx3-ubyte").read_bytes()
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(images)
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte .*2051, .*expected 2049"):
        data.load("mnist", tmp_path)


def test_copies_of_training_files_are_no_test_files(tmp_path):
    mnist(tmp_path)
    assert len(data.load("mnist", tmp_path).test_labels) == 32
    for kind in ("images-idx3", "labels-idx1"):
        shutil.copy(tmp_path / f"train-{kind}-ubyte", tmp_path / f"t10k-{kind}-ubyte")
    with pytest.raises(DataError, match=r"64 of 64 test records are training records"):
        data.load("mnist", tmp_path)


def images(train, test):
    """Each number is an image; labels do not count."""
    made = [torch.tensor(each, dtype=torch.uint8).view(-1, 1, 1, 1) for each in (train, test)]
    return data.ImageData(
        made[0], torch.zeros(len(train)).long(), made[1], torch.ones(len(test)).long()
    )


def table(train, test):
    made = [torch.tensor(each).float()[:, None] for each in (train, test)]
    codes = [torch.zeros(len(each), 1).long() for each in made]
    labels = [torch.zeros(len(each)).long() for each in made]
    sides = zip(made, codes, labels, strict=True)
    return data.TableData(*next(sides), *next(sides), ("x",), ("y",), (1,))


def texts(train, test):
    words = [[str(number) for number in each] for each in (train, test)]
    labels = [torch.zeros(len(each)).long() for each in words]
    return data.TextData(words[0], labels[0], words[1], labels[1], ("a",))


def text_pairs(train, test):
    made = texts([0] * len(train), [0] * len(test))
    return dataclasses.replace(
        made, train_pairs=[str(n) for n in train], test_pairs=[str(n) for n in test]
    )


def meanings(train, test):
    said = [str(number) for number in test]
    return data.PairData(["x"] * len(train), [str(n) for n in train], ["x"] if said else [], [said])


def running_text(train, test):
    joined = ["\n\n".join(f" {number}" for number in each) for each in (train, test)]
    return data.RawText(joined[0], "", joined[1])


KINDS = [images, table, texts, text_pairs, meanings, running_text]


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_half_of_the_tests_must_be_other_records(kind):
    require_sound(kind([1, 2, 3, 4], [5, 6, 7, 8]), "it")
    with pytest.warns(UserWarning, match="it: 2 of 4 test records are training records"):
        require_sound(kind([1, 2, 3, 4], [1, 2, 7, 8]), "it")  # real data has some of these
    for test in ([1, 2, 3, 8], [4, 3, 2, 1], [1], [2, 2, 9]):
        with pytest.raises(DataError, match=r"it: \d of \d test .*without noise"):
            require_sound(kind([1, 2, 3, 4], test), "it")


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_learn_from_or_to_measure_with(kind):
    with pytest.raises(DataError, match=r"it has no training .*expected at least one"):
        require_sound(kind([], [1]), "it")
    with pytest.raises(DataError, match=r"it has no test .*expected at least one"):
        require_sound(kind([1], []), "it")


def test_labels_are_as_many_as_records():
    whole = images([1, 2, 3], [4, 5])
    for changed in ({"train_labels": torch.zeros(2)}, {"test_labels": torch.zeros(3)}):
        with pytest.raises(DataError, match=r"it has [32] images and [32] labels for"):
            require_sound(dataclasses.replace(whole, **changed), "it")
