"""Data sets by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, overload

from quietgrad._names import unknown_name
from quietgrad.data.e2e import E2eTraining
from quietgrad.data.fetching import fetched_file
from quietgrad.data.folder_only import FOLDERS, no_package
from quietgrad.data.folders import own_folder
from quietgrad.data.glue import MnliTest
from quietgrad.data.kinds import AnyData, ImageData, PairData, RawText, TableData, TextData
from quietgrad.data.places import note_place
from quietgrad.data.readers import FROM_FOLDER, FROM_PACKAGE, OPTIONS
from quietgrad.data.soundness import require_sound
from quietgrad.errors import DataError

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
    _require_known(name, options)
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


def _require_known(name: str, options: dict[str, Any]) -> None:
    if name not in FROM_FOLDER:
        raise unknown_name("data set", name, FROM_FOLDER)
    known = OPTIONS.get(name, ())
    unknown = [option for option in options if option not in known]
    if unknown:
        takes = f"takes {', '.join(known)}" if known else "takes no options"
        raise ValueError(f"{name} does not take {', '.join(unknown)}: it {takes}")
