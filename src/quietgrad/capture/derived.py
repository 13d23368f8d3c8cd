"""Computation on parameters alone: run as it is, and pulled back through when gradients arrive.

Weight standardization, weight_norm, parametrizations, transposes, slices, low-rank products: the
result is an ordinary tensor with an autograd graph that ends at the tape's entries. A rule that
later uses it gives the factor of the result, and :class:`quietgrad.factors.Pulled` takes it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_map

from quietgrad.capture.call import Call, variants
from quietgrad.capture.parameters import Derived, Lookup, ParameterTarget, Target, aligned_sizes
from quietgrad.capture.tape import Tape
from quietgrad.errors import UnsupportedOperationError

_PLAIN_METHODS = (
    "size dim ndimension numel nelement stride storage_offset element_size is_contiguous "
    "is_floating_point is_complex get_device data_ptr untyped_storage type requires_grad_ "
    "__len__ __repr__ __format__ __hash__ is_same_size"
).split()

METADATA: frozenset[Callable[..., Any]] = frozenset(
    getattr(Tensor, name) for name in _PLAIN_METHODS
)
"""Methods that tell about a tensor without computing with it."""

HOOKS: frozenset[Callable[..., Any]] = frozenset(
    {Tensor.register_hook, Tensor.retain_grad, Tensor.register_post_accumulate_grad_hook}
)
"""Methods that let others have a tensor's gradient."""

_COMPUTING_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})

# Each entry of the input appears at most once in the output, unchanged.
_ISOMETRIC = frozenset(
    variants(
        "view reshape transpose permute t swapaxes swapdims movedim moveaxis unsqueeze squeeze "
        "flatten unflatten chunk split split_with_sizes unbind select narrow contiguous clone "
        "view_as reshape_as adjoint ravel tensor_split vsplit hsplit to type_as float double half "
        "bfloat16".split()
    )
)

# Their tensor arguments give a type or a shape only.
_SHAPED_LIKE = frozenset(variants("type_as view_as reshape_as to".split()))

# Made from nothing, though a tensor of data lends its type and device.
_FACTORIES = frozenset(variants("new_ones new_zeros new_full new_empty new_tensor".split()))

_EXPANDING = frozenset(variants("expand broadcast_to repeat tile".split()))


def is_plain_property(function: Callable[..., Any]) -> bool:
    """Whether ``function`` reads an attribute such as shape or device."""
    name = _property_name(function)
    return name is not None and name not in _COMPUTING_PROPERTIES


def _property_name(function: Any) -> str | None:
    """The attribute that ``function`` reads, if it is a property's getter."""
    if getattr(function, "__name__", "") != "__get__":
        return None
    return str(getattr(function.__self__, "__name__", ""))


def ignores_data(function: Callable[..., Any]) -> bool:
    """Whether a data tensor among the arguments only lends its shape or type."""
    return function in _SHAPED_LIKE


def makes_constants(function: Callable[..., Any]) -> bool:
    """Whether the result has nothing of the arguments' values."""
    return function in _FACTORIES


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
    sources, replaced = _entries(tape, managed)
    inner_args, inner_kwargs = tree_map(lambda leaf: replaced.get(id(leaf), leaf), (args, kwargs))
    # Kept out of activation checkpointing: pulling back must not trigger a recomputation.
    with torch.enable_grad(), saved_tensors_hooks(_with_version, _if_unchanged):
        output = call.function(*inner_args, **inner_kwargs)
    lookup = _lookup(call.function, args, kwargs, managed)
    template = Derived(
        torch.empty(0),
        sources,
        isometric=_is_isometric(call.function, args, managed, lookup),
        lookup=lookup,
        broadcast_from=_broadcast_source(call.function, args, output),
    )
    return tree_map(lambda leaf: _register(tape, leaf, template), output)


def _entries(
    tape: Tape, managed: list[tuple[Tensor, Target]]
) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
    sources: dict[str, Tensor] = {}
    replaced: dict[int, Tensor] = {}
    for tensor, target in managed:
        if isinstance(target, Derived):
            sources.update(target.sources)
        elif isinstance(target, ParameterTarget):
            replaced[id(tensor)] = sources[target.name] = tape.entry(target.name, tensor)
    return sources, replaced


def _register(tape: Tape, leaf: Any, template: Derived) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
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
        return _is_basic_index(args[1])
    if lookup is not None:
        distinct = lookup.ids.unique().numel() == lookup.ids.numel()
        return distinct and lookup.padding is None
    return function in _ISOMETRIC or _property_name(function) in ("T", "mT")


def _is_basic_index(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(p is None or p is Ellipsis or type(p) in (int, slice) for p in parts)


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
    if function not in _EXPANDING:
        return None
    source: Tensor = args[0]
    grown = [b for b, a in aligned_sizes(source.shape, output.shape) if a != b]
    return source if all(size == 1 for size in grown) else None


def _with_version(tensor: Tensor) -> tuple[Tensor, int]:
    """Without its graph: an operation that saves its own output would hold itself for ever."""
    return tensor.detach(), tensor._version


def _if_unchanged(saved: tuple[Tensor, int]) -> Tensor:
    tensor, version = saved
    if tensor._version != version:
        raise UnsupportedOperationError(
            f"a tensor of shape {tuple(tensor.shape)} was changed in place after trainable "
            "parameters had been combined with it. Use the out-of-place operation."
        )
    return tensor


__all__ = ["HOOKS", "METADATA", "derive", "ignores_data", "is_plain_property", "makes_constants"]
