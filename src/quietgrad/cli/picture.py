"""Files for pictures: complained about before any work is done, written after."""

from pathlib import Path
from typing import Any

from quietgrad.cli.failures import Refusal
from quietgrad.plots import require_matplotlib

_ENDINGS = (".png", ".svg", ".pdf")


def require_drawable(file: Path) -> None:
    """Complain about what would only fail after the work is done.

    Raises:
        ValueError: such a file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    if file.suffix.lower() not in _ENDINGS:
        raise ValueError(f"--plot {file}: expected a name that ends in {', '.join(_ENDINGS)}")
    if not file.parent.is_dir():
        raise ValueError(f"--plot {file}: there is no folder {file.parent}")
    require_matplotlib()


def write_figure(figure: Any, file: Path) -> None:
    """Write a matplotlib figure."""
    try:
        figure.savefig(file)
    except OSError as error:
        raise Refusal(f"--plot {file}: {error.strerror}") from error
