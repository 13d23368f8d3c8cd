"""Watches torch operations while a model's forward runs, and captures those on parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from quietgrad.capture import derived
from quietgrad.capture.call import Call, Frame, find_rule, is_in_place
from quietgrad.capture.parameters import ParameterTable, Target, is_spread_over_samples
from quietgrad.capture.rules import forbidden
from quietgrad.capture.tape import Tape
from quietgrad.capture.trees import tensors_in
from quietgrad.errors import QuietgradError

_NUMBERS = {Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__float__}
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]


class _Operation(NamedTuple):
    """What does not change from call to call: looked up once, for there are many calls."""

    only_tells: bool
    hooks: bool
    reads_numbers: bool
    writes: bool
    makes_constants: bool


@cache
def _operation(func: Callable[..., Any]) -> _Operation:
    return _Operation(
        only_tells=func in derived.METADATA or derived.is_plain_property(func),
        hooks=func in derived.HOOKS,
        reads_numbers=func in _NUMBERS,
        writes=is_in_place(func),
        makes_constants=derived.makes_constants(func),
    )


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

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operation = _operation(func)
        if operation.only_tells:
            return func(*args, **kwargs)
        forbidden.check(func, args, kwargs, self._path)
        tape = self._current_tape()
        if operation.hooks or func == _SET_DATA:
            return self._hook_or_write(func, args, kwargs, tape)
        tape.functions.add(func)
        if operation.reads_numbers and not tape.is_constant(args[0]):
            tape.reads_numbers = True
        tensors = _tensors((*args, *kwargs.values()) if kwargs else args)
        targets = [self._target_of(tensor, tape) for tensor in tensors]
        if not any(targets) or not torch.is_grad_enabled():
            return self._run_plain(func, args, kwargs, tensors, targets, tape)
        if derived.ignores_data(func) and self._target_of(args[0], tape) is None:
            return func(*args, **kwargs)  # data that takes its type or shape from a parameter
        call = self._call(func, tape)
        data = [t for t, g in zip(tensors, targets, strict=True) if g is None]
        if derived.ignores_data(func) or all(tape.is_constant(t) for t in data):
            managed = [(t, g) for t, g in zip(tensors, targets, strict=True) if g is not None]
            if not any(is_spread_over_samples(g, tape.batch) for _, g in managed):
                return derived.derive(call, tape, args, kwargs, managed)
            args, kwargs = tree_map(call.own_copies, (args, kwargs))
            if not any(self._target_of(t, tape) for t in _tensors((*args, *kwargs.values()))):
                return func(*args, **kwargs)
        rule = find_rule(func)
        if rule is None:
            raise call.refuse(
                "no rule captures this operation on a trainable parameter together with data",
                "Freeze the parameter (requires_grad_(False)), or express it with supported "
                "operations: linear, matmul, einsum, convolutions, embeddings, normalizations, "
                "and elementwise or broadcast arithmetic",
                *tensors,
            )
        return rule(call, *args, **kwargs)

    def _hook_or_write(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tape: Tape
    ) -> Any:
        """On activations, hooks see every sample's own gradient; on parameters, a clipped sum."""
        if func == _SET_DATA:
            forbidden.check_write(tape, args[0], args[1])
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
        operation = _operation(func)
        if operation.writes:
            forbidden.check_write(tape, args[0], args[1:])
            written += tensors_in(args[0])
        if kwargs.get("out") is not None:
            forbidden.check_write(tape, kwargs["out"], args)
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
