"""Computation on parameters alone, which runs unchanged.

The result (weight standardization, weight_norm, parametrizations, transposes, slices, low-rank
products) is an ordinary tensor with an autograd graph that ends at the tape's entries. A rule that
later uses it gives the factor of the result, and :class:`quietgrad.factors.Pulled` takes it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map

from quietgrad.capture.call import (
    Call,
    Derived,
    Lookup,
    ParameterTarget,
    Target,
    aligned_sizes,
)
from quietgrad.capture.operations import classify, leave_transforms
from quietgrad.errors import UnsupportedOperationError

if TYPE_CHECKING:
    from quietgrad.capture.tape import Tape


def derive(
    call: Call,
    tape: Tape,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    managed: list[tuple[Tensor, Target]],
) -> Any:
    """Run an operation on parameters and constants alone; its results are managed tensors."""
    if call.writes_in_place and managed[0][0] is args[0]:
        raise call.refuse(
            "a tensor computed from trainable parameters is changed in place",
            "Use the out-of-place operation",
            args[0],
        )
    if _is_tiled_over_samples(call.function, args, tape.batch):
        return call.source(args[0], (tape.batch, *args[0].shape)).flatten(0, 1)
    output, sources = run_on_entries(call, tape, args, kwargs, managed)
    lookup = _lookup(call.function, args, kwargs, managed)
    # What becomes complex has more gradient than comes back.
    is_alike = not isinstance(output, Tensor) or output.is_complex() == managed[0][0].is_complex()
    template = Derived(
        torch.empty(0, device="cpu"),
        sources,
        isometric=is_alike and _is_isometric(call.function, args, managed, lookup),
        lookups=_lookups(managed) + (() if lookup is None else (lookup.ids,)),
        lookup=lookup,
        broadcast_from=_broadcast_source(call.function, args, output),
        is_chosen=any(isinstance(g, Derived) and g.is_chosen for _, g in managed),
    )
    return tree_map(lambda leaf: _register(tape, leaf, template), output)


def run_on_entries(
    call: Call,
    tape: Tape,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    managed: list[tuple[Tensor, Target]],
) -> tuple[Any, dict[str, Tensor]]:
    """The result, with a graph that ends at the tape's entries, and these by parameter."""
    sources, replaced = _entries(tape, managed)
    inner_args, inner_kwargs = tree_map(lambda leaf: replaced.get(id(leaf), leaf), (args, kwargs))
    # Kept out of activation checkpointing: pulling back must not trigger a recomputation.
    with torch.enable_grad(), saved_tensors_hooks(_with_version, _if_unchanged):
        return call.function(*inner_args, **inner_kwargs), sources


def derive_complex(tape: Tape, name: str, parameter: Tensor) -> Derived:
    """A complex parameter, as computed from its real and imaginary parts, which are clipped."""
    known = tape.derived(parameter)
    if known is None:
        with leave_transforms(), torch.enable_grad():
            entry = tape.entry(name, parameter)
            known = Derived(torch.view_as_complex(entry), {name: entry}, isometric=True)
        tape.add_derived(known, known_as=parameter)
    return known


def _entries(
    tape: Tape, managed: list[tuple[Tensor, Target]]
) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
    sources: dict[str, Tensor] = {}
    replaced: dict[int, Tensor] = {}
    for tensor, target in managed:
        if isinstance(target, Derived):
            sources.update(target.sources)
            replaced[id(tensor)] = target.tensor  # of a complex parameter, not itself
        elif isinstance(target, ParameterTarget):
            replaced[id(tensor)] = sources[target.name] = tape.entry(target.name, tensor)
    return sources, replaced


def _register(tape: Tape, leaf: Any, template: Derived) -> Any:
    if not isinstance(leaf, Tensor) or tape.derived(leaf) is not None:
        return leaf  # perhaps what the operation was given: moved to where it is
    if not leaf.requires_grad:
        tape.provenance.note([leaf], constant=True)
        return leaf
    return tape.add_derived(replace(template, tensor=leaf))


def _is_isometric(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    managed: list[tuple[Tensor, Target]],
    lookup: Lookup | None,
) -> bool:
    if len(managed) != 1:
        return False
    target = managed[0][1]
    if isinstance(target, Derived) and not target.isometric:
        return False
    if function is Tensor.__getitem__:
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(p is None or p is Ellipsis or type(p) in (int, slice) for p in parts)
    if lookup is not None:
        return lookup.padding is None  # and if ids are distinct, see `Derived`
    return classify(function).is_isometric


def _lookups(managed: list[tuple[Tensor, Target]]) -> tuple[Tensor, ...]:
    return tuple(ids for _, g in managed if isinstance(g, Derived) for ids in g.lookups)


def _lookup(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    managed: list[tuple[Tensor, Target]],
) -> Lookup | None:
    if function is not F.embedding or len(managed) != 1:
        return None
    given = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | kwargs
    table, padding = managed[0][0], given.get("padding_idx")
    if given["weight"] is not table:
        return None
    return Lookup(table, given["input"], None if padding is None else padding % table.shape[0])


def _is_tiled_over_samples(function: Callable[..., Any], args: tuple[Any, ...], batch: int) -> bool:
    """Whether a table with several rows is repeated as a whole, once per sample."""
    if function is not Tensor.repeat or batch == 1:
        return False
    sizes = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
    whole = len(sizes) == args[0].ndim and all(size == 1 for size in sizes[1:])
    return whole and sizes[0] == batch and args[0].shape[0] > 1


def _broadcast_source(
    function: Callable[..., Any], args: tuple[Any, ...], output: Any
) -> Tensor | None:
    """The managed tensor that was repeated along dimensions of size one (a class token)."""
    if not classify(function).is_expanding:
        return None
    source: Tensor = args[0]
    grown = [b for b, a in aligned_sizes(source.shape, output.shape) if a != b]
    return source if all(size == 1 for size in grown) else None


def _with_version(tensor: Tensor) -> tuple[Tensor, int]:
    """Without its graph: an operation that saves its own output would keep itself alive."""
    return tensor.detach(), tensor._version


def _if_unchanged(saved: tuple[Tensor, int]) -> Tensor:
    tensor, version = saved
    if tensor._version != version:
        raise UnsupportedOperationError(
            f"a tensor of shape {tuple(tensor.shape)} was changed in place after trainable "
            "parameters had been combined with it. Use the out-of-place operation."
        )
    return tensor
