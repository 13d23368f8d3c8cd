"""Every public constant of a private training."""

from dataclasses import dataclass, replace
from typing import Any

from quietgrad.accounting import Adjacency
from quietgrad.clipping import Clipping
from quietgrad.clipping import resolve as resolve_clipping
from quietgrad.recipes.settings_checks import require_possible
from quietgrad.variance import InnerOuter

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
