"""One intercepted operation, as a rule sees it, and what a tensor in it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from quietgrad.capture.layout import Layout, SiteKey
from quietgrad.capture.operations import is_in_place, operation_name
from quietgrad.distributed.sharding import local_of
from quietgrad.errors import UnsupportedOperationError
from quietgrad.factors.base import Dense, Factor, to_float32
from quietgrad.factors.gather import Gather
from quietgrad.factors.pullback import Pullback, Pulled

if TYPE_CHECKING:
    from quietgrad.capture.tape import Site, Tape


MakeFactor = Callable[..., Factor]

BY_ROW: set[MakeFactor] = set()
"""Ways to make a factor that take each row of all that they are given by itself."""


def by_row(make: MakeFactor) -> MakeFactor:
    """Such a way: rows of several operations may be given to it one after the other."""
    BY_ROW.add(make)
    return make


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
    shape: torch.Size

    @property
    def names(self) -> tuple[str, ...]:
        """The one parameter."""
        return (self.name,)

    def pull(self, name: str, factor: Factor) -> Factor:
        """Nothing lies in between."""
        _refuse_other_shape(name, factor, self.shape)
        return factor


@dataclass(frozen=True, eq=False)
class Lookup:
    """Rows ``ids`` of a table, looked up without any data: positions, token types."""

    table: Tensor
    ids: Tensor
    padding: int | None


@dataclass(frozen=True, eq=False)
class Derived:
    """A tensor computed from parameters (and constants) alone.

    Which entry of a parameter it was computed from may have been chosen by data (``is_chosen``):
    one matrix of many, for an expert or for a sample. If several are joined, each is its sample's.
    Where ids were looked up on the way it is ``isometric`` only if all of ``lookups`` are distinct.
    """

    tensor: Tensor
    sources: dict[str, Tensor]
    isometric: bool = False
    lookups: tuple[Tensor, ...] = ()
    lookup: Lookup | None = None
    broadcast_from: Tensor | None = None
    is_chosen: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters this tensor was computed from."""
        return tuple(self.sources)

    def pull(self, name: str, factor: Factor) -> Factor:
        """Through the computation, back to one of its parameters."""
        _refuse_other_shape(name, factor, self.tensor.shape)
        isometric = self.isometric and all(map(_are_distinct, self.lookups))
        return Pulled(factor, Pullback(self.tensor, self.sources[name], isometric))


def _are_distinct(ids: Tensor) -> bool:
    return bool(ids.unique().numel() == ids.numel())


def _refuse_other_shape(name: str, factor: Factor, shape: torch.Size) -> None:
    """A gradient of another shape than what it belongs to would be summed as something else."""
    if factor.shape != shape:
        raise UnsupportedOperationError(
            f"parameter '{name}': its gradients were captured with shape {tuple(factor.shape)}, "
            f"and what they belong to has shape {tuple(shape)}. It is used in a way (perhaps "
            "broadcast, or changed in size) for which there is no exact rule. Expand it to its "
            "full shape before it is used, or freeze it with requires_grad_(False)."
        )


class Use(NamedTuple):
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


def current_checkpoint() -> Any:
    """What tells the innermost checkpointed region from others; None outside of any."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None or "_checkpoint_hook" not in getattr(hooks[0], "__qualname__", ""):
        return None
    return hooks[0]


Uses = Sequence[tuple[Tensor | None, MakeFactor]]
"""Tensors that may be managed, each with how its factor is made."""


class Frame:
    """A module whose forward is running, and the operations captured in it so far."""

    __slots__ = ("checkpoint", "path", "seen")

    def __init__(self, path: str) -> None:
        self.path, self.checkpoint = path, current_checkpoint()
        self.seen: dict[tuple[str, str], int] = {}


class Call:
    """Gives a rule the values behind managed tensors and takes its uses.

    A *managed* tensor is a trainable parameter or a tensor computed from such parameters alone.
    """

    def __init__(
        self,
        tape: Tape,
        function: Callable[..., Any],
        frame: Frame,
        find_target: Callable[[Any, Tape], Target | None],
        recapture: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.function = function
        self.recapture = recapture
        self.prefix = ""  # of the operation's name in lists of what was captured
        self._tape, self._frame, self._find_target = tape, frame, find_target
        self._ordinals: dict[str, int] = {}
        self._targets: dict[int, tuple[Any, Target | None]] = {}

    def note_targets(self, tensors: Sequence[Tensor], targets: Sequence[Target | None]) -> None:
        """What tensors stand for, where that is known: it is asked several times."""
        self._targets = {id(t): (t, target) for t, target in zip(tensors, targets, strict=True)}

    def _target_of(self, value: Any) -> Target | None:
        if value is None:
            return None
        known = self._targets.get(id(value))
        return self._find_target(value, self._tape) if known is None else known[1]

    @property
    def name(self) -> str:
        """The operation's name, for messages."""
        return operation_name(self.function)

    @property
    def writes_in_place(self) -> bool:
        """Whether the operation changes its first argument."""
        return is_in_place(self.function)

    def is_managed(self, value: Any) -> bool:
        """Whether ``value`` is a trainable parameter or derived from such alone."""
        return self._target_of(value) is not None

    def localize(self, parameters: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What this rank holds of parameters that are spread; from here on it stands for them."""
        found: list[Tensor | None] = []
        for parameter in parameters:
            local = None if parameter is None else local_of(parameter.detach())
            if local is not None:
                target = self._target_of(parameter)
                if isinstance(target, ParameterTarget):
                    target = ParameterTarget(target.name, local.shape)
                self._targets[id(local)] = local, target
            found.append(local)
        return found

    def value(self, tensor: Any) -> Any:
        """A managed tensor cut off from autograd; anything else unchanged."""
        return tensor if self._target_of(tensor) is None else tensor.detach()

    def watch(
        self,
        output: Tensor,
        uses: Uses,
        *,
        saved: Sequence[Tensor] = (),
        dims: int,
        label: str = "",
        reads: tuple[Tensor, Tensor] | None = None,
        takes_complex: bool = False,
    ) -> Tensor:
        """Record the factors of the managed tensors in ``uses`` when ``output``'s gradient arrives.

        The samples are in one of the first ``dims`` dimensions of the output. A factor is made as
        ``make(layout, grad, *saved)``. ``reads`` are ids, and the row of the output that each of
        them enters, where these are not as many.
        """
        site = self.site(uses, output.shape, dims=dims, label=label)
        if site is None:
            return output
        site.reads = reads
        if output.is_complex() and not takes_complex:
            raise self.refuse(
                "its rule does not know complex numbers",
                "Use elementwise operations, matmul or einsum",
                *(tensor for tensor, _ in uses),
            )
        return self._tape.tap_output(output, site, [tensor.detach() for tensor in saved])

    def site(self, uses: Uses, shape: torch.Size, *, dims: int, label: str = "") -> Site | None:
        """Where a gradient of this shape is to arrive; None if no tensor in ``uses`` is managed."""
        kept = [Use(t, make) for tensor, make in uses if (t := self._target_of(tensor)) is not None]
        return self._site(kept, label, shape, dims) if kept else None

    @property
    def token(self) -> Tensor:
        """What makes the backward pass reach a site, though nothing else may."""
        return self._tape.token

    def source(
        self, tensor: Tensor, shape: Sequence[int], label: str = "", dims: int | None = None
    ) -> Tensor:
        """A managed tensor broadcast to ``shape``; each sample gets its own gradient.

        The samples are in one of the first ``dims`` dimensions, of all by default.
        """
        shape = torch.Size(shape)
        use, dims = use_of_source(self._tape, tensor, shape, self._target_of, dims)
        site = self._site([use], label, shape, dims)
        derived = self._tape.derived(tensor)
        if derived and derived.broadcast_from is not None:
            tensor = derived.broadcast_from
        return self._tape.tap_source(tensor.detach(), site, shape)

    def choose(self, tensor: Tensor, index: Tensor) -> Tensor:
        """One entry of a managed tensor along its first dimension, chosen by a number of data."""
        with self.recapture():
            chosen: Tensor = tensor[int(index)]
        derived = self._tape.derived(chosen)
        return chosen if derived is None else self._tape.mark_chosen(derived)

    def own_copies(self, tensor: Any) -> Any:
        """A parameter repeated once per sample as data; anything else unchanged."""
        target = self._target_of(tensor)
        if target is None or not is_spread_over_samples(target, self._tape.batch):
            return tensor
        copies = self.source(tensor, tensor.shape)
        # What was repeated lies in memory of its own, and may be viewed in other shapes.
        return copies.contiguous() if tensor.is_contiguous() else copies

    def refuse(self, reason: str, remedy: str, *tensors: Any) -> UnsupportedOperationError:
        """An error that names the operation, the module and the parameters in ``tensors``."""
        return UnsupportedOperationError(
            f"{self.name} in {self._where()}{self._parameters(tensors)}: {reason}. {remedy}"
        )

    def _site(self, uses: list[Use], label: str, shape: torch.Size, dims: int) -> Site:
        used = [name for use in uses for name in use.target.names]
        names = ", ".join(used)
        if current_checkpoint() is not self._frame.checkpoint:
            raise UnsupportedOperationError(
                f"{self.name} in {self._where()} uses parameter '{names}' in a checkpointed "
                "function that is not a module: what it recomputes in the backward pass cannot be "
                "captured. Checkpoint a module that owns the parameter, as in "
                "checkpoint(self.block, x, use_reentrant=False)."
            )
        operation, ordinal = self.prefix + self.name, self._ordinals.get(names)
        if ordinal is None:
            seen = self._frame.seen
            ordinal = self._ordinals[names] = seen.get((operation, names), 0)
            seen[operation, names] = ordinal + 1
        key = SiteKey(self._frame.path, operation, names, ordinal, label, len(shape))
        return self._tape.add_site(key, shape, range(dims), uses, used)

    def _where(self) -> str:
        return f"module '{self._frame.path}'" if self._frame.path else "the model's own forward"

    def _parameters(self, tensors: Sequence[Any]) -> str:
        names = {n for t in tensors if (target := self._target_of(t)) for n in target.names}
        return f", on trainable parameter {', '.join(map(repr, sorted(names)))}" if names else ""


def use_of_source(
    tape: Tape,
    tensor: Tensor,
    shape: torch.Size,
    target_of: Callable[[Tensor], Target | None],
    dims: int | None = None,
) -> tuple[Use, int]:
    """How a managed tensor is used where it is broadcast to ``shape``.

    Also how many of the first dimensions may hold the samples, unless ``dims`` says it.
    """
    derived = tape.derived(tensor)
    if derived and derived.broadcast_from is not None:
        tensor = derived.broadcast_from
        derived = tape.derived(tensor)
    lookup = derived.lookup if derived else None
    if lookup is not None and shape and shape[-1] == tensor.shape[-1]:
        tensor_used, dims = lookup.table, len(shape) - 1 if dims is None else dims
        ids = lookup.ids.expand(shape[:-1])
        padding, table = lookup.padding, lookup.table
        make: MakeFactor = partial(gather_rows, ids=ids, padding=padding, table=table)
    else:
        tensor_used, dims = tensor, len(shape) if dims is None else dims
        make = partial(sum_to_shape, shape=tensor.shape)
    target = target_of(tensor_used)
    assert target is not None
    return Use(target, make), dims


def gather_rows(
    layout: Layout, grad: Tensor, ids: Tensor, *, padding: int | None, table: Tensor
) -> Factor:
    """The factor of rows ``ids`` of ``table``, whose look-up has the gradient ``grad``.

    Ids may count from the end; torch has checked their range when it looked them up.
    """
    width = table.ndim - 1
    values = layout.split(grad, width).flatten(2) if width else layout.split(grad, 0).unsqueeze(-1)
    positions = layout.split(ids, 0).remainder(table.shape[0])
    if padding is not None:
        values = values * positions.ne(padding).unsqueeze(-1)
    return Gather(positions, values, table.shape)


def sum_to_shape(layout: Layout, grad: Tensor, *_: Tensor, shape: torch.Size) -> Factor:
    """The factor of a tensor of this shape, which was broadcast."""
    return Dense(layout.unbroadcast(to_float32(grad), shape))


def as_computed(tensor: Tensor, output: Tensor) -> Tensor:
    """``tensor`` in the type the operation computed in (autocast), as its gradient would see it."""
    return tensor if tensor.dtype == output.dtype else tensor.to(output.dtype)


@by_row
def sum_channels(layout: Layout, grad: Tensor, *_: Tensor) -> Factor:
    """The gradient of something added to each channel (dimension 1)."""
    if grad.ndim > 2:
        return Dense(layout.split(to_float32(grad), grad.ndim - 1).flatten(3).sum((1, 3)))
    return Dense(layout.sum_positions(to_float32(grad), 1))
