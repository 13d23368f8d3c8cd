"""The version of this package: one place, read by the build too."""

import platform
from importlib.metadata import PackageNotFoundError, version

__version__ = "0.1.0"


_PACKAGES = ("torch", "numpy", "scipy", "dp-accounting")


def versions_here() -> dict[str, str]:
    """Of this process: quietgrad, Python, and the packages that privacy rests on."""
    found = {"quietgrad": __version__, "python": platform.python_version()}
    return found | {name: _version_of(name) for name in _PACKAGES}


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
