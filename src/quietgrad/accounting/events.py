"""What happened to the data, in the terms an accountant understands."""

from dataclasses import dataclass

from quietgrad._checks import require_count, require_positive, require_rate


@dataclass(frozen=True)
class GaussianEvent:
    """`steps` releases of a Poisson-sampled sum plus Gaussian noise.

    Attributes:
        noise_multiplier: standard deviation of the noise over the sensitivity of the sum.
        sample_rate: probability with which each sample joins a step, independently of all others.
        steps: how many such releases in a row.
    """

    noise_multiplier: float
    sample_rate: float
    steps: int = 1

    def __post_init__(self) -> None:
        # Plain Python numbers, whatever was passed, so that events can be saved and compared.
        sigma = require_positive("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", sigma)
        object.__setattr__(self, "sample_rate", require_rate("sample_rate", self.sample_rate))
        object.__setattr__(self, "steps", require_count("steps", self.steps, at_least=0))

    def same_mechanism(self, other: "GaussianEvent") -> bool:
        """Whether the two differ in nothing but the number of steps."""
        return (self.noise_multiplier, self.sample_rate) == (
            other.noise_multiplier,
            other.sample_rate,
        )
