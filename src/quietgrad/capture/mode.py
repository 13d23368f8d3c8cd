"""Watches torch operations while a model's forward runs, and captures those on parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import (
    TorchFunctionMode,
    _get_current_function_mode_stack,
    _pop_mode_temporarily,
)
from torch.utils._pytree import tree_map

from quietgrad.capture.call import Call, Derived, Frame, Target, is_spread_over_samples
from quietgrad.capture.compare import tensors_in
from quietgrad.capture.derivation import derive, derive_complex, run_on_entries
from quietgrad.capture.operations import (
    Handle,
    HiddenFunction,
    add_samples,
    classify,
    find_rule,
    find_vmap,
    leave_transforms,
    unwrap,
)
from quietgrad.capture.parameters import ParameterTable
from quietgrad.capture.refusals import (
    CHECKED,
    check_operation,
    check_write,
    refuse_unusual_layouts,
)
from quietgrad.capture.rules.fallback import run_per_sample
from quietgrad.capture.rules.spread import run_spread
from quietgrad.distributed.sharding import are_local
from quietgrad.errors import QuietgradError

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
        self._open: dict[int, Target] = {}  # constants that parameters are being written to
        self._written: dict[tuple[str, torch.Size], int] = {}  # the first batch with such a one

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        try:
            is_ordinary = _is_ordinary(func)
            if is_ordinary is None:
                return func(*args, **(kwargs or {}))
            tape = self._current_tape()
            # Most operations are on activations alone, and have a graph: there is no more to know.
            if is_ordinary and not kwargs and self._are_data(args, tape):
                tape.functions.add(func)
                output = func(*args)
                if type(output) is not Tensor or not output.requires_grad:
                    tensors = _tensors(args)
                    self._note_made(func, output, tensors, [None] * len(tensors), (), tape)
                return output
            return self._run(func, args, kwargs or {}, tape)
        except QuietgradError as error:
            self._on_refusal(error)  # a model may catch it and go on
            raise

    def _are_data(self, values: Iterable[Any], tape: Tape) -> bool:
        """Whether these are tensors that are not managed, and numbers and the like."""
        for value in values:
            kind = type(value)
            if kind is Tensor:
                if id(value) in tape.derivations:
                    return False
            elif kind is tuple or kind is list or kind is torch.Size:
                if not self._are_data(value, tape):
                    return False
            elif kind not in _NUMBERS:
                return False
        return not torch._C._are_functorch_transforms_active()

    def handle_hidden(self) -> Handle | None:
        """What runs functions that hide from a mode, while this one is on."""
        return self._run_hidden if self in _get_current_function_mode_stack() else None

    def _run_hidden(
        self, function: HiddenFunction, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        tape = self._current_tape()
        if not any(self._target_of(t, tape) for t in _tensors((*args, *kwargs.values()))):
            return function(*args, **kwargs)
        # As torch calls a mode: it is off for what the function does itself.
        with _pop_mode_temporarily():
            return self.__torch_function__(function, (), args, kwargs)

    def _run(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tape: Tape
    ) -> Any:
        operation = classify(func)
        if func in CHECKED:
            is_free = partial(self._is_free_of_data, tape=tape)
            check_operation(func, args, kwargs, self._path, is_free)
        if operation.is_hook or func == _SET_DATA:
            return self._hook_or_write(func, args, kwargs, tape)
        tape.functions.add(func)
        if operation.reads_numbers and not tape.is_constant(args[0]):
            tape.reads_numbers = True
        tensors = _tensors((*args, *kwargs.values()) if kwargs else args)
        # A module that is built in a forward sets up parameters of its own.
        if operation.is_initialization and not any(map(self._is_of_model, tensors)):
            return func(*args, **kwargs)
        has_gradients = torch.is_grad_enabled()
        known: Sequence[Tensor | None] = tensors
        if not has_gradients:
            known = [t if self._is_of_model(t) else None for t in tensors]
        targets = [self._target_of(tensor, tape) for tensor in known]
        if torch._C._are_functorch_transforms_active():
            self._refuse_mapped(func, tensors, tape)
        if not has_gradients or not any(targets):
            return self._run_plain(func, args, kwargs, tensors, targets, tape)
        if operation.ignores_data and self._target_of(args[0], tape) is None:
            return func(*args, **kwargs)  # data that takes its type or shape from a parameter
        return self._run_on_parameters(func, args, kwargs, tensors, targets, tape)

    def _run_on_parameters(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        targets: list[Target | None],
        tape: Tape,
    ) -> Any:
        operation, call = classify(func), self._call(func, tape)
        if torch._C._are_functorch_transforms_active():
            return self._run_transformed(call, args, kwargs, tensors, tape)
        call.note_targets(tensors, targets)
        if not are_local(tensors):
            return run_spread(call, args, kwargs)
        for tensor in tensors[operation.writes_in_place :] if self._open else ():
            self._open.pop(id(tensor), None)
        data = [t for t, g in zip(tensors, targets, strict=True) if g is None]
        managed = [(t, g) for t, g in zip(tensors, targets, strict=True) if g is not None]
        shape = managed[0][0].shape if operation.is_arithmetic else None
        is_joined = (operation.is_joining or operation.writes_in_place) and any(
            isinstance(g, Derived) and g.is_chosen for _, g in managed
        )
        # An activation with a graph is no constant: mostly that is all there is to find out.
        has_graph = True in [t.requires_grad for t in data]
        is_free = not has_graph and all(tape.is_constant_beside(t, shape) for t in data)
        if operation.ignores_data or (is_free and not is_joined):
            if operation.writes_in_place and self._is_writable(args[0], tape):
                if not self._is_for_samples(args[0], tape.batch):
                    return self._write_constant(call, tape, args, kwargs, managed)
            elif not any(is_spread_over_samples(g, tape.batch) for _, g in managed):
                return derive(call, tape, args, kwargs, managed)
            args, kwargs = tree_map(call.own_copies, (args, kwargs))
            if not any(self._target_of(t, tape) for t in _tensors((*args, *kwargs.values()))):
                return func(*args, **kwargs)
        refuse_unusual_layouts(call, tensors)
        is_complex = True in [t.dtype.is_complex for t in tensors]
        rule = find_rule(func, is_complex=is_complex) or run_per_sample
        return rule(call, *args, **kwargs)

    def _is_writable(self, tensor: Any, tape: Tape) -> bool:
        """Whether it is a constant, to which at most parameters were written, and nothing read."""
        target = self._target_of(tensor, tape)
        return target is None or self._open.get(id(tensor)) is target

    def _is_for_samples(self, tensor: Tensor, batch: int) -> bool:
        """Whether a constant seems to be made for what is written to it for each sample.

        One that has the same shape in batches of different sizes is not.
        """
        first = self._written.setdefault((self._path, tensor.shape), batch)
        return batch == 1 or (first == batch and batch in tensor.shape[:2])

    def _write_constant(
        self,
        call: Call,
        tape: Tape,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        managed: list[tuple[Tensor, Target]],
    ) -> Any:
        """Write parameters to a constant: it becomes a tensor computed from them."""
        written: Tensor = args[0]
        if (name := tape.provenance.name_in_model(written)) is not None:
            raise call.refuse(
                f"buffer '{name}' is changed in place to something trainable",
                "Write to a clone of it",
                *(tensor for tensor, _ in managed),
            )
        output, sources = run_on_entries(call, tape, args, kwargs, managed)
        derived = Derived(written, sources)
        tape.add_derived(derived)
        self._open[id(written)] = derived
        return output

    def _refuse_mapped(self, func: Callable[..., Any], tensors: list[Tensor], tape: Tape) -> None:
        """Parameters that a transformation was given as arguments, such as a stacked ensemble."""
        inner = [own for tensor in tensors if (own := unwrap(tensor)) is not tensor]
        if torch.is_grad_enabled() and any(self._target_of(own, tape) for own in inner):
            raise self._call(func, tape).refuse(
                "a transformation of torch.func is applied to the parameter, in which gradients "
                "cannot be told apart",
                "Write it without torch.func: as a loop, or with einsum over stacked weights",
                *inner,
            )

    def _run_transformed(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[Tensor],
        tape: Tape,
    ) -> Any:
        """Inside of ``torch.vmap`` over the samples each has its own copy of a parameter."""
        records = tape.membership.records
        level = find_vmap(records)
        if level is None:
            raise call.refuse(
                "it runs inside of a transformation of torch.func, the outermost of which is not a "
                f"vmap over the {records} samples: their gradients cannot be told apart",
                "Write it without torch.func, or with vmap over the samples around everything",
                *tensors,
            )
        labels = iter(range(1000))

        def copy(leaf: Any) -> Any:
            if not call.is_managed(leaf):
                return leaf
            with leave_transforms():
                own = call.source(leaf, (records, *leaf.shape), f"vmap {next(labels)}", dims=1)
            return add_samples(own, level)

        args, kwargs = tree_map(copy, (args, kwargs))
        return call.function(*args, **kwargs)

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
        return Call(tape, func, self.frames[-1], self._target_of, lambda: self)

    def _is_of_model(self, value: Tensor) -> bool:
        """False for a parameter that no module of the model holds."""
        return not isinstance(value, nn.Parameter) or self._parameters.knows(value)

    def _target_of(self, value: Any, tape: Tape) -> Target | None:
        if type(value) is Tensor:
            return tape.derivations.get(id(value))
        if not isinstance(value, Tensor):
            return None
        if isinstance(value, nn.Parameter):
            if not value.requires_grad:
                return None
            target = self._parameters.target(value)
            return derive_complex(tape, target.name, value) if value.is_complex() else target
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
            target, *others = (*args, *kwargs.values())
            check_write(tape, target, others)
            written += tensors_in(target)
        if kwargs.get("out") is not None:
            check_write(tape, kwargs["out"], args)
            written += tensors_in(kwargs["out"])
        if written:
            with tape.provenance.watch.writing(written):
                output = func(*args, **kwargs)
        else:
            output = func(*args, **kwargs)
        if func is torch.arange and len(args) == 1 and not {"start", "step", "out"} & kwargs.keys():
            tape.provenance.note_counting(output)
        self._note_made(func, output, tensors, targets, written, tape)
        return output

    def _note_made(
        self,
        func: Callable[..., Any],
        output: Any,
        tensors: list[Tensor],
        targets: Sequence[Target | None],
        written: Sequence[Tensor],
        tape: Tape,
    ) -> None:
        made = [tensor for tensor in _tensors((output,)) if not tensor.requires_grad]
        if not made and not written:
            return  # with a graph, and so data
        # Without gradients a parameter is a constant like any other.
        constant = classify(func).makes_constants or all(
            target is not None or tape.is_constant(tensor)
            for tensor, target in zip(tensors, targets, strict=True)
        )
        tape.provenance.note(made, constant=constant)
        if written and not constant:
            tape.provenance.note_written(written)


_NUMBERS = frozenset(
    {int, float, bool, str, type(None), torch.dtype, torch.device, slice, type(...)}
)


@cache
def _is_ordinary(func: Callable[..., Any]) -> bool | None:
    """Whether all that it does is to compute a result of its arguments, which are not judged.

    None if it computes nothing, and only tells about a tensor.
    """
    operation = classify(func)
    if operation.is_metadata:
        return None
    is_looked_at = operation.is_hook or operation.is_initialization
    reads_or_writes = operation.reads_numbers or operation.writes_in_place
    return not (is_looked_at or reads_or_writes or func in CHECKED or func == _SET_DATA)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is nn.Parameter:
            found.append(value)
        elif kind in _NUMBERS:
            continue
        elif isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found
