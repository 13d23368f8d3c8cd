"""What a tensor is: a trainable parameter, computed from such alone, a constant, or data."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from quietgrad.capture.compare import tensors_in
from quietgrad.capture.model_state import BufferWatch
from quietgrad.errors import TrainableSetError, UnsupportedOperationError
from quietgrad.factors.base import Factor
from quietgrad.factors.pullback import Pullback, Pulled

MakeFactor = Callable[..., Factor]


class Target(Protocol):
    """A tensor with respect to which a rule gives factors: a parameter or something derived."""

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters behind this tensor."""

    def pull(self, name: str, factor: Factor) -> Factor:
        """The factor of parameter ``name``, given this tensor's."""


@dataclass(frozen=True, eq=False)
class ParameterTarget:
    """The parameter itself."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The one parameter."""
        return (self.name,)

    def pull(self, name: str, factor: Factor) -> Factor:
        """Nothing lies in between."""
        return factor


@dataclass(frozen=True, eq=False)
class Lookup:
    """Rows ``ids`` of a table, looked up without any data: positions, token types."""

    table: Tensor
    ids: Tensor
    padding: int | None


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor computed from parameters (and constants) alone."""

    tensor: Tensor
    sources: dict[str, Tensor]
    isometric: bool = False
    lookup: Lookup | None = None
    broadcast_from: Tensor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters this tensor was computed from."""
        return tuple(self.sources)

    def pull(self, name: str, factor: Factor) -> Factor:
        """Through the computation, back to one of its parameters."""
        return Pulled(factor, Pullback(self.tensor, self.sources[name], self.isometric))


@dataclass(frozen=True, eq=False)
class Use:
    """One target at one site, and how the target's factor is made there."""

    target: Target
    make: MakeFactor


def is_spread_over_samples(target: Target, batch: int) -> bool:
    """Whether a tensor is a parameter repeated once per sample, along a dimension of size one."""
    if batch == 1 or not isinstance(target, Derived) or target.broadcast_from is None:
        return False
    sizes = aligned_sizes(target.broadcast_from.shape, target.tensor.shape)
    return any(after != before and after % batch == 0 for before, after in sizes)


def aligned_sizes(before: torch.Size, after: torch.Size) -> list[tuple[int, int]]:
    """Sizes of a tensor before and after it was broadcast, dimension by dimension."""
    padded = (1,) * (len(after) - len(before)) + tuple(before)
    return list(zip(padded, after, strict=True))


class ParameterTable:
    """Names the model's parameters when they are used, as the modules hold them at that moment.

    Wrappers may swap the Parameter object under a name between forwards; what counts is the module
    attribute, so every answer is checked against it and the table is rebuilt when it is stale.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._canonical = _canonical_names(model)
        self._targets = {name: ParameterTarget(name) for name in self.trainable()}
        self._holders: dict[int, tuple[nn.Module, str, str]] = {}

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trainable parameters by canonical name (a tied weight has its first name)."""
        found: dict[str, nn.Parameter] = {}
        _collect(self._model, "", found, set())
        return found

    def target(self, parameter: nn.Parameter) -> ParameterTarget:
        """The managed parameter behind a tensor seen in an operation."""
        name = self._name_of(parameter) or self._refreshed_name_of(parameter)
        if name is None:
            raise UnsupportedOperationError(
                f"a trainable parameter of shape {tuple(parameter.shape)} that is not registered "
                "in the model was used in its forward: its gradient could not be clipped. Register "
                "it in the model (as a module attribute) or freeze it with requires_grad_(False)."
            )
        if name not in self._targets:
            raise TrainableSetError(
                f"parameter '{name}' was frozen when the model was attached and is trainable now. "
                "Attach again after changing requires_grad."
            )
        return self._targets[name]

    def describe(self, parameter: nn.Parameter) -> str:
        """A parameter's name, for messages."""
        name = self._name_of(parameter) or self._refreshed_name_of(parameter)
        return f"parameter '{name}'" if name else f"a parameter of shape {tuple(parameter.shape)}"

    def _name_of(self, parameter: nn.Parameter) -> str | None:
        holder = self._holders.get(id(parameter))
        if holder is None:
            return None
        module, attribute, name = holder
        return name if getattr(module, attribute, None) is parameter else None

    def _refreshed_name_of(self, parameter: nn.Parameter) -> str | None:
        self._holders = {
            id(p): (module, attribute, self._canonical.get(f"{path}.{attribute}".lstrip("."), ""))
            for path, module in self._model.named_modules()
            for attribute, p in module._parameters.items()
            if p is not None
        }
        return self._name_of(parameter) or None


def _collect(
    module: nn.Module, prefix: str, found: dict[str, nn.Parameter], seen: set[int]
) -> None:
    """What ``named_parameters`` gives, in its order, in a fraction of the time."""
    seen.add(id(module))
    for attribute, parameter in module._parameters.items():
        if parameter is not None and id(parameter) not in seen:
            seen.add(id(parameter))
            if parameter.requires_grad:
                found[prefix + attribute] = parameter
    for name, child in module._modules.items():
        if child is not None and id(child) not in seen:
            _collect(child, f"{prefix}{name}.", found, seen)


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter -> the first name under which it is found."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


class Provenance:
    """Tells constants from data, for the choice of a rule; exactness never depends on the answer.

    Constants are buffers, frozen weights, and what is made from them or from nothing (positions,
    masks). What is taken for a constant is pulled back through as part of a computation on
    parameters alone; what is taken for data is mapped to samples. Both are exact or refused, so an
    unlucky guess can cost time or a refusal, not privacy.

    Attributes:
        watch: finds writes to buffers that no operation shows.
    """

    def __init__(self, model: nn.Module) -> None:
        self.watch = BufferWatch(model)
        self._buffers = {id(buffer): buffer for buffer in model.buffers()}
        self._originals = {
            (module, attribute): (buffer, f"{path}.{attribute}" if path else attribute)
            for path, module in model.named_modules()
            for attribute, buffer in module._buffers.items()
        }
        held = [*model.named_buffers(), *model.named_parameters()]
        self._storages = {t.untyped_storage().data_ptr(): name for name, t in held if t.numel()}
        self._seen: dict[int, tuple[weakref.ref[Tensor], bool]] = {}

    def note(self, tensors: Iterable[Tensor], *, constant: bool) -> None:
        """Remember what tensors are, for as long as they live. Those with a graph are data."""
        for tensor in tensors:
            if not tensor.requires_grad:
                self._seen[id(tensor)] = weakref.ref(tensor), constant

    def note_arguments(self, arguments: Any, batch: int) -> None:
        """What a model is called with is data, unless it is plainly shared by all samples."""
        for leaf in tensors_in(arguments):
            if self._noted(leaf) is None:
                self.note([leaf], constant=_is_shared(leaf, batch))
        # A list with one tensor for each sample is data, whatever the tensors' shapes.
        for part in arguments if isinstance(arguments, (tuple, list)) else ():
            if isinstance(part, (tuple, list)) and len(part) == batch > 1:
                self.note(tensors_in(part), constant=False)

    def is_constant(self, tensor: Tensor, batch: int) -> bool:
        """Whether ``tensor`` carries nothing of the ``batch`` samples, as far as is known."""
        if tensor.requires_grad:
            return False
        if isinstance(tensor, nn.Parameter) or self._buffers.get(id(tensor)) is tensor:
            return True
        noted = self._noted(tensor)
        # One that comes from nowhere was cached by the model, unless it has room for all samples.
        return not _has_room(tensor, batch) if noted is None else noted

    def is_known_constant(self, tensor: Tensor) -> bool:
        """Whether it was seen to be made of nothing that belongs to a sample."""
        return self._buffers.get(id(tensor)) is tensor or self._noted(tensor) is True

    def name_in_model(self, tensor: Any) -> str | None:
        """The buffer or parameter whose memory ``tensor`` shares."""
        if not isinstance(tensor, Tensor) or not tensor.numel():
            return None
        address = tensor.untyped_storage().data_ptr()
        return self._storages.get(address) or self.watch.name_at(address)

    def original(self, module: nn.Module, attribute: str) -> tuple[Tensor | None, str]:
        """A buffer as it was when the model was attached, and its name."""
        return self._originals.get((module, attribute), (None, attribute))

    def forget_dead(self) -> None:
        """Drop entries of tensors that are gone."""
        self._seen = {key: entry for key, entry in self._seen.items() if entry[0]() is not None}

    def _noted(self, tensor: Tensor) -> bool | None:
        reference, constant = self._seen.get(id(tensor), (None, False))
        return constant if reference is not None and reference() is tensor else None


def _is_shared(tensor: Tensor, batch: int) -> bool:
    # Ids of positions often come as a batch of one; data with one time step in front does not.
    one_row = tensor.ndim > 1 and tensor.shape[0] == 1 < batch
    return (one_row and not tensor.is_floating_point()) or not _has_room(tensor, batch)


def _has_room(tensor: Tensor, batch: int) -> bool:
    return batch == 1 or any(size % batch == 0 for size in tensor.shape)
