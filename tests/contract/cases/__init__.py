"""Small models, one for every way in which parameters meet data; importing fills the table."""

from . import (
    attention,
    checkpointing,
    contraction,
    convolution,
    derived,
    elementwise,
    embedding,
    fallback,
    latents,
    layout,
    linear,
    normalization,
    ragged,
    recurrent,
    selection,
    sharing,
)
from .table import CASES, Case, Problem, precision

__all__ = [
    "CASES",
    "Case",
    "Problem",
    "attention",
    "checkpointing",
    "contraction",
    "convolution",
    "derived",
    "elementwise",
    "embedding",
    "fallback",
    "latents",
    "layout",
    "linear",
    "normalization",
    "precision",
    "ragged",
    "recurrent",
    "selection",
    "sharing",
]
