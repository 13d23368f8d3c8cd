"""A mean, and how far it may be off."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with the margin of its 95 % confidence interval.

    It is None for a single value, and where a value is not finite.
    """

    mean: float
    margin: float | None

    def text(self, scale: float = 1.0) -> str:
        """As people write it."""
        if self.margin is None:
            return f"{self.mean * scale:.2f}"
        return f"{self.mean * scale:.2f} ± {self.margin * scale:.2f}"


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of a few independent values (Student's t)."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2 or not math.isfinite(mean):
        return Interval(mean, None)
    quantile = float(student.ppf((1 + _CONFIDENCE) / 2, count - 1))
    return Interval(mean, quantile * statistics.stdev(values) / count**0.5)
