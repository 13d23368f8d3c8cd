"""What a trial was made with, besides its settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from quietgrad._version import __version__
from quietgrad.recipes.recipe import Places


@dataclass(frozen=True)
class Origin:
    """Data, model and program of a trial: trials of different origin say nothing of each other.

    Attributes:
        smoke: made data and a small model.
        data: where the data were taken from: folders, or packages with their digests.
        data_dir: the folder that was given for them.
        model_dir: the folder that was given for a pretrained model.
        quietgrad: the version.
    """

    smoke: bool = False
    data: tuple[str, ...] = ()
    data_dir: str | None = None
    model_dir: str | None = None
    quietgrad: str = __version__

    @classmethod
    def of(cls, places: Places, data: Sequence[str], *, smoke: bool) -> "Origin":
        """Of trials that are made now.

        Args:
            places: folders that were given.
            data: where the data were taken from.
            smoke: whether data and model are made.
        """
        return cls(smoke, tuple(data), _in_full(places.data), _in_full(places.model))

    @classmethod
    def from_dict(cls, stated: object) -> "Origin":
        """As it was written down.

        Raises:
            ValueError: it is none.
        """
        names = {each.name for each in fields(cls)}
        if not isinstance(stated, Mapping) or set(stated) != names or not _is_origin(stated):
            raise ValueError(f"origin={stated!r}: expected {', '.join(sorted(names))}")
        return cls(**{**stated, "data": tuple(stated["data"])})

    @property
    def may_be_unstated(self) -> bool:
        """Whether trials that were kept without an origin count: nothing else was asked for."""
        return not self.smoke and self.data_dir is None and self.model_dir is None


def _is_origin(stated: Mapping[str, Any]) -> bool:
    data = stated["data"]
    return (
        isinstance(stated["smoke"], bool)
        and isinstance(data, list | tuple)
        and all(isinstance(each, str) for each in data)
        and all(isinstance(stated[name], str | None) for name in ("data_dir", "model_dir"))
        and isinstance(stated["quietgrad"], str)
    )


def _in_full(folder: Path | None) -> str | None:
    return None if folder is None else str(folder.resolve())
