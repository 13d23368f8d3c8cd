"""What every bound needs to know of a training run."""

import math
from dataclasses import dataclass

from quietgrad._checks import require_count, require_number, require_positive


@dataclass(frozen=True)
class Training:
    """A private training run and its loss, as the bounds see them.

    Attributes:
        steps: T.
        batch_size: B, the expected number of samples in a batch.
        noise_multiplier: sigma.
        parameters: d, how many are trained.
        loss_gap: L_0 - L_*, the loss at the start above the least possible (Assumption 5.1).
        smoothness: L, the Lipschitz constant of the gradient (Assumption 5.2).

    The assumptions are those of Bu et al., "Automatic Clipping: Differentially Private Deep
    Learning Made Easier and Stronger".
    """

    steps: int
    batch_size: float
    noise_multiplier: float
    parameters: int
    loss_gap: float
    smoothness: float

    def __post_init__(self) -> None:
        require_count("steps", self.steps, at_least=1)
        require_positive("batch_size", self.batch_size)
        require_number("noise_multiplier", self.noise_multiplier, at_least=0.0)
        require_count("parameters", self.parameters, at_least=1)
        require_positive("loss_gap", self.loss_gap)
        require_positive("smoothness", self.smoothness)

    @property
    def noise_factor(self) -> float:
        """sqrt(1 + sigma^2 d / B^2): what the noise makes of the same run without it."""
        spread = self.noise_multiplier * math.sqrt(self.parameters) / self.batch_size
        return math.hypot(1.0, spread)

    @property
    def driving_term(self) -> float:
        """4/sqrt(T) sqrt((L_0 - L_*) L (1 + sigma^2 d/B^2)): what has to become small (eq. 5.2)."""
        scale = math.sqrt(self.loss_gap) * math.sqrt(self.smoothness)
        return 4 * scale * self.noise_factor / math.sqrt(self.steps)

    @property
    def base_learning_rate(self) -> float:
        """eta_0, which minimizes (C.5).

        The rate of SGD on private gradients averaged over `batch_size` is eta_0 / sqrt(steps), for
        auto-s of radius 1.
        """
        return math.sqrt(self.loss_gap / self.smoothness) / self.noise_factor
