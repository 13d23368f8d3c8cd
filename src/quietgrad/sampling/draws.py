"""The contracts: a sampler as a user names it, and its draws from a data set of known size."""

from collections.abc import Iterator
from enum import Enum
from typing import Protocol, runtime_checkable

from quietgrad.accounting.participation import Participation


class Resumption(Enum):
    """How a pass that was broken off can go on, in another process."""

    FRESH_KEY = "the steps left are drawn with another key"
    """Steps are independent of each other. Where the key must stay secret it is never saved."""

    SAME_KEY = "the steps left are drawn with the same key, which is saved"
    """The steps of a pass share something, such as a permutation, that is not secret."""

    NEW_PASS = "it cannot: the next pass begins instead"
    """What the steps left would have been is not known."""


class Draws(Protocol):
    """Which samples take part in each step of a pass over the data.

    An implementation is a frozen dataclass: what an accountant was told must stay true.
    """

    @property
    def population(self) -> int:
        """The number of samples that are drawn from."""

    @property
    def length(self) -> int:
        """The number of steps in a pass."""

    @property
    def accounting(self) -> Participation:
        """What an accountant must assume."""

    @property
    def resumption(self) -> Resumption:
        """How a pass that was broken off can go on."""

    @property
    def description(self) -> str:
        """Names the draws in a bookmark: equal for two that can continue each other's passes."""

    def indices(self, key: int, start: int) -> Iterator[list[int]]:
        """The samples of the steps `start`, `start + 1`, ..., `length - 1` of a pass.

        Where a pass can be continued they are a function of the key and the step alone.

        Args:
            key: makes this pass different from every other; 256 random bits.
            start: the first step wanted, from 0. Ignored if the resumption is `NEW_PASS`.
        """


@runtime_checkable
class Sampler(Protocol):
    """A way to sample, before it is known what from. An implementation is a frozen dataclass."""

    def bind(self, population: int, batch_size: int) -> Draws:
        """The draws from so many samples.

        Args:
            population: the number of samples in the data set.
            batch_size: the number of samples a step is expected to have.

        Raises:
            ValueError: there can be no such batches.
        """
