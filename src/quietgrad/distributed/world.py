"""The processes that train one model together, and how they come to one release.

Each rank has a whole copy of the model and a part of every batch. What must be one for all is told
by rank 0: who takes part in a step, what the ledger says, what the radii become. Of the sum over
all ranks each rank owns an equal part, to which it alone adds noise (``docs/distributed.md``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from quietgrad.errors import DistributedTrainingError, RankError

T = TypeVar("T")
AddNoise = Callable[[Sequence[Tensor]], list[Tensor]]
"""Adds noise to sums, which it uses up."""


class World:
    """One process, which has nothing to agree on with others.

    Attributes:
        rank: the number of this process.
        size: the number of all.
    """

    rank = 0
    size = 1

    @property
    def is_leader(self) -> bool:
        """Whether this process writes files, and draws what is one for all."""
        return self.rank == 0

    def require_same(self, list_facts: Callable[[], Mapping[str, object]]) -> None:
        """Refuse ranks that differ in something; facts have names that people know."""

    def share(self, value: T) -> T:
        """The leader's value."""
        return value

    def lead(self, action: Callable[[], T]) -> T:
        """What the leader's action gives. If it fails, all ranks raise."""
        return action()

    def part(self, indices: list[int]) -> list[int]:
        """This rank's part of the samples of a step."""
        return indices

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """If what is done in here raises on one rank, all ranks raise."""
        yield

    def note_failure(self, error: BaseException) -> None:
        """This rank cannot go on: the others are told when they next ask."""

    def add_up(self, counts: Tensor) -> Tensor:
        """A few numbers, added up over all ranks."""
        return counts

    def noisy(self, totals: Sequence[Tensor], add_noise: AddNoise) -> list[Tensor]:
        """The sums over all ranks, with noise, the same on every rank. The totals are used up."""
        return add_noise(totals)


_HALF = (torch.float16, torch.bfloat16)


class _Answer(NamedTuple):
    """What a rank says: a value, or why it cannot go on."""

    value: Any
    failure: str | None


_engines = count()  # made by every rank in the same order


class Replicas(World):
    """Ranks of a process group, each with a whole copy of the model.

    Small values go through the store of the group, sums through its collectives.

    Args:
        is_seeded: whether noise is to be that of one process, which the leader then makes alone.
    """

    def __init__(self, *, is_seeded: bool = False) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._is_seeded = is_seeded
        c10d: Any = dist.distributed_c10d
        self._store = c10d.PrefixStore(f"quietgrad/{next(_engines)}", c10d._get_default_store())
        self._timeout = _timeout()
        self._turn = 0
        self._failure: str | None = None

    def require_same(self, list_facts: Callable[[], Mapping[str, object]]) -> None:
        """Refuse ranks that differ, and say in what."""
        with self.agreeing():
            facts = dict(list_facts())
        answers = self._exchange(facts)
        for name in facts:
            for rank, other in enumerate(answers):
                if other.get(name) != answers[0].get(name):
                    raise DistributedTrainingError(
                        f"ranks differ in {name}: rank 0 has {_short(answers[0].get(name))}, rank "
                        f"{rank} has {_short(other.get(name))}",
                        "Every rank must build the same model, with the same weights "
                        "(torch.manual_seed before building it, or one checkpoint), on the same "
                        "data, with the same arguments.",
                        "they would not train one model",
                    )

    def share(self, value: T) -> T:
        """Rank 0's value."""
        shared: T = self._exchange(value if self.is_leader else None)[0]
        return shared

    def lead(self, action: Callable[[], T]) -> T:
        """What rank 0's action gives; it has ended when this returns on any rank."""
        value: Any = None
        with self._agreeing(lambda: value) as answers:
            if self.is_leader:
                value = action()
        led: T = answers[0]
        return led

    def part(self, indices: list[int]) -> list[int]:
        """Every so many-th: the numbers of samples differ by one at most."""
        return indices[self.rank :: self.size]

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Goes on when all ranks have come here."""
        with self._agreeing(lambda: None):
            yield

    def note_failure(self, error: BaseException) -> None:
        """From here on that is this rank's answer to everything."""
        if self._failure is None:
            self._failure = _describe(error)
            self._say(None, self._failure)

    def add_up(self, counts: Tensor) -> Tensor:
        """By an all-reduce."""
        total = counts.clone()
        with _explained():
            dist.all_reduce(total)
        return total

    def noisy(self, totals: Sequence[Tensor], add_noise: AddNoise) -> list[Tensor]:
        """By type and device, all sums one after the other, of which each rank owns a part.

        With a seed the leader adds the noise that one process would, and the others get the result.
        """
        # Where no sample of a rank used a parameter, its zeros are in the parameter's own type.
        totals = [total.float() if total.dtype in _HALF else total for total in totals]
        with _explained():
            if self._is_seeded:
                return self._noisy_by_leader(totals, add_noise)
            kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
            for i, total in enumerate(totals):
                kinds.setdefault((total.device, total.dtype), []).append(i)
            owned = [self._reduce([totals[i] for i in places]) for places in kinds.values()]
            found: dict[int, Tensor] = {}
            for places, part in zip(kinds.values(), add_noise(owned), strict=True):
                whole = part.new_empty(self.size * part.numel())
                dist.all_gather_single(whole, part.contiguous())
                sizes = [totals[i].numel() for i in places]
                parts = whole[: sum(sizes)].split(sizes)
                found |= {i: p.view(totals[i].shape) for i, p in zip(places, parts, strict=True)}
        return [found[i] for i in range(len(totals))]

    def _reduce(self, totals: Sequence[Tensor]) -> Tensor:
        """This rank's part of the sums over all ranks."""
        flat = torch.cat([total.reshape(-1) for total in totals])
        flat = torch.nn.functional.pad(flat, (0, -flat.numel() % self.size))
        own = flat.new_empty(flat.numel() // self.size)
        dist.reduce_scatter_single(own, flat)
        return own

    def _noisy_by_leader(self, totals: Sequence[Tensor], add_noise: AddNoise) -> list[Tensor]:
        wholes = [total.contiguous() for total in totals]
        for whole in wholes:
            dist.all_reduce(whole)
        noisy = add_noise([whole.clone() for whole in wholes])  # for shapes and types on all ranks
        for each in noisy:
            dist.broadcast(each, 0)
        return noisy

    @contextmanager
    def _agreeing(self, value: Callable[[], Any]) -> Iterator[list[Any]]:
        """What is done in here succeeds on all ranks or fails on all; the values of all."""
        answers: list[Any] = []
        try:
            yield answers
        except Exception as error:
            self._say(None, self._failure or _describe(error))
            self._turn += 1
            raise
        answers += self._exchange(value())

    def _exchange(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        self._say(value, self._failure)
        turn, self._turn = self._turn, self._turn + 1
        keys = [f"{turn}/{rank}" for rank in range(self.size)]
        try:
            self._store.wait(keys, self._timeout)
            answers = [_Answer(*json.loads(self._store.get(key))) for key in keys]
        except RuntimeError as error:
            raise RankError(self._name_missing(keys)) from error
        if turn > 1:  # all have read what was said two turns ago
            self._store.delete_key(f"{turn - 2}/{self.rank}")
        for rank, answer in enumerate(answers):
            if answer.failure is not None and rank != self.rank:
                raise RankError(
                    f"rank {rank} stopped: {answer.failure} Nothing was released by any rank since "
                    "the last step that all of them ended."
                )
        return [answer.value for answer in answers]

    def _say(self, value: Any, failure: str | None) -> None:
        try:
            self._store.set(f"{self._turn}/{self.rank}", json.dumps((value, failure)))
        except RuntimeError as error:
            raise RankError("the store of the process group, which one rank keeps, is gone") from (
                error
            )

    def _name_missing(self, keys: Sequence[str]) -> str:
        try:
            missing = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
        except RuntimeError:
            return "the rank that keeps the store of the process group (rank 0, as a rule) is gone"
        return (
            f"rank {', '.join(missing) or '?'} did not answer within {self._timeout}: it ended, "
            "hangs, or made other calls than this one. Every rank must call batches(), step(), "
            "save() and load() in the same order. Nothing was released by this rank since its last "
            "step."
        )


def _timeout() -> timedelta:
    """That of the process group."""
    group: Any = dist.distributed_c10d._get_default_group()
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else timedelta(minutes=30)


@contextmanager
def _explained() -> Iterator[None]:
    """Errors of collectives, in terms of ranks."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RankError):
            raise
        raise RankError(f"a rank ended while sums were exchanged ({error})") from error


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def find_world(*, is_seeded: bool = False) -> World:
    """The process group of this process, or this process alone."""
    if dist.is_available() and dist.is_initialized():
        return Replicas(is_seeded=is_seeded) if dist.get_world_size() > 1 else World()
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1 and "RANK" in os.environ:
        raise DistributedTrainingError(
            f"this is one of {os.environ['WORLD_SIZE']} processes (WORLD_SIZE), and there is no "
            "process group",
            "Call torch.distributed.init_process_group() before the engine is made, or start one "
            "process.",
        )
    return World()
