"""Pictures in files, brought to one size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad.errors import DataError, MissingExtraError


def pictures(paths: Sequence[Path], size: int) -> Tensor:
    """Bytes ``[N, 3, size, size]``: the largest square in the middle of each, scaled.

    Raises:
        DataError: one of them is no picture.
    """
    try:
        from PIL import Image, ImageOps  # an extra: only when needed
    except ImportError as error:
        raise MissingExtraError("pillow", "recipes") from error
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size={size!r}: expected a whole number of pixels, at least 1")
    result = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for place, path in enumerate(paths):
        try:
            with Image.open(path, formats=("JPEG", "PNG")) as picture:
                square = ImageOps.fit(picture.convert("RGB"), (size, size))
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be read as a JPEG or PNG picture: {error}") from error
        result[place] = torch.from_numpy(np.array(square)).permute(2, 0, 1)
    return result
