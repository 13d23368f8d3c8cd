"""Draws that the library did not make are checked batch by batch."""

from collections.abc import Iterator

from quietgrad.sampling.draws import Draws
from quietgrad.sampling.full_batch import FullBatchDraws
from quietgrad.sampling.own import OwnDraws
from quietgrad.sampling.own_pass import OwnPass
from quietgrad.sampling.poisson import PoissonDraws
from quietgrad.sampling.shuffled import ShuffledDraws

# By their exact type: whoever inherits from them may draw otherwise.
_TRUSTED = (FullBatchDraws, OwnDraws, PoissonDraws, ShuffledDraws)


def checked_indices(draws: Draws, key: int, start: int) -> Iterator[list[int]]:
    """The batches of a pass from a step on.

    Whoever implements `Draws` states how samples take part. Each batch is held to that, as far as
    it can be checked, and must have distinct indices of the data set.

    Raises:
        SamplingError: when a batch is reached that breaks this.
    """
    if type(draws) in _TRUSTED:
        return draws.indices(key, start)
    return _checked(draws, key, start)


def _checked(draws: Draws, key: int, start: int) -> Iterator[list[int]]:
    checks = OwnPass(draws.population, draws.length, draws.accounting)
    for batch in draws.indices(key, start):
        yield checks.accepted(batch)
    checks.finish()
