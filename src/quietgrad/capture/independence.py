"""Whether a model treats its samples independently: replace some, and the others must not notice.

Probes (see ``layout``) find mixing through gradients, down to the last bit, but only above the
first trainable parameter and only where gradients flow. This looks at the forward itself: half of
the samples are replaced by copies of another one, and the outputs of the rest are compared. It
finds batch statistics on the raw input, detached ones, and anything done to integer ids.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from quietgrad.capture.layout import Placement
from quietgrad.errors import SampleMixingError


@dataclass(frozen=True)
class ModelCall:
    """One call of a model (or of a part of it, by the user), to be repeated with other samples."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: torch.dtype | None

    @staticmethod
    def recorded(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModelCall:
        """The call as it is made now, with the precision in force."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        return ModelCall(model, args, kwargs, dtype)

    def outputs(self, choose: Callable[[Any], Any], opened: dict[str, Tensor]) -> list[Any]:
        """The outputs for other arguments; the model is left as it was."""
        args, kwargs = tree_map(choose, (self.args, self.kwargs))
        precision = torch.autocast("cpu", self.autocast, enabled=self.autocast is not None)
        with undisturbed(self.model), precision:
            if not opened:
                return tree_leaves(self.model(*args, **kwargs))
            return tree_leaves(functional_call(self.model, opened, args, kwargs))


def check_independence(call: ModelCall, splits: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Refuse a model whose outputs for some samples change when other samples are replaced.

    ``splits`` are halves of the batch; each half is replaced once. Says nothing where it cannot
    tell: arguments or outputs in which no dimension can hold the samples.
    """
    batch = len(splits[0][0])
    leaves = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor)]
    # Where the samples could be in several places, one of them must do.
    places = dict.fromkeys(place for leaf in leaves for place in _places(leaf, batch))
    if places and all(_is_mixed(call, splits, place) for place in places):
        raise SampleMixingError(
            f"samples are mixed: outputs of the model ({type(call.model).__name__}) for some "
            "samples changed when other samples of the batch were replaced. Its forward computes "
            "something across the batch: statistics (also detached ones), a cache of earlier "
            "samples, or an operation over the batch dimension. Compute it per sample, or from "
            "public data kept in buffers."
        )


def _is_mixed(
    call: ModelCall, splits: Sequence[tuple[Tensor, Tensor]], preferred: Placement
) -> bool:
    unchanged = torch.arange(len(splits[0][0]))
    opened = _open_gates(call.model)
    before = call.outputs(partial(_choose, samples=unchanged, preferred=preferred), opened)
    for kept in (half for halves in splits for half in halves):
        samples = torch.where(kept, unchanged, unchanged[kept][0])
        after = call.outputs(partial(_choose, samples=samples, preferred=preferred), opened)
        index = kept.nonzero().flatten()
        if any(_differs(*pair, index, len(kept)) for pair in zip(before, after, strict=False)):
            return True
    return False


def _choose(leaf: Any, samples: Tensor, preferred: Placement) -> Any:
    """An argument with sample ``i`` replaced by ``samples[i]``."""
    if not isinstance(leaf, Tensor):
        return leaf
    places = _places(leaf, len(samples))
    if not places:
        return leaf.clone()
    return _select(leaf, samples, preferred if preferred in places else places[0], len(samples))


def _differs(old: Any, new: Any, kept: Tensor, batch: int) -> bool:
    if not isinstance(old, Tensor) or not isinstance(new, Tensor) or old.shape != new.shape:
        return False
    places = _places(old, batch)
    return bool(places) and not any(
        _agree(_select(old, kept, place, batch), _select(new, kept, place, batch))
        for place in places
    )


def _select(tensor: Tensor, samples: Tensor, place: Placement, batch: int) -> Tensor:
    """The rows of some samples, in their order."""
    each = tensor.shape[place.dim] // batch
    rows = torch.arange(each * batch).view((batch, each) if place.major else (each, batch))
    chosen = rows[samples] if place.major else rows[:, samples]
    return tensor.index_select(place.dim, chosen.flatten().to(tensor.device))


def _places(tensor: Tensor, batch: int) -> list[Placement]:
    """Where the samples could be; dimensions of exactly their number come first."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size and size % batch == 0]
    exact = [Placement(dim, True) for dim in dims if tensor.shape[dim] == batch]
    folded = [dim for dim in dims if tensor.shape[dim] != batch]
    return exact + [Placement(dim, major) for dim in folded for major in (True, False)]


def _agree(left: Tensor, right: Tensor) -> bool:
    if not left.is_floating_point():
        return torch.equal(left, right)
    # Kernels may round differently for other values elsewhere in the batch, but hardly more.
    tolerance = float(torch.finfo(left.dtype).eps ** 0.75)
    left, right = left.double(), right.double()
    scale = left.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    return torch.allclose(left, right, atol=tolerance * scale, rtol=0, equal_nan=True)


@contextmanager
def _same_randomness() -> Iterator[None]:
    """Dropout and the like draw the same in every run, and the generators are left as they were."""
    states: list[tuple[Callable[[Any], Any], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002  models draw from it
        (random.setstate, random.getstate()),
    ]
    try:
        yield
    finally:
        for restore, state in states:
            restore(state)


def _open_gates(model: nn.Module) -> dict[str, Tensor]:
    """Random values for parameters that are still all zero, behind which mixing would hide."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(p.shape, generator=generator).to(p)
        for name, p in model.named_parameters()
        if p.requires_grad and not p.any()
    }


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Runs of the model in here leave no trace: neither in generators nor in buffers."""
    held = [(m, name, b) for m in model.modules() for name, b in m._buffers.items()]
    saved = [(module, name, b, None if b is None else b.clone()) for module, name, b in held]
    try:
        with torch.no_grad(), _same_randomness():
            yield
    finally:
        for module, name, buffer, value in saved:
            module._buffers[name] = buffer
            # Writing one that autograd has saved is an error.
            if buffer is not None and value is not None and not torch.equal(buffer, value):
                buffer.copy_(value)
