"""What one backward pass records: for every use of a parameter, the factor of its gradients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from quietgrad.capture.layout import Layout
from quietgrad.errors import (
    ChangedGradientError,
    SampleMixingError,
    StrayGradientError,
    UnsupportedOperationError,
)
from quietgrad.factors.base import Factor
from quietgrad.factors.combined import combine

if TYPE_CHECKING:
    from quietgrad.capture.layout import LayoutTable, SiteKey
    from quietgrad.capture.parameters import Derived, Provenance, Target, Use
    from quietgrad.capture.verification import ModelCall


class Sink(Protocol):
    """Takes each parameter's factor as soon as its last use has been back-propagated."""

    def parameter_done(self, name: str, factor: Factor) -> None:
        """``factor`` holds the whole gradients of parameter ``name``."""


class Site:
    """One captured operation of one forward pass."""

    def __init__(
        self, tape: Tape, key: SiteKey, shape: torch.Size, dims: range, uses: Sequence[Use]
    ) -> None:
        self.key, self.shape, self.dims, self.uses = key, shape, dims, uses
        self._tape = tape

    @property
    def parameters(self) -> str:
        """The names of all parameters used here, for messages."""
        return ", ".join(sorted({f"'{n}'" for use in self.uses for n in use.target.names}))

    def receive(self, grad: Tensor | None, saved: tuple[Tensor, ...]) -> None:
        """Called by autograd with the gradient that arrived here."""
        self._tape.receive(self, grad, saved)


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
        self.token = torch.zeros((), requires_grad=True)
        self.batch, self.verify = batch, verify
        self.recomputes = self.reads_numbers = False
        self.phase = TapePhase.FORWARD
        self._sites: list[Site] = []
        self._all_told_apart = False
        self._seeded = torch.empty(0)
        self._sink: Sink | None = None
        self._expected: Counter[str] = Counter()
        self._factors: dict[str, dict[Target, list[Factor]]] = {}
        self._done: set[str] = set()
        self._entries: dict[str, Tensor] = {}
        self._derived: dict[int, Derived] = {}
        self._clean: SiteKey | None = None
        self._mixed: Site | None = None
        self._projections: dict[SiteKey, tuple[float, float]] = {}
        self.functions: set[Callable[..., Any]] = set()
        self.calls: list[ModelCall] = []

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether ``tensor`` depends neither on data nor on trainable parameters."""
        return self.provenance.is_constant(tensor, self.batch)

    def entry(self, name: str, parameter: Tensor) -> Tensor:
        """The start of all parameter-only computation on ``parameter``."""
        if name not in self._entries:
            with torch.enable_grad():
                values = parameter.detach()
                self._entries[name] = _apply(_Entry, values, self.token, self, name)
        return self._entries[name]

    def add_derived(self, derived: Derived) -> Tensor:
        """Remember a tensor computed from parameters alone."""
        self._derived[id(derived.tensor)] = derived
        return derived.tensor

    def derived(self, tensor: Tensor) -> Derived | None:
        """The derivation behind ``tensor``, if it has one."""
        return self._derived.get(id(tensor))

    def add_site(self, key: SiteKey, shape: torch.Size, dims: range, uses: Sequence[Use]) -> Site:
        """Count uses, so that parameters are known to be complete when all have come back."""
        site = Site(self, key, shape, dims, uses)
        # What activation checkpointing recomputes was counted when it first ran, or never.
        if self.phase is TapePhase.FORWARD:
            self._sites.append(site)
            for use in uses:
                self._expected.update(use.target.names)
        return site

    def tap_output(self, output: Tensor, site: Site, saved: Sequence[Tensor]) -> Tensor:
        """``output`` itself; ``site`` receives its gradient, with what was saved."""
        return _apply(_TapOutput, output, self.token, site, *saved)

    def tap_source(self, values: Tensor, site: Site, shape: torch.Size) -> Tensor:
        """``values`` broadcast to ``shape``; their gradient goes to ``site`` and ends there."""
        return _apply(_TapSource, values, self.token, site, shape)

    def operations(self) -> dict[str, tuple[str, ...]]:
        """For every parameter the operations that used it, each once, in the order they ran."""
        found: dict[str, dict[str, None]] = {}
        for site in self._sites:
            for name in (name for use in site.uses for name in use.target.names):
                found.setdefault(name, {})[str(site.key)] = None
        return {name: tuple(keys) for name, keys in found.items()}

    def is_unsettled(self) -> bool:
        """Whether some operation's rows could belong to samples in more than one way."""
        return any(
            not self.layouts.knows(site.key)
            or len(self.layouts.possible(site.key, site.shape, site.dims, self.batch)) > 1
            for site in self._sites
        )

    def accept_ambiguity(self) -> None:
        """Every sample was distinguished from every other: what is left is exact here."""
        self._all_told_apart = True

    def probe(self, losses: Tensor, seeded: Tensor) -> dict[SiteKey, tuple[float, float]]:
        """Back-propagate only the ``seeded`` samples' losses and strike out what this refutes.

        Returns, for each operation, a linear function of the gradient that arrived, and how far it
        may be off by rounding.
        """
        self.phase, self._seeded = TapePhase.PROBING, seeded
        self._clean = self._mixed = None
        self._projections = {}
        # Nothing but the taps is to see this pass; reentrant checkpointing has no such option.
        inputs = None if self.recomputes else [self.token]
        seeds = seeded.to(losses.dtype)
        torch.autograd.backward(losses, seeds, retain_graph=True, inputs=inputs)
        if self._mixed is not None:
            raise SampleMixingError(_mixing_message(self._mixed, self._clean))
        return self._projections

    def collect(self, losses: Tensor, sink: Sink, scale: float) -> None:
        """The one real backward pass: factors go to ``sink`` as parameters become complete."""
        self.phase, self._sink = TapePhase.COLLECTING, sink
        torch.autograd.backward(losses, torch.full_like(losses, scale))
        for name in list(self._factors):
            self._complete(name)

    def seeded_samples(self) -> Tensor | None:
        """Which samples' losses are being back-propagated by a probe; None if none is running."""
        return self._seeded if self.phase is TapePhase.PROBING else None

    def close(self) -> None:
        """Forget everything; gradients that arrive later are refused."""
        self.phase = TapePhase.CLOSED
        self._sites.clear()
        self.calls.clear()
        self._factors.clear()
        self._entries.clear()
        self._derived.clear()
        self._sink = None

    def receive(self, site: Site, grad: Tensor | None, saved: tuple[Tensor, ...]) -> None:
        """A gradient arrived at ``site``."""
        if self.phase is TapePhase.PROBING:
            if grad is not None:
                self._observe(site, grad)
        elif self.phase is TapePhase.COLLECTING:
            if grad is not None:
                self._record(site, grad, saved)
            self._count_down(site)
        else:
            raise _stray(f"{site.parameters} ({site.key})")

    def refuse_escape(self, name: str) -> None:
        """A tensor computed from parameters alone reached the loss without meeting any data.

        So it seems: in a forward with another number of samples than the batch has, data is taken
        for a constant. If the engine is not asked about it, the backward pass is a stray one.
        """
        if self.phase not in (TapePhase.PROBING, TapePhase.COLLECTING):
            raise _stray(f"'{name}'")
        raise UnsupportedOperationError(
            f"parameter '{name}' reaches the losses through a computation on parameters alone (a "
            "penalty on weights, or a derived tensor returned by the model and used outside its "
            "forward). Its gradient has no per-sample part that could be clipped. Use it inside "
            "the model's forward together with data, or use the optimizer's weight_decay."
        )

    def _observe(self, site: Site, grad: Tensor) -> None:
        if self._mixed is not None:
            return
        verdict = self.layouts.observe(site.key, grad, site.dims, self._seeded)
        if verdict is False:
            self._mixed = site
        elif verdict:
            self._clean = site.key
        value, tolerance = self._projections.get(site.key, (0.0, 0.0))
        more, slack = _project(grad)
        self._projections[site.key] = value + more, tolerance + slack

    def _record(self, site: Site, grad: Tensor, saved: tuple[Tensor, ...]) -> None:
        left = self.layouts.possible(site.key, grad.shape, site.dims, self.batch)
        settled = self._all_told_apart or len(left) == 1
        if self.batch > 1 and not (settled and self.layouts.knows(site.key)) and not grad.any():
            return  # silent in every probe, too: it contributes exactly zero
        layout = self._layout(site, grad, left)
        for use in site.uses:
            self._refuse_late(use.target.names, site)
            factor = use.make(layout, grad, *saved)
            if self.verify:
                factor.seal()
            for name in use.target.names:
                self._factors.setdefault(name, {}).setdefault(use.target, []).append(factor)

    def _is_broken(self, grad: Tensor, left: Sequence[Layout]) -> bool:
        """Whether there is nothing to learn from but NaN, and it tells which samples are broken."""
        if grad.nan_to_num(0.0, 1.0, 1.0).any():
            return False
        broken = [layout.split(grad.isnan(), 0).any(1) for layout in left]
        return len(left) == 1 or all(bool(samples.all()) for samples in broken)

    def _layout(self, site: Site, grad: Tensor, left: Sequence[Layout]) -> Layout:
        if self.batch == 1:
            return Layout(1)
        shape = grad.shape
        if not left:
            raise SampleMixingError(
                f"{site.key} uses parameter {site.parameters} on a tensor of shape "
                f"{tuple(shape)}, none of whose dimensions can be mapped to the {self.batch} "
                "samples of this batch. Keep one dimension that runs over the samples (or over a "
                "fixed number of rows for each)."
            )
        settled = self.layouts.knows(site.key) and (len(left) == 1 or self._all_told_apart)
        if not settled and not self._is_broken(grad, left):
            raise SampleMixingError(
                f"{site.key} uses parameter {site.parameters} on a tensor of shape {tuple(shape)} "
                "whose rows may belong to the samples in more than one way, and it ran only inside "
                "the backward pass. Use torch.utils.checkpoint with use_reentrant=False."
            )
        return left[0]

    def _count_down(self, site: Site) -> None:
        names = [name for use in site.uses for name in use.target.names]
        self._expected.subtract(names)
        if self.recomputes:
            return  # further uses may appear while segments are recomputed
        for name in dict.fromkeys(names):
            if self._expected[name] == 0:
                self._complete(name)

    def _complete(self, name: str) -> None:
        self._done.add(name)
        uses = self._factors.pop(name, None)
        if uses and self._sink is not None:
            if any(factor.changed() for factors in uses.values() for factor in factors):
                raise ChangedGradientError(name)
            pulled = [target.pull(name, combine(factors)) for target, factors in uses.items()]
            self._sink.parameter_done(name, combine(pulled))

    def _refuse_late(self, names: Iterable[str], site: Site) -> None:
        late = [name for name in names if name in self._done]
        if late:
            raise UnsupportedOperationError(
                f"parameter '{late[0]}' was used again ({site.key}) after its gradients had been "
                "clipped: a forward that runs inside the backward pass reuses it. Use "
                "torch.utils.checkpoint with use_reentrant=False."
            )


def _project(grad: Tensor) -> tuple[float, float]:
    """A fixed linear function of a gradient, and a bound on its rounding error."""
    real = torch.view_as_real(grad.detach()) if grad.is_complex() else grad.detach()
    if not real.numel():
        return 0.0, 0.0
    rows = real.reshape(-1, real.shape[-1] if real.ndim else 1)
    rows = rows if rows.dtype == torch.float64 else rows.float()
    # A product of two functions, so that all but the last sum is left to a matrix product.
    outer, inner = (
        torch.linspace(1, 2, n, dtype=rows.dtype, device=rows.device) for n in rows.shape
    )
    value = ((rows @ inner).double() @ outer.double()).item()
    most = 4 * torch.linalg.vector_norm(rows, 1).item()
    if not math.isfinite(most) and rows.dtype == torch.float32:
        return _project(grad.double())  # too large to be added up in single precision
    return value, torch.finfo(grad.dtype).eps ** 0.5 * most


def _stray(where: str) -> StrayGradientError:
    return StrayGradientError(
        f"a gradient reached parameter {where} outside of the engine: backward() was called "
        "directly, or on a graph from before the last engine.backward(). Pass the vector of "
        "per-sample losses to engine.backward() instead; nothing was accumulated."
    )


def _mixing_message(site: Site, clean: SiteKey | None) -> str:
    after = f" and {clean}" if clean is not None else " and the losses"
    return (
        f"samples are mixed: the loss of one sample sends gradient to rows of other samples at "
        f"{site.key} (parameter {site.parameters}). Something between it{after} combines samples: "
        "batch statistics, a contrastive or batch-normalised loss, an operation across the batch "
        "dimension, or a parameter used without a dimension that runs over the samples. Use "
        "per-sample operations (GroupNorm or LayerNorm instead of BatchNorm) and a loss that has "
        "one independent entry per sample."
    )


def _apply(function: Any, *args: Any) -> Tensor:
    result: Tensor = function.apply(*args)
    return result


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
    @once_differentiable
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
    @once_differentiable
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
