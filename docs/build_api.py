"""Build the API reference from docstrings: python docs/build_api.py FOLDER (see `make docs`)."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pdoc

import quietgrad

# `quietgrad` brings the packages that it names; the others are public beside it.
MODULES = ("quietgrad", "quietgrad.noise", "quietgrad.recipes", "quietgrad.report")
# A function may have the name of its file: the file needs no page of its own.
_NOT_FILES = r"!quietgrad\.\w+\.\w+"


def build(folder: Path) -> None:
    """Write one page for each public package.

    Args:
        folder: for the pages; made if it is not there.
    """
    for module in _public_modules():
        _load_names(module)
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__.startswith("quietgrad."):
                _adopt_members(value)
    pdoc.render.configure(
        docformat="google", show_source=False, footer_text=f"quietgrad {quietgrad.__version__}"
    )
    pdoc.pdoc(*MODULES, _NOT_FILES, output_directory=folder)


def _public_modules() -> Iterator[ModuleType]:
    for name in MODULES:
        yield import_module(name)
    for name in quietgrad.__all__:
        if isinstance(value := getattr(quietgrad, name), ModuleType):
            yield value


def _load_names(module: ModuleType) -> None:
    """Put names that are loaded on first use where pdoc looks for them."""
    for name in getattr(module, "__all__", ()):
        setattr(module, name, getattr(module, name))


def _adopt_members(cls: type) -> None:
    """Show what a class has from bases of ours as its own: the bases have no page."""
    for base in cls.__mro__[1:]:
        if base.__module__.startswith("quietgrad."):
            for name, member in vars(base).items():
                if not name.startswith("_") and name not in vars(cls):
                    setattr(cls, name, member)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
