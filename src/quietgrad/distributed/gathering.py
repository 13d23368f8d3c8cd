"""Sharded weights that are gathered for whichever rank asks, while each runs passes of its own.

While a micro-batch is verified, ranks repeat passes of the model, in numbers and kinds that others
do not know, and a pass may fail half-way. So nobody gathers because of what it runs. Who needs
weights says so, and so does who needs none any more; all then gather the same ones, and who did not
ask frees them again. No rank holds more at a time than in a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from quietgrad.distributed.sharding import local_of
from quietgrad.distributed.world import Move

_MOST_ASKED, _BITS = 1 << 40, 20  # how often, and the numbers of groups


class Gathering:
    """Rounds in which all ranks gather the weights that one of them asks for.

    Args:
        groups: of weights that torch gathers together, the same on all ranks.
        names: of the weights of each.
        vote: gives the largest of the numbers that all ranks say.
    """

    def __init__(
        self,
        groups: Sequence[Any],
        names: Sequence[Sequence[str]],
        vote: Callable[[int], int],
    ) -> None:
        self._groups, self._names, self._vote = groups, names, vote
        self._asked = 0
        self._kept: set[int] = set()
        self._idle: int | None = None  # the group that a forward used last
        self._move: Move | None = None
        self._failure: Exception | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """In here this rank runs what it likes. It ends when all ranks have ended."""
        # What torch leaves gathered between a forward and its backward pass may be used unasked.
        self._kept = {n for n, group in enumerate(self._groups) if group.is_unsharded}
        before = [vars(group).get("post_backward") for group in self._groups]
        for number, group in enumerate(self._groups):
            if number not in self._kept:
                group._to_sharded()  # perhaps over fewer ranks
            group.unshard = partial(self._obtain, number)
            group.reshard = partial(self._free, number)
            group.post_backward = partial(self._end_backward, number)
            group._backward_prefetch = _nothing
        try:
            yield
            self._serve()
        except Exception as error:
            if self._failure is None or error is self._failure:
                raise
            raise self._failure from None  # the model, or who ran it, had caught it
        finally:
            for group, own in zip(self._groups, before, strict=True):
                del group.unshard, group.reshard, group.post_backward, group._backward_prefetch
                if own is not None:
                    group.post_backward = own

    @contextmanager
    def moved(self, move: Move) -> Iterator[None]:
        """In here this rank gets other values, and nobody else does."""
        self._move = move
        kept, self._kept = self._kept, set()
        self.free()
        try:
            yield
        finally:
            self._move = None
            self.free()
            self._kept = kept
        for number in kept:
            self._obtain(number)

    def free(self) -> None:
        """All that is gathered, but for what torch would keep."""
        self._idle = None
        for number, group in enumerate(self._groups):
            if number not in self._kept:
                group._to_sharded()

    def _obtain(self, number: int, *_: Any) -> None:
        """Gather a group: in the place of what torch would do."""
        group = self._groups[number]
        is_needed = group.unshard_in_backward or group._training_state.name != "PRE_BACKWARD"
        if group.is_unsharded or not is_needed:
            self._idle = None if number == self._idle else self._idle
            return
        # Who has asked less often comes first: ranks that run alike then go on side by side.
        wanted = ((_MOST_ASKED - self._asked) << _BITS) + number + 1
        self._asked += 1
        while (served := self._ask(wanted)) != number:
            self._gather(served, is_wanted=False)
        self._gather(number, is_wanted=True)

    def _serve(self) -> None:
        """Until nobody needs anything any more."""
        while (served := self._ask(0)) >= 0:
            self._gather(served, is_wanted=False)

    def _ask(self, wanted: int) -> int:
        """The number of the group that all are to gather now; less than zero if there is none."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._vote(wanted) % (1 << _BITS) - 1
        except Exception as error:
            self._failure = error
            raise

    def _gather(self, number: int, *, is_wanted: bool) -> None:
        if self._idle is not None:
            self._groups[self._idle]._to_sharded()
            self._idle = None
        group = self._groups[number]
        was_there = group.is_unsharded
        group._to_sharded()
        kind, state = type(group), type(group._training_state)
        try:
            with group.use_training_state(state.IDLE):
                kind.unshard(group)
                kind.wait_for_unshard(group)
        except Exception as error:
            self._failure = error
            raise
        if not was_there and not is_wanted:
            group._to_sharded()
        elif self._move is not None:
            self._write(number, self._move)

    def _write(self, number: int, move: Move) -> None:
        pairs = zip(self._names[number], self._groups[number].fsdp_params, strict=True)
        with torch._C.DisableTorchFunction(), torch.no_grad():  # a forward may be captured just now
            for name, each in pairs:
                held = local_of(each._unsharded_param)
                with torch.autograd._unsafe_preserve_version_counter(held):  # type: ignore[attr-defined]
                    held.copy_(move(name, held))

    def _free(self, number: int) -> None:
        """In the place of what torch would do: what a forward keeps is kept.

        What it frees is freed when room is needed: the backward pass begins with what was used
        last.
        """
        group = self._groups[number]
        if number in self._kept:
            return
        if group._training_state.name != "FORWARD":
            group._to_sharded()
        elif group._reshard_after_forward:
            self._idle = number

    def _end_backward(self, number: int, *_: Any) -> None:
        """No gradient goes to other ranks, and one that escaped is still there to be found."""
        group = self._groups[number]
        group._training_state = type(group._training_state).POST_BACKWARD
        for each in group.fsdp_params:
            gathered = getattr(each, "_unsharded_param", None)
            if gathered is not None and gathered.grad is not None:
                gathered.grad = None
                each.sharded_param.grad = torch.zeros_like(each.sharded_param)
        self._free(number)


def _nothing() -> None:
    """In the place of what would gather ahead."""
