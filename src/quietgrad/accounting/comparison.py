"""The epsilon that is often reported for shuffled batches, to be shown beside the true one."""

from collections.abc import Iterable
from dataclasses import replace

from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.participation import Passes, Poisson


def as_if_poisson(events: Iterable[GaussianEvent]) -> list[GaussianEvent]:
    """The same steps, as if passes had been Poisson sampling at the same expected batch size.

    What was done is not that, so an epsilon of these events does NOT hold for it: samples that must
    turn up once in a pass are amplified less than samples drawn afresh in every step ("How Private
    are DP-SGD Implementations?", Chua et al. 2024).
    """
    return [
        replace(event, sampling=_poisson(event.sampling), passes=None)
        if isinstance(event.sampling, Passes)
        else event
        for event in events
    ]


def _poisson(passes: Passes) -> Poisson:
    return Poisson(min(1.0, passes.times / passes.length))
