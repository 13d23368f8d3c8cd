"""One small file per family of operations; importing this package registers all rules."""

from quietgrad.capture.rules import (
    attention,
    convolution,
    elementwise,
    embedding,
    linear,
    normalization,
    recurrent,
    selection,
)

__all__ = [
    "attention",
    "convolution",
    "elementwise",
    "embedding",
    "linear",
    "normalization",
    "recurrent",
    "selection",
]
