"""What happened to the data: plain, frozen records that any accountant can read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from quietgrad._checks import require_choice, require_count, require_positive
from quietgrad.accounting import participation
from quietgrad.accounting.participation import Participation, Passes

NOISES = ("secure", "fast", "seeded")


@dataclass(frozen=True)
class GaussianEvent:
    """`steps` releases in a row of a sum of clipped gradients plus Gaussian noise.

    Attributes:
        noise_multiplier: standard deviation of the noise over the largest gradient one sample can
            add to the sum (`engine.sensitivity`), whatever the adjacency.
        sampling: how samples came to take part.
        steps: how many such releases.
        passes: how many passes over the data these steps are part of, where `sampling` is by
            passes: one that changes its noise counts for each. None counts the fewest that have
            so many steps.
        noise: where the noise came from. It changes no epsilon, but what one is worth: "secure",
            "fast" (not cryptographic), or "seeded" (it can be recomputed, so nobody is protected).
    """

    mechanism: ClassVar[str] = "gaussian"
    noise_multiplier: float
    sampling: Participation
    steps: int = 1
    passes: int | None = None
    noise: str = field(default="secure", compare=False)

    def __post_init__(self) -> None:
        # Plain Python numbers, whatever was passed, so that events can be saved and compared.
        sigma = require_positive("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", sigma)
        if not isinstance(self.sampling, Participation):
            raise TypeError(
                f"sampling={self.sampling!r} does not say how samples take part: expected for"
                " example quietgrad.accounting.Poisson(rate=0.01)"
            )
        object.__setattr__(self, "steps", require_count("steps", self.steps, at_least=0))
        object.__setattr__(self, "passes", self._checked_passes())
        require_choice("noise", self.noise, NOISES)

    def same_mechanism(self, other: "GaussianEvent") -> bool:
        """Whether the two differ in nothing but how often they happened."""
        return self._mechanism == other._mechanism

    def plus(self, other: "GaussianEvent") -> "GaussianEvent":
        """This event and then another of the same mechanism, as one."""
        assert self.same_mechanism(other)
        steps = self.steps + other.steps
        return replace(self, steps=steps, passes=self._passes + other._passes)

    def has_part(self, other: "GaussianEvent") -> bool:
        """Whether the other is the same, and happened no more often."""
        no_more = other.steps <= self.steps and other._passes <= self._passes
        return no_more and self.same_mechanism(other)

    def minus(self, part: "GaussianEvent") -> "GaussianEvent":
        """What is left of this event without its first part."""
        assert self.has_part(part)
        steps = self.steps - part.steps
        return replace(self, steps=steps, passes=self._passes - part._passes)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for files."""
        return {
            "mechanism": self.mechanism,
            "noise_multiplier": self.noise_multiplier,
            "sampling": participation.to_dict(self.sampling),
            "steps": self.steps,
            "passes": self.passes,
            "noise": self.noise,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "GaussianEvent":
        """What `to_dict` wrote; ValueError if it did not write this."""
        try:
            fields = dict(data)
            if fields.pop("mechanism", None) != cls.mechanism:
                raise ValueError(f"unknown mechanism in {data!r}: expected {cls.mechanism!r}")
            sampling = participation.from_dict(fields.pop("sampling"))
            return cls(sampling=sampling, **fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an event: {data!r}") from error

    @property
    def _mechanism(self) -> tuple[float, Participation, str]:
        return self.noise_multiplier, self.sampling, self.noise

    @property
    def _passes(self) -> int:
        assert self.passes is not None  # set on creation
        return self.passes

    def _checked_passes(self) -> int:
        if self.passes is not None:
            return require_count("passes", self.passes, at_least=0)
        return self.sampling.count(self.steps) if isinstance(self.sampling, Passes) else 0


def require_event(value: object) -> GaussianEvent:
    """A record of what happened, and nothing that looks like one."""
    if isinstance(value, GaussianEvent):
        return value
    raise TypeError(
        f"expected a GaussianEvent, got {type(value).__name__}: record for example"
        " quietgrad.accounting.GaussianEvent(1.0, Poisson(rate=0.01))"
    )
