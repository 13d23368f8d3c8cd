"""From clipped sums to an update: their bound, the radii, the noise and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from quietgrad.capture import refusals
from quietgrad.clipping import Clipping
from quietgrad.distributed.sharding import like_shard, local_of
from quietgrad.distributed.world import World
from quietgrad.errors import BoundError, MemoryExhaustedError, StrayGradientError, TrainableSetError
from quietgrad.factors.base import like_parameter, real_parts
from quietgrad.grouping.base import Group, sensitivity
from quietgrad.methods.adaptive_radius import AdaptiveRadius
from quietgrad.noise import Noise

if TYPE_CHECKING:
    from quietgrad.capture.session import Capture
    from quietgrad.engine.budget import Budget
    from quietgrad.methods.inner_outer import Momentum


@contextmanager
def explain_memory_errors(samples: int) -> Iterator[None]:
    """Say which size to try, if memory runs out in here; the micro-batch can be dropped."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not refusals.is_exhausted(error):
            raise
        raise MemoryExhaustedError(
            f"{refusals.advice(samples)}. The batch cannot go on: call "
            "engine.discard_batch() and engine.save(), and load that into an engine with the "
            "smaller size."
        ) from error


# Every sample's own norm has been held to its bound when it was clipped. This is for what could go
# wrong after that, which would not be wrong by a thousandth; adding up rounds by far less.
_ROUNDING = 1e-3


def check_sums(
    sums: Mapping[str, Tensor],
    groups: Sequence[Group],
    clipping: Clipping,
    samples: int,
    *,
    doubt: Tensor | None = None,
    world: World | None = None,
) -> bool:
    """Refuse sums that so many clipped gradients cannot have, or that are not finite.

    Args:
        sums: clipped sums by parameter; one that no sample used is missing.
        groups: with their radii.
        clipping: the bound for each radius.
        samples: how many were added.
        doubt: whether they are to be computed again, which is read with their norms. Then nothing
            is refused.
        world: whose ranks may hold other parts of the sums.

    Returns:
        What was read of the doubt.
    """
    world = world or World()
    present = [
        [sums[name] for name in group.parameters if name in sums and world.counts(name)]
        for group in groups
    ]
    is_doubtful, norms = _read([total for totals in present for total in totals], doubt)
    if is_doubtful:
        return True
    squares: list[float] = [sum(next(norms) ** 2 for _ in totals) for totals in present]
    *squares, count = world.add_parts([*squares, samples])
    for group, totals, square in zip(groups, present, squares, strict=True):
        types = {total.dtype for total in totals}
        rounding = _ROUNDING + 16 * max((torch.finfo(each).eps for each in types), default=0.0)
        norm = square**0.5
        bound = count * clipping.bound(group.radius)
        if not norm <= bound * (1 + rounding):  # also if it is no number
            raise BoundError(
                f"the clipped sum of group '{group.name}' has a norm of {norm:.6g}, above the "
                f"{bound:.6g} that {count:.0f} samples can give it: the noise would not cover "
                "it. Nothing was released."
            )
    return False


def _read(totals: Sequence[Tensor], doubt: Tensor | None) -> tuple[bool, Iterator[float]]:
    """A truth value and the norms of all totals at once: a device is waited for only once."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, total in enumerate(totals):
        kinds.setdefault((total.device, total.dtype), []).append(i)
    parts = [
        torch.stack(torch._foreach_norm([totals[i] for i in members])) for members in kinds.values()
    ]
    parts += [] if doubt is None else [doubt.unsqueeze(0)]
    if not parts:
        return False, iter(())
    home = parts[0].device
    read = torch.cat([part.to(home, torch.float64) for part in parts]).tolist()
    places = [i for members in kinds.values() for i in members]
    by_place = dict(zip(places, read, strict=False))
    is_doubtful = doubt is not None and bool(read[-1])
    return is_doubtful, iter([by_place[i] for i in range(len(totals))])


def require_same_parameters(trained: Mapping[str, nn.Parameter], optimizer: Optimizer) -> None:
    """Refuse an optimizer that would apply a gradient that is not the engine's.

    Args:
        trained: the model's trainable parameters by name.
        optimizer: the one that takes the step.
    """
    by_id = {id(parameter): name for name, parameter in trained.items()}
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    foreign = [p for key, p in held.items() if p.requires_grad and key not in by_id]
    if foreign:
        raise TrainableSetError(
            f"the optimizer holds a trainable parameter of shape {tuple(foreign[0].shape)} "
            "that is not in the model: its gradient would be applied without noise. Make the "
            "optimizer of the parameters of this very model (after quietgrad.nn.harden, which "
            "makes another one), register the parameter in the model, or take it out."
        )
    stray = [p for key, p in held.items() if key not in by_id and p.grad is not None]
    if stray:
        raise StrayGradientError(
            f"the optimizer holds a frozen parameter of shape {tuple(stray[0].shape)} with a "
            ".grad that did not come from the engine: its step would apply it without noise. "
            "Call optimizer.zero_grad() first."
        )
    complex_ones = [name for name, parameter in trained.items() if parameter.is_complex()]
    if complex_ones and any(group.get("fused") for group in optimizer.param_groups):
        raise TrainableSetError(
            f"the optimizer is fused, and fused ones do not take complex parameters such as "
            f"'{complex_ones[0]}': make it without fused=True."
        )
    idle = [name for key, name in by_id.items() if key not in held]
    if idle:
        raise TrainableSetError(
            f"parameter '{idle[0]}' is trainable but not in the optimizer ({len(idle)} such): "
            "its gradient would take part in clipping for nothing. Freeze it with "
            "requires_grad_(False), or give it to the optimizer."
        )


class Radii:
    """What is clipped together, and to which norm.

    Args:
        groups: with the radii to begin with.
        clipping: which norm a radius means.
        adaptive: how the radii move, if they do.
        batch_size: the expected one.
        everywhere: those of all ranks, if others have other parts of the model.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        clipping: Clipping,
        adaptive: AdaptiveRadius | None,
        batch_size: int,
        everywhere: Sequence[Group] | None = None,
    ) -> None:
        self.groups, self._clipping = tuple(groups), clipping
        self._elsewhere = None if everywhere is None else tuple(everywhere)
        self._adaptive, self._batch_size = adaptive, batch_size
        self._sensitivity: float | None = None  # of these radii, once it was asked for
        if adaptive is not None:
            adaptive.require_decisive(clipping)

    @property
    def sensitivity(self) -> float:
        """How far one sample can move the sum."""
        if self._sensitivity is None:
            self._sensitivity = sensitivity(self.everywhere, self._clipping)
        return self._sensitivity

    @property
    def everywhere(self) -> tuple[Group, ...]:
        """The groups of all ranks: one sample moves all of them."""
        return self.groups if self._elsewhere is None else self._elsewhere

    def limits(self) -> Tensor | None:
        """The radii that norms are counted against, ``[M]``; None if nothing is counted."""
        if self._adaptive is None:
            return None
        radii = [group.radius for group in self.groups]
        return torch.tensor(radii, dtype=torch.float64, device="cpu")

    def require_payable(self, budget: Budget, schedule: object) -> None:
        """Refuse counts that cost more than a whole step may."""
        if self._adaptive is None:
            return
        if schedule is not None:
            raise ValueError(
                "an adaptive radius shares the noise of every step with a count, and noise_schedule"
                " changes it from step to step: leave one of them out"
            )
        self.sum_multiplier(budget.noise_multiplier)

    def sum_multiplier(self, noise_multiplier: float) -> float:
        """The noise multiplier of the sum, where a count shares the cost of the step."""
        if self._adaptive is None:
            return noise_multiplier
        return self._adaptive.sum_multiplier(noise_multiplier, len(self.groups), self._batch_size)

    def adapt(self, tally: Tensor | None, noise: Noise, world: World) -> None:
        """Move the radii by what was counted, with noise: a part of the step that is released.

        Args:
            tally: of the batch, by group; None if it was empty.
            noise: covers it.
            world: whose samples are counted.
        """
        adaptive = self._adaptive
        if adaptive is None:
            return
        none = torch.zeros(len(self.groups), dtype=torch.float64, device="cpu")
        counts = none if tally is None else tally
        counts, deviation = world.add_up(counts), adaptive.deviation(self._batch_size)
        noisy = world.lead(lambda: noise.add([counts], deviation)[0].tolist())
        self.load(
            [
                adaptive.moved(group.radius, value, self._batch_size)
                for group, value in zip(self.groups, noisy, strict=True)
            ]
        )

    def load(self, radii: Sequence[float]) -> None:
        """Go on with these radii."""
        pairs = zip(self.groups, radii, strict=True)
        self._sensitivity = None
        self.groups = tuple(replace(group, radius=radius) for group, radius in pairs)


def _like(parameter: nn.Parameter, gradient: Tensor) -> Tensor:
    """In the type and the layout of the parameter: fused optimizers rely on them."""
    is_alike = gradient.dtype == parameter.dtype and gradient.shape == parameter.shape
    if is_alike and type(parameter) is nn.Parameter and gradient.stride() == parameter.stride():
        return gradient  # as most are
    gradient, local = like_parameter(parameter, gradient), local_of(parameter.detach())
    if gradient.dtype != local.dtype or gradient.stride() != local.stride():
        gradient = torch.empty_like(local, requires_grad=False).copy_(gradient)
    return like_shard(parameter, gradient)


# Entries on the host: with fewer there is nothing to gain, and copies of more take room and time.
_LEAST, _MOST = 1 << 16, 1 << 21


class NoisyUpdate:
    """Lets the optimizer step with the engine's gradients, and with no others.

    Args:
        optimizer: the user's; a hook refuses steps of its own.
        capture: knows the trainable parameters.
        noise: what the gradients are covered with.
        momentum: what is made of them then, if not nothing.
        world: whose sums are added up.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        capture: Capture,
        noise: Noise,
        momentum: Momentum | None = None,
        world: World | None = None,
    ) -> None:
        self._optimizer, self._capture, self._noise = optimizer, capture, noise
        self._momentum, self._world = momentum, world or World()
        self._is_due = False
        self.require_same_parameters()
        self._guard = optimizer.register_step_pre_hook(self._refuse_stray_step)

    def require_same_parameters(self, trained: Mapping[str, nn.Parameter] | None = None) -> None:
        """Refuse an optimizer that holds other parameters than those that are clipped.

        Those of the model, unless they are given. The next step is theirs.
        """
        self._trained = self._parameters if trained is None else trained
        require_same_parameters(self._trained, self._optimizer)

    def takes_a_while(self, sums: Mapping[str, Tensor]) -> bool:
        """Whether noise takes longer than a thread to begin, and to copy these sums does not.

        On a device nothing is copied, and hundreds of operations are launched.
        """
        on_host = [total.numel() for total in sums.values() if total.device.type == "cpu"]
        return len(on_host) < len(sums) or _LEAST <= sum(on_host) <= _MOST

    def noisy(
        self,
        sums: Mapping[str, Tensor],
        *,
        step: int,
        std: float,
        divisor: int,
        keeps_sums: bool = False,
    ) -> list[Tensor]:
        """The sums with noise of this deviation, divided, by parameter; nothing is released yet.

        A parameter without a sum, which no sample used, gets noise alone. The sums are used up,
        unless they are kept.
        """
        if keeps_sums:
            # On a device they are joined, which copies them.
            sums = {n: t.clone() if t.device.type == "cpu" else t for n, t in sums.items()}
        self._noise.begin_step(step)
        totals = [
            sums[n] if n in sums else torch.zeros_like(real_parts(local_of(p.detach())))
            for n, p in self._trained.items()
        ]

        def add_noise(parts: Sequence[Tensor]) -> list[Tensor]:
            return self._noise.add(parts, std, divisor)

        return self._world.noisy(totals, add_noise, list(self._trained))

    def list_options(self) -> dict[str, object]:
        """What the optimizer does with gradients, by names that people know."""
        return {
            f"option {name} of the optimizer's group {i}": repr(value)
            for i, group in enumerate(self._optimizer.param_groups)
            for name, value in group.items()
            if name != "params" and not isinstance(value, Tensor)
        }

    def update(self, gradients: Sequence[Tensor]) -> None:
        """Run the optimizer with what `noisy` gave."""
        try:
            if self._momentum is not None:
                gradients = self._momentum.apply_outer(gradients)
                self._momentum.remember()
            for parameter, gradient in zip(self._trained.values(), gradients, strict=True):
                parameter.grad = _like(parameter, gradient)
            self._is_due = True
            self._optimizer.step()
        finally:
            self._clear(self._trained)

    def clear(self) -> None:
        """Leave no gradient behind, and no leave to apply one that an interrupt may have left."""
        self._clear(self._parameters)

    def _clear(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._is_due = False
        for parameter in parameters.values():
            parameter.grad = None

    def revoke_step(self) -> None:
        """Take back a leave to step that an interrupt may have left."""
        self._is_due = False

    def detach(self) -> None:
        """The optimizer is free again."""
        self.clear()
        self._guard.remove()

    @property
    def _parameters(self) -> dict[str, nn.Parameter]:
        return self._capture.parameters.trainable()

    def _is_idle(self) -> bool:
        """Whether a step changes no weight: so torch makes room for a state to be loaded."""
        groups = self._optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        has_rate = any(bool(group.get("lr", 1.0)) for group in groups)
        if self._optimizer.state or has_rate or not gradients:
            return False
        return not any(bool(local_of(gradient).any()) for gradient in gradients)

    def _refuse_stray_step(self, _: Optimizer, args: tuple[Any, ...], kwargs: Any) -> None:
        # A closure makes gradients after this.
        has_closure = any(each is not None for each in (*args[1:], *kwargs.values()))
        if not self._is_due and (has_closure or not self._is_idle()):
            raise StrayGradientError(
                "optimizer.step() was called directly: it would apply a gradient without noise and "
                "without a ledger entry. Call engine.step() instead. (A torch.amp.GradScaler calls "
                "it too, in scaler.step(optimizer): remove the scaler and, if float16 needs one, "
                "pass a constant, PrivacyEngine(..., loss_scale=1024.0).)"
            )
