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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from quietgrad.errors import SampleMixingError


def check_independence(
    model: nn.Module, args: Any, kwargs: dict[str, Any], splits: Sequence[tuple[Tensor, Tensor]]
) -> None:
    """Refuse a model whose outputs for some samples change when other samples are replaced.

    ``splits`` are halves of the batch; each half is replaced once. Says nothing where it cannot
    tell: arguments or outputs in which no dimension has the size of the batch.
    """
    batch = len(splits[0][0])
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    # Where two dimensions have that size, one of them must do.
    dims = sorted({dim for leaf in leaves for dim in _sample_dims(leaf, batch)})
    if dims and all(_is_mixed(model, args, kwargs, splits, dim) for dim in dims):
        raise SampleMixingError(
            f"samples are mixed: outputs of the model ({type(model).__name__}) for some samples "
            "changed when other samples of the batch were replaced. Its forward computes something "
            "across the batch: statistics (also detached ones), a cache of earlier samples, or an "
            "operation over the batch dimension. Compute it per sample, or from public data kept "
            "in buffers."
        )


def _is_mixed(
    model: nn.Module,
    args: Any,
    kwargs: dict[str, Any],
    splits: Sequence[tuple[Tensor, Tensor]],
    preferred: int,
) -> bool:
    batch = len(splits[0][0])
    opened = _open_gates(model)

    def outputs(samples: Tensor) -> list[Any]:
        chosen_args, chosen_kwargs = tree_map(
            lambda leaf: _choose(leaf, batch, samples, preferred), (args, kwargs)
        )
        with undisturbed(model):
            if not opened:
                return tree_leaves(model(*chosen_args, **chosen_kwargs))
            return tree_leaves(functional_call(model, opened, chosen_args, chosen_kwargs))

    unchanged = torch.arange(batch)
    before = outputs(unchanged)
    for kept in (half for halves in splits for half in halves):
        after = outputs(torch.where(kept, unchanged, unchanged[kept][0]))
        index = kept.nonzero().flatten()
        if any(_differs(*pair, index, batch) for pair in zip(before, after, strict=False)):
            return True
    return False


def _choose(leaf: Any, batch: int, samples: Tensor, preferred: int) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    dims = _sample_dims(leaf, batch)
    if not dims:
        return leaf.clone()
    return leaf.index_select(preferred if preferred in dims else dims[0], samples.to(leaf.device))


def _differs(old: Any, new: Any, kept: Tensor, batch: int) -> bool:
    if not isinstance(old, Tensor) or not isinstance(new, Tensor) or old.shape != new.shape:
        return False
    dims, index = _sample_dims(old, batch), kept.to(old.device)
    return bool(dims) and not any(
        _agree(old.index_select(dim, index), new.index_select(dim, index)) for dim in dims
    )


def _agree(left: Tensor, right: Tensor) -> bool:
    if not left.is_floating_point():
        return torch.equal(left, right)
    # Kernels may round differently for other values elsewhere in the batch, but hardly more.
    tolerance = float(torch.finfo(left.dtype).eps ** 0.75)
    left, right = left.double(), right.double()
    scale = left.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
    return torch.allclose(left, right, atol=tolerance * scale, rtol=0, equal_nan=True)


def _sample_dims(tensor: Tensor, batch: int) -> list[int]:
    return [dim for dim, size in enumerate(tensor.shape) if size == batch]


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
