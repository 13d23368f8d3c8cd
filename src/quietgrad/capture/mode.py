"""Watches torch operations while a model's forward runs, and captures those on parameters.

Computation on parameters alone (weight standardization, weight_norm, parametrizations, transposes,
slices, low-rank products) is run unchanged: the result is an ordinary tensor with an autograd graph
that ends at the tape's entries. A rule that later uses it gives the factor of the result, and
:class:`quietgrad.factors.Pulled` takes it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode_temporarily,
)
from torch.utils._pytree import tree_map

from quietgrad.capture.call import Call, Frame
from quietgrad.capture.compare import tensors_in
from quietgrad.capture.interception import AppliedFunction, Handle
from quietgrad.capture.operations import classify, find_rule
from quietgrad.capture.parameters import (
    Derived,
    Lookup,
    ParameterTable,
    ParameterTarget,
    Target,
    aligned_sizes,
    is_spread_over_samples,
)
from quietgrad.capture.refusals import check_operation, check_write
from quietgrad.capture.rules.fallback import run_per_sample
from quietgrad.errors import QuietgradError, UnsupportedOperationError

if TYPE_CHECKING:
    from quietgrad.capture.tape import Tape

_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


class CaptureMode(TorchFunctionMode):
    """Replaces each operation that touches a managed tensor by its rule."""

    def __init__(
        self,
        parameters: ParameterTable,
        tape: Callable[[], Tape],
        on_refusal: Callable[[QuietgradError], None],
    ) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self._parameters, self._current_tape = parameters, tape
        self._on_refusal = on_refusal

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        try:
            return self._run(func, args, kwargs or {})
        except QuietgradError as error:
            self._on_refusal(error)  # a model may catch it and go on
            raise

    def handle_custom(self) -> Handle | None:
        """What runs custom autograd functions, while the mode is on."""
        return self._run_custom if self in _get_current_function_mode_stack() else None

    def _run_custom(
        self, function: AppliedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        tape = self._current_tape()
        if not any(self._target_of(t, tape) for t in _tensors((*args, *kwargs.values()))):
            return function(*args, **kwargs)
        # As torch calls a mode: it is off for what the function does itself.
        with _pop_mode_temporarily():
            return self.__torch_function__(function, (), args, kwargs)

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operation = classify(func)
        if operation.is_metadata:
            return func(*args, **kwargs)
        tape = self._current_tape()
        check_operation(func, args, kwargs, self._path, partial(self._is_free_of_data, tape=tape))
        if operation.is_hook or func == _SET_DATA:
            return self._hook_or_write(func, args, kwargs, tape)
        tape.functions.add(func)
        if operation.reads_numbers and not tape.is_constant(args[0]):
            tape.reads_numbers = True
        tensors = _tensors((*args, *kwargs.values()) if kwargs else args)
        targets = [self._target_of(tensor, tape) for tensor in tensors]
        if not any(targets) or not torch.is_grad_enabled():
            return self._run_plain(func, args, kwargs, tensors, targets, tape)
        if operation.ignores_data and self._target_of(args[0], tape) is None:
            return func(*args, **kwargs)  # data that takes its type or shape from a parameter
        call = self._call(func, tape)
        data = [t for t, g in zip(tensors, targets, strict=True) if g is None]
        if operation.ignores_data or all(tape.is_constant(t) for t in data):
            managed = [(t, g) for t, g in zip(tensors, targets, strict=True) if g is not None]
            if not any(is_spread_over_samples(g, tape.batch) for _, g in managed):
                return _derive(call, tape, args, kwargs, managed)
            args, kwargs = tree_map(call.own_copies, (args, kwargs))
            if not any(self._target_of(t, tape) for t in _tensors((*args, *kwargs.values()))):
                return func(*args, **kwargs)
        rule = find_rule(func, is_complex=any(t.is_complex() for t in tensors)) or run_per_sample
        return rule(call, *args, **kwargs)

    def _hook_or_write(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tape: Tape
    ) -> Any:
        """On activations, hooks see every sample's own gradient; on parameters, a clipped sum."""
        if func == _SET_DATA:
            check_write(tape, args[0], args[1])
            with tape.provenance.watch.writing(args[:1]):
                return func(*args)
        if self._target_of(args[0], tape) is not None:
            raise self._call(func, tape).refuse(
                "a hook on a parameter, or on a tensor computed from parameters, would see or "
                "change gradients after they were clipped",
                "Remove it, or put it on an activation",
                args[0],
            )
        return func(*args, **kwargs)

    @property
    def _path(self) -> str:
        return self.frames[-1].path if self.frames else ""

    def _call(self, func: Callable[..., Any], tape: Tape) -> Call:
        return Call(
            tape, func, self.frames[-1], lambda value: self._target_of(value, tape), lambda: self
        )

    def _target_of(self, value: Any, tape: Tape) -> Target | None:
        if not isinstance(value, Tensor):
            return None
        if type(value) is not Tensor and isinstance(value, nn.Parameter):
            return self._parameters.target(value) if value.requires_grad else None
        return tape.derived(value)

    def _is_free_of_data(self, value: Any, tape: Tape) -> bool:
        """Whether a tensor was computed from parameters and what is known to be constant."""
        return self._target_of(value, tape) is not None or (
            isinstance(value, Tensor) and tape.provenance.is_known_constant(value)
        )

    def _run_plain(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        targets: list[Target | None],
        tape: Tape,
    ) -> Any:
        written: list[Tensor] = []
        operation = classify(func)
        if operation.writes_in_place:
            check_write(tape, args[0], args[1:])
            written += tensors_in(args[0])
        if kwargs.get("out") is not None:
            check_write(tape, kwargs["out"], args)
            written += tensors_in(kwargs["out"])
        if written:
            with tape.provenance.watch.writing(written):
                output = func(*args, **kwargs)
        else:
            output = func(*args, **kwargs)
        # Without gradients a parameter is a constant like any other.
        constant = operation.makes_constants or all(
            target is not None or tape.is_constant(tensor)
            for tensor, target in zip(tensors, targets, strict=True)
        )
        tape.provenance.note(_tensors((output,)), constant=constant)
        return output


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


# -- computation on parameters alone -------------------------------------------------------------


def _derive(
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
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return all(p is None or p is Ellipsis or type(p) in (int, slice) for p in parts)
    if lookup is not None:
        distinct = lookup.ids.unique().numel() == lookup.ids.numel()
        return distinct and lookup.padding is None
    return classify(function).is_isometric


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
