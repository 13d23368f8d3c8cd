"""Watching what enters the model, so that mixing before the first parameter is seen too.

A model that subtracts the batch mean from its input has no parameter below that operation, and so
nothing whose gradient could show it. When samples are to be verified, the input itself is made to
receive gradients: those of one sample's loss must vanish on every other sample's input.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from quietgrad.capture.layout import SiteKey
from quietgrad.capture.tap import tap_output
from quietgrad.capture.tape import Site, Tape


def leading_size(values: Any) -> int | None:
    """The first dimension of the first tensor: most likely the number of samples."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.ndim)
    return next((tensor.shape[0] for tensor in tensors), None)


def watch_inputs(tape: Tape, values: Any) -> Any:
    """``values`` with every floating-point tensor of samples replaced by a watched copy."""
    return tree_map(lambda leaf: _watched(tape, leaf), values)


def watch_lookup(tape: Tape, path: str, ids: Tensor, output: Tensor) -> Tensor:
    """The output of a frozen embedding: the first floating-point form of a sample's ids."""
    if tape.is_constant(ids) or not _has_samples(tape, ids):
        return output
    site = _site(tape, SiteKey(path, "embedding", "", 0, "", output.ndim), output)
    return tap_output(output, tape.token, site, ())


def _watched(tape: Tape, leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or not _has_samples(tape, leaf):
        return leaf
    site = _site(
        tape, SiteKey("", "model input", "", 0, str(tuple(leaf.shape[1:])), leaf.ndim), leaf
    )
    return tap_output(leaf.clone(), tape.token, site, ())


def _has_samples(tape: Tape, tensor: Tensor) -> bool:
    """Exactly one dimension has the batch's size; a square table of positions is left alone."""
    return sum(size == tape.batch_hint for size in tensor.shape) == 1


def _site(tape: Tape, key: SiteKey, tensor: Tensor) -> Site:
    return Site(tape, key, tensor.shape, range(tensor.ndim), ())
