"""The processes that train one model together, and how they come to one release.

Each rank has a whole copy of the model and a part of every batch. What must be one for all is told
by rank 0: who takes part in a step, what the ledger says, what the radii become. Of the sum over
all ranks each rank owns an equal part, to which it alone adds noise (``docs/distributed.md``).
"""

from __future__ import annotations

import atexit
import json
import os
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from quietgrad.distributed.facts import digest_tensors
from quietgrad.distributed.peers import find_ended, own_address
from quietgrad.distributed.sharding import exchange_local, local_of
from quietgrad.errors import DistributedTrainingError, RankError

if TYPE_CHECKING:
    from quietgrad.grouping.base import Group
    from quietgrad.reduction import ClippedReducer, Joint, Sums

T = TypeVar("T")
Facts = Callable[[], Mapping[str, object]]
"""What must be the same on all ranks, by names that people know."""
AddNoise = Callable[[Sequence[Tensor]], list[Tensor]]
"""Adds noise to sums, which it uses up."""
Move = Callable[[str, Tensor], Tensor]
"""Other values of a weight, given its name and values."""

_LOOK_AFTER = 2.0  # seconds of waiting for others, until it is asked whether they are still there
_NOBODY: AbstractContextManager[None] = nullcontext()  # to ask; the same one each time


class World:
    """One process, which has nothing to agree on with others.

    Attributes:
        rank: the number of this process.
        size: the number of all.
        has_collectives: whether the model itself asks other ranks while it runs, so that all must
            run the same passes.
        saves_room: whether memory is worth more than a pass where a micro-batch is verified.
        part_name: what part of the model is here, in words that follow on others; empty for all.
        call: what the script has called, which must be the same on all ranks.
    """

    rank = 0
    size = 1
    has_collectives = False
    saves_room = False
    part_name = ""
    call = "PrivacyEngine()"

    @property
    def description(self) -> str | None:
        """How sampling and noise are shared, for a report; None if there is nobody to share."""
        return None

    @property
    def is_leader(self) -> bool:
        """Whether this process writes files, and draws what is one for all."""
        return self.rank == 0

    def require_same(self, list_facts: Facts, advice: str = "") -> None:
        """Refuse ranks that differ in something.

        Args:
            list_facts: by names that people know; not called in a process alone.
            advice: what to do.
        """

    def own_seed(self, seed: int | None) -> int | None:
        """What the noise of this process is drawn with, if it is to be repeated."""
        return seed

    def share(self, value: T) -> T:
        """The leader's value."""
        return value

    def lead(self, action: Callable[[], T]) -> T:
        """What the leader's action gives. If it fails, all ranks raise."""
        return action()

    def part(self, indices: list[int]) -> list[int]:
        """This rank's part of the samples of a step."""
        return indices

    def agreeing(self, list_facts: Facts = dict, advice: str = "") -> AbstractContextManager[None]:
        """If what is done in here raises on one rank, all ranks raise.

        Args:
            list_facts: what must be the same afterwards, as for `require_same`.
            advice: what to do if it is not.
        """
        return _NOBODY

    def note_failure(self, error: BaseException) -> None:
        """This rank cannot go on: the others are told when they next ask."""

    def gather(self, value: T) -> list[T]:
        """The values of all ranks."""
        return [value]

    def explaining(self) -> AbstractContextManager[None]:
        """If others cannot be reached in here, it is said why they stopped."""
        return _NOBODY

    def add_up(self, counts: Tensor) -> Tensor:
        """A few numbers, added up over all ranks."""
        return counts

    # -- passes of the model -------------------------------------------------------------------

    def most(self, drawn: int) -> int:
        """How many samples of a step there must be passes for, on every rank."""
        return 0

    def together(self, reducer: ClippedReducer) -> AbstractContextManager[None]:
        """In here a micro-batch is back-propagated and added up, by this reducer."""
        return _NOBODY

    def verifying(self, *, is_wanted: bool) -> AbstractContextManager[None]:
        """In here passes may be repeated, if this rank wants to or not."""
        return _NOBODY

    def require_same_losses(self, losses: Tensor) -> None:
        """Refuse losses that differ from those of ranks which run the same samples."""

    def end_repeat(self) -> None:
        """A pass that was repeated has ended, or failed."""

    @contextmanager
    def moved_weights(self, model: nn.Module, move: Move) -> Iterator[None]:
        """In here passes of this rank find other weights, if they are its own to change.

        Args:
            model: whose weights are meant.
            move: what becomes of them.
        """
        before = []
        try:
            for name, weight in model.named_parameters():
                held = local_of(weight.detach())
                before.append((weight, held))
                exchange_local(weight, move(name, held))
            yield
        finally:
            for weight, held in before:
                exchange_local(weight, held)

    def explain(self, error: BaseException | None) -> None:
        """A forward has failed, perhaps because other ranks stopped."""

    def confirm(self) -> None:
        """This rank has back-propagated, and its sums are about to be added up."""

    def rest(self) -> None:
        """Between passes: parameters are to be those that the optimizer holds."""

    def at_rest(self, parameter: Tensor) -> Tensor:
        """A parameter as the optimizer holds it."""
        return parameter

    # -- sums ----------------------------------------------------------------------------------

    def new_sums(
        self,
        plain: type[Sums],
        trained: Callable[[], Mapping[str, nn.Parameter]],
        groups: Sequence[Group],
    ) -> Sums:
        """To which the clipped sums of this rank's samples are added.

        Args:
            plain: those of one process.
            trained: gives parameters by name.
            groups: of parameters that are clipped together.
        """
        return plain()

    joint: Joint | None = None
    """Ranks that have parts of the same samples' gradients, with this one."""

    def counts(self, name: str) -> bool:
        """Whether this rank's part of a parameter is to be counted in norms."""
        return True

    def refuse_apart(self, sums: Mapping[str, Tensor]) -> None:
        """Refuse sums that differ from those of other ranks, and must not."""

    def common_choices(self) -> random.Random | None:
        """What the ranks that run the same passes choose samples with; None for one alone."""
        return None

    def vote_on_passes(self, are_so: Sequence[bool]) -> list[bool]:
        """Of each whether it is so on some of the ranks that run the same passes."""
        return list(are_so)

    def add_parts(self, numbers: Sequence[float]) -> list[float]:
        """Numbers of this rank's parts of the sums, added up over the ranks that hold the others.

        Here a rank has them whole.
        """
        return list(numbers)

    def noisy(
        self, totals: Sequence[Tensor], add_noise: AddNoise, names: Sequence[str] = ()
    ) -> list[Tensor]:
        """What this rank holds of the sums over all ranks, with noise. The totals are used up.

        Args:
            totals: the sums, or this rank's parts of them.
            add_noise: is called once.
            names: of the parameters that they belong to.
        """
        return add_noise(totals)

    def file_of_part(self, path: Path, steps: int) -> Path:
        """Where the state of this rank's part of the model is, after so many steps."""
        return path

    @property
    def writes_part(self) -> bool:
        """Whether this rank writes it: one of those that have the same part."""
        return self.is_leader

    def digest_weights(self, model: nn.Module) -> dict[str, object]:
        """What must be the same on all ranks that have an entry of this name."""
        return {f"the weights{self.part_name}": digest_tensors(model.state_dict())}


HALF = (torch.float16, torch.bfloat16)


class _Answer(NamedTuple):
    """What a rank says: a value, or why it cannot go on."""

    value: Any
    failure: str | None
    call: str


_engines = count()  # made by every rank in the same order


class Replicas(World):
    """Ranks of a process group, each with a whole copy of the model.

    Small values go through the store of the group, sums through its collectives.

    Args:
        is_seeded: whether noise is to be that of one process, which the leader then makes alone.
    """

    _weights = " with whole copies of the weights"

    def __init__(self, *, is_seeded: bool = False) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        # The ranks that hold the same part of the weights, here all; None for this rank alone.
        self._owners: Any = dist.distributed_c10d._get_default_group()
        self._copies = self.size
        # Of the draw; ranks that compute the same samples have the same number.
        self.data_rank, self.data_size = self.rank, self.size
        self._is_seeded = is_seeded
        c10d: Any = dist.distributed_c10d
        # A launcher may keep the store when it starts all ranks again: what was said before it did
        # must not answer what is asked now.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        prefix = f"quietgrad/{attempt}/{next(_engines)}"
        self._store = c10d.PrefixStore(prefix, c10d._get_default_store())
        self._timeout = _timeout()
        self._peers: dict[int, tuple[str, int]] = {}
        self._store.set(f"address/{self.rank}", json.dumps(own_address()))
        self._turn = 0
        self._failure: str | None = None
        atexit.register(_tell_of_end, weakref.ref(self))

    @property
    def description(self) -> str | None:
        """How sampling and noise are shared."""
        noise = (
            "all noise is made by rank 0"
            if self._is_seeded
            else "each entry of a sum gets its whole noise from the one rank that owns it"
        )
        return f"{self.size} ranks{self._weights}: one draw, of which each takes a part; {noise}"

    def require_same(self, list_facts: Facts, advice: str = "") -> None:
        """Refuse ranks that differ, and say in what."""
        with self.agreeing(list_facts, advice):
            pass

    def share(self, value: T) -> T:
        """Rank 0's value."""
        # A pass begins with its first batch, whatever was called between.
        self.call = "batches()"
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
        return indices[self.data_rank :: self.data_size]

    @contextmanager
    def agreeing(self, list_facts: Facts = dict, advice: str = "") -> Iterator[None]:
        """Goes on when all ranks have come here."""
        facts: dict[str, object] = {}
        with self._agreeing(lambda: facts) as answers:
            yield
            facts |= list_facts()
        for name in dict.fromkeys(name for each in answers for name in each):
            (first, expected), *others = (
                (rank, each[name]) for rank, each in enumerate(answers) if name in each
            )
            for rank, found in others:
                if found != expected:
                    raise DistributedTrainingError(
                        f"ranks differ in {name}: rank {first} has {_short(expected)}, rank "
                        f"{rank} has {_short(found)}",
                        advice
                        or "Every rank must build the same model, with the same weights "
                        "(torch.manual_seed before building it, or one checkpoint), on the same "
                        "whole data set, of which the engine gives each its part, with the same "
                        "arguments.",
                        "they would not train one model",
                    )

    def note_failure(self, error: BaseException) -> None:
        """From here on that is this rank's answer to everything."""
        if self._failure is None:
            self._failure = _describe(error)
            self._say(None, self._failure)

    def gather(self, value: T) -> list[T]:
        """Through the store."""
        return self._exchange(value)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """What the others said before they stopped."""
        with explained(self._find_failures):
            yield

    def add_up(self, counts: Tensor) -> Tensor:
        """By an all-reduce."""
        total = counts.clone()
        with explained(self._find_failures):
            dist.all_reduce(total)
        return total

    def noisy(
        self, totals: Sequence[Tensor], add_noise: AddNoise, names: Sequence[str] = ()
    ) -> list[Tensor]:
        """By type and device, all sums one after the other, of which each rank owns a part.

        With a seed the leader adds the noise that one process would, and the others get the result.
        """
        # Where no sample of a rank used a parameter, its zeros are in the parameter's own type.
        totals = [total.float() if total.dtype in HALF else total for total in totals]
        if self._owners is None:
            return add_noise(totals)
        with explained(self._find_failures):
            if self._is_seeded:
                return self._noisy_by_leader(totals, add_noise)
            kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
            for i, total in enumerate(totals):
                kinds.setdefault((total.device, total.dtype), []).append(i)
            owned = [self._reduce([totals[i] for i in places]) for places in kinds.values()]
            found: dict[int, Tensor] = {}
            for places, part in zip(kinds.values(), add_noise(owned), strict=True):
                whole = part.new_empty(self._copies * part.numel())
                dist.all_gather_single(whole, part.contiguous(), group=self._owners)
                sizes = [totals[i].numel() for i in places]
                parts = whole[: sum(sizes)].split(sizes)
                found |= {i: p.view(totals[i].shape) for i, p in zip(places, parts, strict=True)}
        return [found[i] for i in range(len(totals))]

    def _reduce(self, totals: Sequence[Tensor]) -> Tensor:
        """This rank's part of the sums over all ranks."""
        missing = -sum(total.numel() for total in totals) % self._copies
        parts = [total.reshape(-1) for total in totals]
        flat = torch.cat([*parts, parts[0].new_zeros(missing)] if missing else parts)
        own = flat.new_empty(flat.numel() // self._copies)
        dist.reduce_scatter_single(own, flat, group=self._owners)
        return own

    def _noisy_by_leader(self, totals: Sequence[Tensor], add_noise: AddNoise) -> list[Tensor]:
        wholes = [total.contiguous() for total in totals]
        for whole in wholes:
            dist.all_reduce(whole, group=self._owners)
        noisy = add_noise([whole.clone() for whole in wholes])  # for shapes and types on all ranks
        for each in noisy:
            dist.broadcast(each, group=self._owners, group_src=0)
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
            self._wait_for(keys)
            answers = [_Answer(*json.loads(self._store.get(key))) for key in keys]
            if not self._peers:
                self._peers = {
                    rank: tuple(json.loads(self._store.get(f"address/{rank}")))
                    for rank in range(self.size)
                    if rank != self.rank
                }
        except RuntimeError as error:
            raise RankError(self._name_missing(keys)) from error
        if turn > 1:  # all have read what was said two turns ago
            with suppress(RuntimeError):  # if the store is gone by now, the next question says so
                self._store.delete_key(f"{turn - 2}/{self.rank}")
        for rank, answer in enumerate(answers):
            if answer.failure is not None and rank != self.rank:
                raise RankError(
                    f"rank {rank} stopped: {answer.failure.rstrip('.')}. Nothing was released by "
                    "any rank since the last step that all of them ended."
                )
        calls = [answer.call for answer in answers]
        if len(set(calls)) > 1:
            said = ", ".join(f"rank {rank} called {call}" for rank, call in enumerate(calls))
            self._failure = (
                f"{said}: every rank must call batches(), step(), save() and load() in the same "
                "order. Nothing was released since the last step that all of them ended."
            )
            raise RankError(self._failure)
        return [answer.value for answer in answers]

    def _wait_for(self, keys: Sequence[str]) -> None:
        """Until all ranks have said these, or one of those that have not is known to have ended."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        while True:
            left = max(0.1, deadline - time.monotonic())
            try:
                self._store.wait(list(keys), timedelta(seconds=min(left, _LOOK_AFTER)))
                return
            except RuntimeError:
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                silent = {rank: self._peers[rank] for rank in missing if rank in self._peers}
                if time.monotonic() >= deadline or find_ended(silent, patient=False):
                    raise

    def _find_failures(self) -> str | None:
        """Which rank stopped, and what it said of why, as far as it did."""
        said = self._find_said()
        if said is None and (ended := find_ended(self._peers)):
            return f"{_name_ranks(ended)} ended without a word (killed?)."
        return said

    def _find_said(self) -> str | None:
        for rank in range(self.size):
            with suppress(RuntimeError):
                key = f"{self._turn}/{rank}"
                if rank != self.rank and self._store.check([key]):
                    failure = _Answer(*json.loads(self._store.get(key))).failure
                    if failure is not None:
                        return f"rank {rank} stopped: {failure}"
        return None

    def _say(self, value: Any, failure: str | None) -> None:
        try:
            self._store.set(f"{self._turn}/{self.rank}", json.dumps((value, failure, self.call)))
        except RuntimeError as error:
            raise RankError(self._explain_lost_store()) from error

    def _explain_lost_store(self) -> str:
        ended = find_ended(self._peers)
        who = f"{_name_ranks(ended)} ended without a word (killed?)" if ended else "its rank ended"
        return (
            f"the store of the process group, which one rank keeps (rank 0, as a rule), is gone: "
            f"{who}. Nothing was released by this rank since its last step."
        )

    def _name_missing(self, keys: Sequence[str]) -> str:
        try:
            missing = [str(rank) for rank, key in enumerate(keys) if not self._store.check([key])]
        except RuntimeError:
            return self._explain_lost_store()
        if ended := find_ended({r: a for r, a in self._peers.items() if str(r) in missing}):
            return (
                f"{_name_ranks(ended)} ended without a word (killed?). Nothing was released by "
                "this rank since its last step."
            )
        return (
            f"rank {', '.join(missing) or '?'} did not answer within {self._timeout}: it ended, "
            "hangs, or made other calls than this one. Every rank must call batches(), step(), "
            "save() and load() in the same order. Nothing was released by this rank since its last "
            "step."
        )


def _tell_of_end(known: weakref.ref[Replicas]) -> None:
    """A process that ends by an error, whatever raised it, says so: nobody need wait for it."""
    world, error = known(), getattr(sys, "last_value", None)
    if world is not None and error is not None:
        with suppress(Exception):
            world.note_failure(error)


def _name_ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}"


def _timeout() -> timedelta:
    """That of the process group."""
    group: Any = dist.distributed_c10d._get_default_group()
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)
    timeout = getattr(options, "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else timedelta(minutes=30)


@contextmanager
def explained(find_failures: Callable[[], str | None]) -> Iterator[None]:
    """Errors of collectives, in terms of ranks; they may have said why they stopped."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, RankError) or not is_of_group(error):
            raise
        found = find_failures() or f"a rank ended while it was waited for ({error})."
        raise RankError(f"{found} Nothing was released since the last step.") from error


def is_of_group(error: RuntimeError) -> bool:
    """Whether a collective failed, and not something else."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in _GROUP_WORDS)


_GROUP_WORDS = ("gloo", "connection", "nccl", "timed out", "timeout", "peer", "process group")


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def find_grid(together: Sequence[Sequence[int]], size: int) -> list[tuple[int, ...]]:
    """The sets of ranks that have a model together, each rank in one of them.

    Args:
        together: for each rank, the ranks of its own set.
        size: the number of ranks.
    """
    found = sorted({tuple(each) for each in together})
    whole = sorted(rank for each in found for rank in each)
    if whole != list(range(size)) or len({len(each) for each in found}) > 1:
        raise DistributedTrainingError(
            f"{size} ranks have a model in parts, together with these: {found}",
            "Use the groups along one dimension of a DeviceMesh over all ranks: for a stage "
            "PipelineStage(..., group=mesh['pp'].get_group()).",
            "every rank must be in one of them, and all must have as many",
        )
    return found
