"""Steps that are planned, as they will be recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from quietgrad.accounting import GaussianEvent, Participation, Passes


def planned(
    factors: Sequence[float],
    sampling: Participation,
    noise_multiplier: float,
    *,
    first: int = 0,
    counted: Collection[float] = (),
) -> list[GaussianEvent]:
    """What is to come, equal steps together.

    Args:
        factors: the schedule's, for all steps.
        sampling: how samples take part.
        noise_multiplier: of a step whose factor is 1.
        first: the first step that was not recorded yet.
        counted: noise for which the pass that this step is in was counted already.
    """
    steps, passes = Counter(factors[first:]), Counter[float]()
    if isinstance(sampling, Passes):
        for start in range(first - first % sampling.length, len(factors), sampling.length):
            levels = set(factors[max(start, first) : start + sampling.length])
            if start < first:
                levels = {each for each in levels if noise_multiplier * each not in counted}
            passes.update(levels)
    return [
        GaussianEvent(noise_multiplier * factor, sampling, steps[factor], passes[factor])
        for factor in steps
    ]
