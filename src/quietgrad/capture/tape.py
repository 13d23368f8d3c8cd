"""What one backward pass records: for every use of a parameter, the factor of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from quietgrad.capture.layout import Layout, Probe
from quietgrad.errors import (
    ChangedGradientError,
    SampleMixingError,
    StrayGradientError,
    UnsupportedOperationError,
)
from quietgrad.factors.base import Factor, Stamp, Verdict, any_of, real_parts, send, verdict_of
from quietgrad.factors.combined import combine

if TYPE_CHECKING:
    from quietgrad.capture.call import Derived, Target, Use
    from quietgrad.capture.collation import Collation
    from quietgrad.capture.layout import LayoutTable, SiteKey
    from quietgrad.capture.owners import OwnedLayout
    from quietgrad.capture.parameters import Provenance
    from quietgrad.capture.repetition import ModelCall


class Sink(Protocol):
    """Takes each parameter's factor as soon as its last use has been back-propagated."""

    def parameter_done(self, name: str, factor: Factor) -> None:
        """``factor`` holds the whole gradients of parameter ``name``."""


class Site:
    """One captured operation of one forward pass.

    Attributes:
        owners: of its rows, if no dimension runs over the samples and probes have told them.
        asks_owners: whether they are to be told in any case.
        names: the parameters used, as often as they are.
        reads: ids that it looks up, and the row of its output that each of them enters.
    """

    asks_owners = False
    reads: tuple[Tensor, Tensor] | None = None

    def __init__(
        self,
        tape: Tape,
        key: SiteKey,
        shape: torch.Size,
        dims: range,
        uses: Sequence[Use],
        names: Sequence[str],
    ) -> None:
        self.key, self.shape, self.dims, self.uses, self.names = key, shape, dims, uses, names
        self.owners: OwnedLayout | None = None
        # What is recomputed inside the backward pass belongs to no call that is known.
        self.call = len(tape.calls) if tape.phase is TapePhase.FORWARD else -1
        self._tape = tape
        self.changes = -1  # of the table of layouts, when it was asked
        self.known: tuple[bool, list[Layout]] = (False, [])

    @property
    def parameters(self) -> str:
        """The names of all parameters used here, for messages."""
        return ", ".join(sorted({f"'{n}'" for use in self.uses for n in use.target.names}))

    def is_on(self, tape: Tape) -> bool:
        """Whether it was recorded there."""
        return self._tape is tape

    def receive(self, grad: Tensor | None, saved: tuple[Tensor, ...]) -> None:
        """Called by autograd with the gradient that arrived here."""
        self._tape.receive(self, grad, saved)


class Arrival(NamedTuple):
    """A gradient that arrived at a site while a probe ran, and what the site had saved.

    ``stamp`` tells whether they were written to since. They may be gone when the factors are
    ``made``.
    """

    site: Site
    grad: Tensor
    saved: tuple[Tensor, ...]
    stamp: Stamp
    made: Sequence[TargetFactor] = ()


class TargetFactor(NamedTuple):
    """A factor, and what it is the gradient of.

    ``is_owned`` if its rows may come in any order; ``held`` are the samples that it is of, if those
    are not all.
    """

    target: Target
    factor: Factor
    is_owned: bool = False
    held: Tensor | None = None

    def select(self, samples: Tensor) -> TargetFactor:
        """That of some samples."""
        if self.held is not None:
            samples = torch.searchsorted(self.held, samples)
        factor = self.factor.select(send(samples, self.factor.device))
        return self._replace(factor=factor, held=None)

    def only(self, samples: Tensor) -> TargetFactor:
        """The same without others, which is asked for these samples, in order, by their numbers."""
        return self if self.is_owned else self.select(samples)._replace(held=samples)

    @property
    def tensors(self) -> list[Tensor]:
        """What it is made of, samples first."""
        return [tensor for stamp in self.factor.stamps() for tensor in stamp.tensors]


class TapePhase(Enum):
    """What a gradient that arrives at a site means."""

    FORWARD = "forward"
    PROBING = "probing"
    COLLECTING = "collecting"
    CLOSED = "closed"


class Tape:
    """Collects the uses of all managed parameters from the forward to the end of one backward."""

    def __init__(
        self, layouts: LayoutTable, provenance: Provenance, batch: int, *, verify: bool
    ) -> None:
        self.layouts, self.provenance = layouts, provenance
        self.token = torch.zeros((), requires_grad=True, device="cpu")
        self.batch, self.verify = batch, verify
        self.scale = 1.0  # of all losses, in every pass
        self.is_of_one = batch == 1  # all rows may be copies of one sample
        self.recomputes = self.is_checkpointed = self.reads_numbers = self.selects_rows = False
        self.phase = TapePhase.FORWARD
        self.sites: list[Site] = []
        self._all_told_apart = False
        self._probe: Probe | None = None
        self._observe: Callable[[Arrival], object] = _ignore
        self._sink: Sink | None = None
        self._expected: dict[str, int] = {}  # uses whose gradients have not come yet
        self._factors: dict[str, dict[Target, list[Factor]]] = {}
        self._done: set[str] = set()
        self._waiting: set[str] = set()  # for a later gradient, with factors that may be written to
        self._doubts: list[tuple[str, Verdict]] = []  # whether something was written to
        self._entries: dict[str, Tensor] = {}
        self.derivations: dict[int, Derived] = {}
        self.functions: set[Callable[..., Any]] = set()
        self.calls: list[ModelCall] = []
        self.collation: Collation | None = None
        # In it a graph may be kept behind a backward pass; compiled code has to be told.
        self.keeping: Callable[[], AbstractContextManager[Any]] = nullcontext

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` depends neither on data nor on trainable parameters."""
        return self.provenance.is_constant(tensor, self.batch)

    def is_constant_beside(self, tensor: Tensor, shape: torch.Size | None) -> bool:
        """The same where it meets a parameter, in arithmetic if that has this shape."""
        return self.provenance.is_constant_beside(tensor, self.batch, shape)

    def entry(self, name: str, parameter: Tensor) -> Tensor:
        """The start of all parameter-only computation on ``parameter``."""
        if name not in self._entries:
            with torch.enable_grad():
                values = real_parts(parameter.detach())
                if self.provenance.at_rest(parameter) is not parameter:
                    values = values.clone()  # what is gathered is freed before gradients are summed
                self._entries[name] = apply_function(_Entry, values, self.token, self, name)
        return self._entries[name]

    def add_derived(self, derived: Derived, known_as: Tensor | None = None) -> Tensor:
        """Remember a tensor computed from parameters alone; also for another one in its place."""
        self.derivations[id(derived.tensor)] = derived
        if known_as is not None:
            self.derivations[id(known_as)] = derived
        return derived.tensor

    def mark_chosen(self, derived: Derived) -> Tensor:
        """Data decided which entry of a parameter it is."""
        return self.add_derived(replace(derived, is_chosen=True))

    def derived(self, tensor: Tensor) -> Derived | None:
        """The derivation behind ``tensor``, if it has one."""
        return self.derivations.get(id(tensor))

    def add_site(
        self,
        key: SiteKey,
        shape: torch.Size,
        dims: range,
        uses: Sequence[Use] = (),
        names: Sequence[str] = (),
    ) -> Site:
        """Count uses, so that parameters are known to be complete when all have come back."""
        site = Site(self, key, shape, dims, uses, names)
        # What activation checkpointing recomputes was counted when it first ran, or never.
        if self.phase is TapePhase.FORWARD:
            self.sites.append(site)
            for name in site.names:
                self._expected[name] = self._expected.get(name, 0) + 1
        return site

    def withdraw(self, sites: Collection[Site]) -> None:
        """These are not used after all."""
        self.sites = [site for site in self.sites if site not in sites]
        for name in (name for site in sites for name in site.names):
            self._expected[name] -= 1

    def tap_output(self, output: Tensor, site: Site, saved: Sequence[Tensor]) -> Tensor:
        """``output`` itself; ``site`` receives its gradient, with what was saved."""
        tapped: Tensor = apply_function(_TapOutput, output, self.token, site, *saved)
        return tapped

    def tap_source(self, values: Tensor, site: Site, shape: torch.Size) -> Tensor:
        """``values`` broadcast to ``shape``; their gradient goes to ``site`` and ends there."""
        tapped: Tensor = apply_function(_TapSource, values, self.token, site, shape)
        return tapped

    def operations(self) -> dict[str, tuple[str, ...]]:
        """For every parameter the operations that used it, each once, in the order they ran."""
        found: dict[str, dict[str, None]] = {}
        for site in self.sites:
            for name in (name for use in site.uses for name in use.target.names):
                found.setdefault(name, {})[str(site.key)] = None
        return {name: tuple(keys) for name, keys in found.items()}

    def list_sizes(self, call: int = 0) -> tuple[tuple[SiteKey, torch.Size], ...]:
        """What the captured operations of a call gave, in order; arguments are none."""
        return tuple(
            (site.key, site.shape) for site in self.sites if site.uses and site.call == call
        )

    def is_unsettled(self) -> bool:
        """Whether some operation's rows could belong to samples in more than one way."""
        known = map(self._known, self.sites)
        return any(not is_known or len(left) > 1 for is_known, left in known)

    def has_owned_rows(self) -> bool:
        """Whether some operation's rows belong to samples in a way that only probes can tell."""
        return self.batch > 1 and any(not self._possible(site) for site in self.sites)

    def _possible(self, site: Site) -> list[Layout]:
        """The layouts by one dimension that are left."""
        return self._known(site)[1]

    def _known(self, site: Site) -> tuple[bool, list[Layout]]:
        """Whether probes have seen gradients at a site, and the layouts that are left."""
        table = self.layouts
        if site.changes != table.changes:
            left = table.possible(site.key, site.shape, site.dims, self.batch)
            left = [] if site.key in table.owned else left
            site.changes, site.known = table.changes, (table.knows(site.key), left)
        return site.known

    def accept_ambiguity(self) -> None:
        """Every sample was distinguished from every other: what is left is exact here."""
        self._all_told_apart = True

    def probe(self, losses: Tensor, probe: Probe) -> list[Arrival]:
        """Back-propagate losses times the probe's seeds; what arrives at the sites, in order."""
        arrivals: list[Arrival] = []
        seeds = self.scaled(send(probe.seeds, losses.device, losses.dtype))
        self.propagate([losses], [seeds], arrivals.append, probe=probe)
        return arrivals

    def free_graph(self, losses: Tensor) -> None:
        """Back-propagate once more, so that autograd lets go of what it had saved."""
        self.propagate([losses], [torch.zeros_like(losses)], _ignore)

    def scaled(self, seeds: Tensor) -> Tensor:
        """What losses are to be multiplied by for these seeds of a probe."""
        return seeds if self.scale == 1.0 else seeds * self.scale

    def propagate(
        self,
        roots: Sequence[Tensor],
        gradients: Sequence[Tensor],
        observe: Callable[[Arrival], object],
        *,
        leaves: Sequence[Tensor] = (),
        probe: Probe | None = None,
        keep_graph: bool = False,
    ) -> None:
        """Back-propagate these gradients, and let what arrives at the sites be observed.

        ``leaves`` get their gradients, too. The graph is also kept if it is a ``probe`` that runs.
        """
        self.phase, self._probe, self._observe = TapePhase.PROBING, probe, observe
        keep_graph = keep_graph or probe is not None
        with self.keeping() if keep_graph else nullcontext():
            torch.autograd.backward(
                list(roots), list(gradients), retain_graph=keep_graph, inputs=self._ends(leaves)
            )
        self._observe = _ignore

    def collect(self, losses: Tensor, sink: Sink, scale: float) -> None:
        """The one real backward pass: factors go to ``sink`` as parameters become complete."""
        self.phase, self._sink = TapePhase.COLLECTING, sink
        seeds = torch.full_like(losses, scale * self.scale)
        torch.autograd.backward(losses, seeds, inputs=self._ends())
        self._complete_all()

    @contextmanager
    def collecting(self, sink: Sink) -> Iterator[None]:
        """The real backward pass runs in here, whoever began it."""
        self.phase, self._sink = TapePhase.COLLECTING, sink
        yield
        self._complete_all()

    def collect_recorded(self, arrivals: Sequence[Arrival], sink: Sink) -> None:
        """The same from what a probe of all losses has recorded, without another pass."""
        self.phase, self._sink = TapePhase.COLLECTING, sink
        # Asked before one is read: a device is waited for once.
        are_silent = [
            None if each.made or self.layouts.knows(each.site.key) else verdict_of(~each.grad.any())
            for each in arrivals
        ]
        for (site, grad, saved, stamp, made), is_silent in zip(arrivals, are_silent, strict=True):
            self._refuse_changed(site.uses[0].target.names[0], stamp.differs())
            if made:
                self._refuse_late(site)
                self._keep(made)
                self._waiting.update(site.names)  # what they hold may have been written to since
            else:
                self._record(site, grad, saved, is_silent)
            self._count_down(site)
        self._complete_all()

    def settled(self, arrival: Arrival, made: Sequence[TargetFactor]) -> Arrival:
        """The same without what its factors were made of, if they hold nothing of it."""
        self._refuse_changed(arrival.site.uses[0].target.names[0], arrival.stamp.differs())
        for each in made:
            each.factor.seal()
        return Arrival(arrival.site, arrival.grad.new_empty(0), (), Stamp(), made)

    def _keep(self, made: Iterable[TargetFactor]) -> None:
        for target, factor, *_ in made:
            for name in target.names:
                self._factors.setdefault(name, {}).setdefault(target, []).append(factor)

    def _complete_all(self) -> None:
        for name in list(self._factors):
            self._complete(name)
        for name, is_changed in self._doubts:
            if is_changed:
                raise ChangedGradientError(name)

    def _refuse_changed(self, name: str, is_changed: Verdict) -> None:
        """At once, or when all verdicts are read."""
        if is_changed is True:
            raise ChangedGradientError(name)
        if is_changed is not False:
            self._doubts.append((name, is_changed))

    def _ends(self, leaves: Sequence[Tensor] = ()) -> list[Tensor] | None:
        """Nothing but the taps is to see gradients; reentrant checkpointing has no such option."""
        return None if self.recomputes else [self.token, *leaves]

    def factors_of(self, arrival: Arrival, *, is_probed: bool = False) -> list[TargetFactor] | None:
        """One for each use at the site.

        None if its rows may belong to samples in several ways, all of them exact for the gradients
        that were probed, but perhaps not for others. Empty if no gradient has come here yet, or
        nobody knows whose the rows are.
        """
        site, grad, saved, *_ = arrival
        left, is_owned = self._possible(site), site.owners is not None
        if self.batch > 1 and not is_owned:
            if not self.layouts.knows(site.key) or not left:
                return []
            if len(left) > 1 and not is_probed:
                return None
        layout = self._layout(site, grad, left)
        return [
            TargetFactor(use.target, use.make(layout, grad, *saved), is_owned) for use in site.uses
        ]

    def find_layout(self, arrival: Arrival) -> Layout | None:
        """Whose the rows of a gradient are; None if nobody knows, or it may be several ways."""
        if arrival.site.owners is not None:
            return arrival.site.owners
        left = self._possible(arrival.site)
        return left[0] if len(left) == 1 else None

    def running_probe(self) -> Probe | None:
        """The probe that is being back-propagated; None if none is."""
        return self._probe if self.phase is TapePhase.PROBING else None

    def close(self) -> None:
        """Forget everything; gradients that arrive later are refused."""
        self.phase = TapePhase.CLOSED
        self.sites.clear()
        self.calls.clear()
        self.collation = None
        self._factors.clear()
        self._entries.clear()
        self.derivations.clear()
        self._doubts.clear()
        self._sink = None

    def is_argument(self, tensor: Tensor) -> bool:
        """Whether the model was called with it."""
        return any(call.was_given(tensor) for call in self.calls)

    def owns(self, site: Any) -> bool:
        """Whether it is one of this recording, and not of one from before."""
        return not isinstance(site, Site) or site.is_on(self)

    def receive(self, site: Site, grad: Tensor | None, saved: tuple[Tensor, ...]) -> None:
        """A gradient arrived at ``site``."""
        if self.phase is TapePhase.PROBING:
            if grad is not None:
                stamp = Stamp(grad, *saved)
                if self.verify and self._probe is not None and self._probe.is_whole:
                    stamp.seal()  # what is verified here is what will be clipped
                self._observe(Arrival(site, grad, saved, stamp))
        elif self.phase is TapePhase.COLLECTING:
            if grad is not None:
                self._record(site, grad, saved)
            self._count_down(site)
        else:
            raise stray_gradient(f"{site.parameters} ({site.key})")

    def joined_sink(self) -> object:
        """What takes factors now, if nothing is to be asked about single gradients."""
        is_plain = self.phase is TapePhase.COLLECTING and not (self.verify or self.recomputes)
        return self._sink if is_plain else None

    def are_last_uses(self, names: Iterable[str]) -> bool:
        """Whether one gradient of each of these is missing, and none has come yet."""
        return all(
            self._expected[name] == 1 and name not in self._factors and name not in self._done
            for name in names
        )

    def mark_done(self, names: Sequence[str]) -> None:
        """The gradients of these have come, and were taken."""
        self._expected.update(dict.fromkeys(names, 0))
        self._done.update(names)

    def settled_layout(self, site: Site) -> Layout | None:
        """Whose the rows of a site are, if it is known and by one dimension."""
        was_seen, left = self._known(site)
        is_settled = site.owners is None and was_seen and len(left) == 1 and self.batch > 1
        return left[0] if is_settled else None

    def refuse_escape(self, name: str) -> None:
        """A tensor computed from parameters alone reached the loss without meeting any data.

        So it seems: in a forward with another number of samples than the batch has, data is taken
        for a constant. If the engine is not asked about it, the backward pass is a stray one.
        """
        if self.phase not in (TapePhase.PROBING, TapePhase.COLLECTING):
            raise stray_gradient(f"'{name}'")
        raise UnsupportedOperationError(
            f"parameter '{name}' reaches the losses through a computation on parameters alone (a "
            "penalty on weights, or a derived tensor returned by the model and used outside its "
            "forward). Its gradient has no per-sample part that could be clipped. Use it inside "
            "the model's forward together with data, or use the optimizer's weight_decay."
        )

    def _record(
        self,
        site: Site,
        grad: Tensor,
        saved: tuple[Tensor, ...],
        is_silent: Verdict | None = None,
    ) -> None:
        was_seen, left = self._known(site)
        settled = self._all_told_apart or len(left) == 1
        is_known = site.owners is not None or (settled and left and was_seen)
        if self.batch > 1 and not is_known and (not grad.any() if is_silent is None else is_silent):
            return  # silent in every probe, too: it contributes exactly zero
        layout = self._layout(site, grad, left)
        self._refuse_late(site)
        made = [TargetFactor(use.target, use.make(layout, grad, *saved)) for use in site.uses]
        if self.verify:
            for each in made:
                each.factor.seal()
        self._keep(made)

    def _is_broken(self, grad: Tensor, left: Sequence[Layout]) -> bool:
        """Whether there is nothing to learn from but NaN, and it tells which samples are broken."""
        if grad.nan_to_num(0.0, 1.0, 1.0).any():
            return False
        broken = [layout.split(grad.isnan(), 0).any(1) for layout in left]
        return len(left) == 1 or all(bool(samples.all()) for samples in broken)

    def _layout(self, site: Site, grad: Tensor, left: Sequence[Layout]) -> Layout:
        if self.batch == 1:
            return Layout(1)
        if site.owners is not None:
            return site.owners
        shape = grad.shape
        if not left:
            raise SampleMixingError(
                f"{site.key} uses parameter {site.parameters} on a tensor of shape "
                f"{tuple(shape)}, none of whose dimensions can be mapped to the {self.batch} "
                "samples of this batch. Keep one dimension that runs over the samples (or over a "
                "fixed number of rows for each)."
            )
        settled = self._known(site)[0] and (len(left) == 1 or self._all_told_apart)
        if not settled and not self._is_broken(grad, left):
            raise SampleMixingError(
                f"{site.key} uses parameter {site.parameters} on a tensor of shape {tuple(shape)} "
                "whose rows may belong to the samples in more than one way, and it ran only inside "
                "the backward pass. Use torch.utils.checkpoint with use_reentrant=False."
            )
        return left[0]

    def _count_down(self, site: Site) -> None:
        expected = self._expected
        for name in site.names:
            expected[name] = expected.get(name, 0) - 1
        if self.recomputes:
            self._waiting.update(site.names)
            return  # further uses may appear while segments are recomputed
        for name in site.names:
            if expected[name] != 0:
                self._waiting.add(name)
            elif name not in self._done:
                self._complete(name)

    def _complete(self, name: str) -> None:
        self._done.add(name)
        uses = self._factors.pop(name, None)
        if not uses or self._sink is None:
            return
        if name in self._waiting:
            changed = any_of(each.changed() for factors in uses.values() for each in factors)
            self._refuse_changed(name, changed)
        pulled = []
        for target, factors in uses.items():
            factor = factors[0] if len(factors) == 1 else combine(factors)
            pulled.append(target.pull(name, factor))
        self._sink.parameter_done(name, pulled[0] if len(pulled) == 1 else combine(pulled))

    def _refuse_late(self, site: Site) -> None:
        if not self._done.isdisjoint(site.names):
            late = [name for name in site.names if name in self._done]
            raise UnsupportedOperationError(
                f"parameter '{late[0]}' was used again ({site.key}) after its gradients had been "
                "clipped: a forward that runs inside the backward pass reuses it. Use "
                "torch.utils.checkpoint with use_reentrant=False."
            )


def _ignore(arrival: Arrival) -> None:
    pass


def stray_gradient(where: str) -> StrayGradientError:
    """What is said of a gradient that the engine was not asked for, or not in time."""
    return StrayGradientError(
        f"a gradient reached parameter {where} outside of the engine: backward() was called "
        "directly, or on a graph from before the last engine.backward(), or the forward "
        "differentiates itself by torch.autograd.grad(), which is not supported. Pass the vector "
        "of per-sample losses to engine.backward() instead; nothing was accumulated."
    )


def apply_function(function: Any, *args: Any) -> Any:
    """As ``function.apply``, in less time."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    # What else `apply` does is for functions of users.
    return super(_SingleLevelFunction, function).apply(*args)


class _TapOutput(torch.autograd.Function):
    """Identity on an operation's output; its backward hands the gradient to the tape.

    The output is marked dirty instead of copied, so that in-place activations behind it stay
    legal. What the site needs is saved through autograd, so that activation checkpointing can drop
    and recompute it.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, token: Tensor, site: Site, *saved: Tensor) -> Tensor:
        ctx.site = site
        ctx.save_for_backward(*saved)
        ctx.mark_dirty(output)
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        ctx.site.receive(grad, saved)
        return (grad, None, None, *[None] * len(saved))


class _TapSource(torch.autograd.Function):
    """A parameter's values, broadcast to the shape of their use; the gradient ends at the tape."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, token: Tensor, site: Site, shape: torch.Size) -> Tensor:
        ctx.site = site
        ctx.set_materialize_grads(False)
        return values.expand(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[None, None, None, None]:
        ctx.site.receive(grad, ())
        return None, None, None, None


class _Entry(torch.autograd.Function):
    """Where a computation on parameters alone begins; ordinary backward must never get here."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, token: Tensor, tape: Tape, name: str) -> Tensor:
        ctx.tape, ctx.parameter = tape, name
        ctx.set_materialize_grads(False)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[None, None, None, None]:
        if grad is not None:
            ctx.tape.refuse_escape(ctx.parameter)
        return None, None, None, None
