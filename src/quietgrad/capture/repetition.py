"""Calls of a model that can be repeated, from the state they began with, with other samples.

A repeat runs in the capture as the call itself did: with gradients if it had them, from the same
random draws, attributes and buffers, in the same precision. Its backward pass begins with the
gradients that the losses sent to the call's outputs. So what it records can be compared with what
the call recorded, sample by sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quietgrad.capture.compare import Node, leaves, parse_output, refuse_tangled, tensors_in
from quietgrad.capture.draws import RandomState
from quietgrad.capture.layout import add_first_hook
from quietgrad.capture.model_state import (
    HeldValues,
    ModelState,
    copy_values,
    find_difference,
    mark_repeating,
)
from quietgrad.capture.samples import copy_arguments
from quietgrad.factors.base import version_of

if TYPE_CHECKING:
    from quietgrad.capture.layout import OutputLayout, SiteKey
    from quietgrad.capture.outputs import Seed
    from quietgrad.capture.tape import Arrival, Tape, TargetFactor

Factors = dict[tuple["SiteKey", int], list["TargetFactor"] | None]
"""The factors at a site for its n-th gradient in a pass, one for each use; None if undecided."""


@dataclass
class ModelCall:
    """One call of a model (or of a part of it, by the user), to be repeated with other samples.

    Attributes:
        model: the module that was called.
        args: what it was called with; copies if ``is_snapshot``.
        kwargs: likewise.
        random: the generators before the call.
        state: what the model held before the call; None unless ``is_snapshot``.
        with_gradients: whether they were enabled.
        outputs: where samples are in what it returned, by tensor.
        returned: what it returned.
        before: what the model held before it; None unless ``is_snapshot``.
        after: likewise after it.
        moved: the generators that it drew from.
        transient: attributes that the user has changed since.
        random_after: the generators after the call, if it drew from NumPy's or Python's.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: RandomState
    state: ModelState | None
    with_gradients: bool
    autocast: list[tuple[str, torch.dtype, bool]]
    outputs: tuple[OutputLayout, ...] = ()
    returned: Node | None = None
    before: HeldValues | None = None
    after: HeldValues | None = None
    moved: frozenset[str] = frozenset()
    transient: set[str] = field(default_factory=set)
    random_after: RandomState | None = None
    _ends: list[Any] = field(default_factory=list)
    _versions: list[tuple[Tensor, int]] = field(default_factory=list)
    _returned_versions: list[int] = field(default_factory=list)

    @staticmethod
    def begin(
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        devices: tuple[torch.device, ...],
        *,
        snapshot: bool,
    ) -> ModelCall:
        """A call that is about to be made; with a ``snapshot`` whatever it writes is known."""
        refuse_tangled((args, kwargs), "is called with")
        random = RandomState(devices, foreign=snapshot)
        state = ModelState(model) if snapshot else None
        given = [(t, version_of(t)) for t in tensors_in((args, kwargs))]
        if snapshot:
            args, kwargs = copy_arguments((args, kwargs))
        types = ("cpu", *{device.type for device in devices})
        precisions = [
            (each, torch.get_autocast_dtype(each), torch.is_autocast_enabled(each))
            for each in types
        ]
        with_gradients = torch.is_grad_enabled()
        call = ModelCall(
            model, args, kwargs, random, state, with_gradients, precisions, _versions=given
        )
        if state is not None:
            call.before = copy_values(model, state.held)
        return call

    def end(self, output: Any, layouts: Callable[[Tensor], OutputLayout]) -> None:
        """It returned this."""
        refuse_tangled(output, "returns", may_be_cyclic=True)
        self.returned = parse_output(output)
        tensors = list(leaves(self.returned))
        self.outputs = tuple(map(layouts, tensors))
        self._ends = [t.grad_fn for t in tensors if t.grad_fn is not None]
        self._returned_versions = [version_of(tensor) for tensor in tensors]
        self.moved = self.random.find_moved()
        self.random_after = RandomState() if self.moved - {"torch"} else None
        if self.state is not None:
            self.after = copy_values(self.model)
            assert self.before is not None
            if self.before.generators != self.after.generators:
                self.moved |= {"a generator in an attribute"}

    @property
    def arguments(self) -> list[Tensor]:
        """All tensors the model was called with."""
        return list(tensors_in((self.args, self.kwargs)))

    def was_given(self, tensor: Tensor) -> bool:
        """Whether it was called with this very tensor."""
        return any(given is tensor for given, _ in self._versions)

    def find_kept(self, held: HeldValues | None) -> set[str]:
        """The attributes that hold something else after another run, and were not changed since."""
        if self.after is None or held is None:
            return set()
        return find_difference(self.after.values, held.values) - self.transient

    def note_transient(self) -> None:
        """What the user has taken out of the model since the call is not kept by it."""
        if self.after is not None:
            self.transient = find_difference(self.after.values, copy_values(self.model).values)

    @property
    def ends(self) -> set[Any]:
        """The nodes of the graph that end at what it returned."""
        return set(self._ends)

    @property
    def leaves_traces(self) -> bool:
        """Whether the call changed what it was given or what the model holds, or drew elsewhere.

        Such a call can be repeated from a snapshot only.
        """
        has_written = any(version_of(tensor) != version for tensor, version in self._versions)
        has_changed = False
        if self.before is not None and self.after is not None:
            has_changed = bool(find_difference(self.before.values, self.after.values))
        return has_written or has_changed or bool(self.moved - {"torch"})

    @property
    def recorded_outputs(self) -> Node | None:
        """What it returned; None if the user has written to it since."""
        assert self.returned is not None
        now = [version_of(tensor) for tensor in leaves(self.returned)]
        return self.returned if now == self._returned_versions else None

    @contextmanager
    def circumstances(self) -> Iterator[None]:
        """As when it was called: what the model held, generators, precision, gradients."""
        with ExitStack() as stack:
            if self.state is not None:
                self.state.restore()
            self.random.restore()
            for device, dtype, enabled in self.autocast:
                stack.enter_context(torch.autocast(device, dtype, enabled=enabled))
            stack.enter_context(torch.set_grad_enabled(self.with_gradients))
            stack.enter_context(mark_repeating())
            yield


@dataclass(frozen=True)
class Execution:
    """One run of a call.

    Attributes:
        batch: the number of samples.
        outputs: what it returned.
        factors: of the gradients that arrived.
        unknown: parameters with gradients at sites that were never probed, so that nobody knows
            whose they are: the run took another way than the call.
        inner: gradients of those arguments that require them, in order.
        held: what the model held after it; None if that is not compared.
        has_same_draws: whether NumPy's and Python's generators drew as much as in the call: then
            what they drew was for all samples together, or for as many.
    """

    batch: int
    outputs: Node
    factors: Factors
    unknown: frozenset[str] = frozenset()
    inner: tuple[Tensor | None, ...] = ()
    held: HeldValues | None = None
    has_same_draws: bool = True


class FactorRecorder:
    """Makes the factors of what arrives at sites in one pass.

    Attributes:
        factors: what it made.
        unknown: the parameters with gradients that belong to nobody known.
    """

    def __init__(self, tape: Tape) -> None:
        self.factors: Factors = {}
        self.unknown: set[str] = set()
        self._tape = tape
        self._counts: Counter[SiteKey] = Counter()

    def __call__(self, arrival: Arrival) -> None:
        """A gradient arrived."""
        key, made = arrival.site.key, self._tape.factors_of(arrival)
        if made or made is None:
            self.factors[key, self._counts[key]] = made
        elif arrival.grad.any():
            self.unknown.update(n for use in arrival.site.uses for n in use.target.names)
        self._counts[key] += 1


Recapture = Callable[[int], AbstractContextManager["Tape"]]
"""A tape of so many samples for what the model does inside."""
Seeds = Callable[[Node], "list[Seed]"]
"""The outputs that the backward pass begins with, and their gradients."""


def repeat(
    call: ModelCall,
    choose: Callable[[Any], Any],
    batch: int,
    seeds: Seeds | None,
    recapture: Recapture,
    mode: AbstractContextManager[Any] | None = None,
    *,
    hold: bool = False,
) -> Execution:
    """Run a call with what ``choose`` makes of its arguments, of ``batch`` samples.

    Without ``seeds`` there is no backward pass; with ``hold``, what the model holds afterwards is
    copied. Whoever calls this puts back the model's state and the generators afterwards.
    """
    args, kwargs = choose((call.args, call.kwargs))
    inner = [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad]
    mode = mode or nullcontext()
    with call.circumstances(), recapture(batch) as tape:
        with mode:
            outputs = parse_output(call.model(*args, **kwargs))
        has_same_draws = call.random_after is None or call.random_after.has_same_foreign()
        recorder = FactorRecorder(tape)
        if seeds is not None:
            with mode if tape.recomputes or tape.is_checkpointed else nullcontext():
                _propagate(tape, seeds(outputs), inner, recorder)
        grads = tuple(tensor.grad for tensor in inner)
        held = None
        if call.after is not None and (hold or call.moved - {"torch"}):
            held = copy_values(call.model)
            has_same_draws &= held.generators == call.after.generators
        unknown = frozenset(recorder.unknown)
        return Execution(batch, outputs, recorder.factors, unknown, grads, held, has_same_draws)


def _propagate(
    tape: Tape,
    seeds: list[Seed],
    inner: Sequence[Tensor],
    observe: Callable[[Arrival], object],
) -> None:
    """Back-propagate from these outputs.

    One output may be computed from another. What the losses sent to either is known in all, so that
    it takes the place of what arrives there.
    """
    own = {id(seed.output): seed for seed in seeds if seed.output.requires_grad}
    if not own:
        return
    tape.accept_ambiguity()
    for output, gradient, is_before_hooks in own.values():
        put = partial(_put, gradient)
        if is_before_hooks:
            add_first_hook(output, put)
        else:
            output.register_hook(put)
    roots = [seed.output for seed in own.values()]
    tape.propagate(roots, [torch.zeros_like(root) for root in roots], observe, leaves=inner)


def _put(gradient: Tensor, _: Tensor) -> Tensor:
    return gradient
