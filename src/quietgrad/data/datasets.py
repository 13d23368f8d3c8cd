"""The table of data sets, and `load`. A new data set is added to the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

from quietgrad._checks import unknown_name
from quietgrad.data import adult, images, movielens, text
from quietgrad.data.cache import fetched_file
from quietgrad.data.records import (
    AnyData,
    ImageData,
    PairData,
    RatingData,
    RawText,
    TableData,
    TextData,
    require_sound,
)
from quietgrad.data.sources import FOLDERS, no_package, note_place, own_folder
from quietgrad.data.text import E2eTraining, MnliTest
from quietgrad.errors import DataError

FROM_PACKAGE: Mapping[str, Callable[[Path], AnyData]] = {
    "mnist": images.mnist_from_package,
    "fashion-mnist": images.fashion_mnist_from_package,
    "cifar10": images.cifar10_from_package,
    "imdb": text.imdb_from_package,
    "wikitext-2": text.wikitext_2_from_package,
    "adult": adult.from_package,
    "movielens": movielens.from_package,
}
FROM_FOLDER: Mapping[str, Callable[..., AnyData]] = {
    "mnist": images.mnist_from_folder,
    "fashion-mnist": images.mnist_from_folder,
    "cifar10": images.cifar10_from_folder,
    "imdb": text.imdb_from_folder,
    "wikitext-2": text.wikitext_2_from_folder,
    "adult": adult.from_folder,
    "movielens": movielens.from_folder,
    "sst2": partial(text.glue_from_folder, task=text.SST2),
    "qnli": partial(text.glue_from_folder, task=text.QNLI),
    "qqp": partial(text.glue_from_folder, task=text.QQP),
    "mnli": text.mnli_from_folder,
    "e2e": text.e2e_from_folder,
    "svhn": images.svhn_from_folder,
    "cifar100": images.cifar100_from_folder,
    "imagenette": images.imagenette_from_folder,
    "celeba": images.celeba_from_folder,
}
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "mnli": ("test",),
    "e2e": ("train",),
    "imagenette": ("size",),
    "celeba": ("size", "attribute"),
}

Images = Literal["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"]
Texts = Literal["imdb", "sst2", "qnli", "qqp"]
Folder = str | Path | None


@overload
def load(name: Images, folder: Folder = None) -> ImageData: ...
@overload
def load(name: Literal["imagenette"], folder: Folder = None, *, size: int = 128) -> ImageData: ...
@overload
def load(
    name: Literal["celeba"], folder: Folder = None, *, size: int = 64, attribute: str = "Smiling"
) -> ImageData: ...
@overload
def load(name: Texts, folder: Folder = None) -> TextData: ...
@overload
def load(
    name: Literal["mnli"], folder: Folder = None, *, test: MnliTest = "matched"
) -> TextData: ...
@overload
def load(name: Literal["adult"], folder: Folder = None) -> TableData: ...
@overload
def load(name: Literal["movielens"], folder: Folder = None) -> RatingData: ...
@overload
def load(
    name: Literal["e2e"], folder: Folder = None, *, train: E2eTraining = "trainset"
) -> PairData: ...
@overload
def load(name: Literal["wikitext-2"], folder: Folder = None) -> RawText: ...
@overload
def load(name: str, folder: Folder = None, **options: Any) -> Any: ...


def load(name: str, folder: Folder = None, **options: Any) -> AnyData:
    """A data set, from a folder or from the cache.

    Args:
        name: of the data set.
        folder: with its usual files. None for ``$QUIETGRAD_DATA/<name>`` if there is such a
            folder, and what `fetch` has brought otherwise.
        options: ``size`` of the images of imagenette and celeba, ``attribute`` of celeba,
            ``test="mismatched"`` for mnli, ``train="devset"`` for e2e.

    Raises:
        DataError: it is not there, cannot be read, or its test records are training records.
        ValueError: there is no data set of that name, or it does not know the option.
    """
    if name not in FROM_FOLDER:
        raise unknown_name("data set", name, FROM_FOLDER)
    known = OPTIONS.get(name, ())
    unknown = [option for option in options if option not in known]
    if unknown:
        takes = f"takes {', '.join(known)}" if known else "takes no options"
        raise ValueError(f"{name} does not take {', '.join(unknown)}: it {takes}")
    chosen = Path(folder) if folder is not None else own_folder(name)
    if chosen is not None:
        found = FROM_FOLDER[name](chosen, **options)
    elif name in FOLDERS:
        raise DataError(no_package(FOLDERS[name]))
    else:
        found = FROM_PACKAGE[name](fetched_file(name))
    require_sound(found, name if chosen is None else f"{name} in {chosen}")
    note_place(name, chosen)
    return found
