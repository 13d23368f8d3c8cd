"""Every public constant of a private training."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quietgrad._checks import (
    require_count,
    require_delta,
    require_number,
    require_positive,
    unknown_name,
)
from quietgrad.accounting.events import Adjacency
from quietgrad.clipping import Clipping
from quietgrad.clipping import resolve as resolve_clipping
from quietgrad.methods.inner_outer import InnerOuter

if TYPE_CHECKING:
    pass  # MOVED

# The constant of each clipping function that has one besides the radius.
_STABILITY = {"auto-s": "gamma", "psac": "r"}


@dataclass(frozen=True)
class Settings:
    """What a run is asked to do; a command's options are named as these fields.

    Attributes:
        epochs: passes over the data.
        batch_size: expected number of samples in a step.
        learning_rate: of the optimizer.
        epsilon: budget to stay within.
        delta: probability with which the bound may fail.
        optimizer: ``sgd``, ``adam``, ``adamw`` or ``nadam``.
        momentum: of SGD, after the noise.
        weight_decay: of the optimizer.
        clipping: name of the clipping function.
        radius: its R.
        stability: gamma of auto-s, r of psac; None for the function's own.
        grouping: which parameters are clipped together.
        inner_steps: past weights in the inner momentum (K0); None for none.
        inner_momentum: their weight (gamma0).
        views: random views of each sample, clipped as one.
        physical_batch_size: most samples in memory at once.
        sampling: how batches are drawn.
        adjacency: which data sets must look alike.
        accountant: what epsilon is computed with.
        noise: where the noise comes from.
        limit: train on the first so many samples only, for a shorter experiment.
        ordinary_learning_rate: of the training without privacy, if another one serves it better.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    epsilon: float
    delta: float
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clipping: str = "auto-s"
    radius: float = 1.0
    stability: float | None = None
    grouping: str = "all-layer"
    inner_steps: int | None = None
    inner_momentum: float = 0.08
    views: int = 1
    physical_batch_size: int | None = None
    sampling: str = "poisson"
    adjacency: Adjacency | None = None
    accountant: str = "pld"
    noise: str = "secure"
    limit: int | None = None
    ordinary_learning_rate: float | None = None

    def __post_init__(self) -> None:
        require_possible(self)

    @property
    def clipping_function(self) -> Clipping:
        """The clipping function with its constant."""
        function = resolve_clipping(self.clipping)
        if self.stability is None:
            return function
        constant = _STABILITY.get(self.clipping)
        if constant is None:
            raise ValueError(
                f"clipping {self.clipping!r} has no constant for stability={self.stability:g}:"
                f" it is {' and '.join(f'{c} of {n}' for n, c in _STABILITY.items())}. Leave"
                " --stability out, or choose one of these"
            )
        return resolve_clipping(replace(function, **{constant: self.stability}))  # type: ignore[type-var]

    @property
    def inner_outer(self) -> InnerOuter | None:
        """Inner momentum with SGD's momentum after the noise; None where there is none."""
        if self.inner_steps is None:
            return None
        return InnerOuter(
            length=self.inner_steps,
            inner=self.inner_momentum,
            outer=self.momentum,
            outer_means="carried",
        )

    @property
    def engine_options(self) -> dict[str, Any]:
        """As `PrivacyEngine` takes them."""
        same = (
            "batch_size epochs epsilon delta radius grouping physical_batch_size sampling adjacency"
            " accountant noise"
        )
        return {
            **{name: getattr(self, name) for name in same.split()},
            "clipping": self.clipping_function,
            "momentum": self.inner_outer,
        }


OPTIMIZERS = ("sgd", "adam", "adamw", "nadam")


def require_possible(settings: Settings) -> None:
    """Refuse numbers with which nothing is learnt, and optimizers that are not known.

    Raises:
        ValueError: it names the setting, its value, and what was expected.
    """
    for name in ("epochs", "batch_size", "views"):
        require_count(name, getattr(settings, name), at_least=1)
    for name in ("physical_batch_size", "limit"):
        if getattr(settings, name) is not None:
            require_count(name, getattr(settings, name), at_least=1)
    for name in ("learning_rate", "epsilon", "radius"):
        require_positive(name, getattr(settings, name))
    if settings.ordinary_learning_rate is not None:
        require_positive("ordinary_learning_rate", settings.ordinary_learning_rate)
    require_delta("delta", settings.delta)
    require_number("weight_decay", settings.weight_decay, at_least=0)
    if require_number("momentum", settings.momentum, at_least=0) >= 1:
        raise ValueError(f"momentum={settings.momentum!r} is not valid: expected a number below 1")
    if settings.optimizer not in OPTIMIZERS:
        raise unknown_name("optimizer", settings.optimizer, OPTIMIZERS)
    _ = settings.inner_outer


def require_effect(settings: Settings, asked: Collection[str]) -> None:
    """Refuse settings that were asked for, by name, and that nothing reads.

    Raises:
        ValueError: it says what to do.
    """
    if "momentum" in asked and settings.optimizer != "sgd":
        raise ValueError(
            f"momentum={settings.momentum:g} has no effect: {settings.optimizer} has constants of"
            " its own. Expected sgd: choose --optimizer sgd, or leave --momentum out"
        )
    if "inner_momentum" in asked and not settings.inner_steps:
        raise ValueError(
            f"inner_momentum={settings.inner_momentum:g} has no effect without past weights to"
            " weigh: add --inner-steps (2, for example), or leave --inner-momentum out"
        )
