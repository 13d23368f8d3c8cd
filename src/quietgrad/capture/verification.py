"""When and how it is verified that samples are independent and rows belong to whom they should."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.capture.graph import summarize
from quietgrad.capture.independence import check_independence
from quietgrad.capture.layout import SiteKey
from quietgrad.capture.tape import Tape
from quietgrad.errors import SampleMixingError


class Verifier:
    """Verifies a backward pass before it is used, in full whenever something about it is new."""

    def __init__(
        self,
        describe: Callable[[nn.Parameter], str],
        paused: Callable[[], AbstractContextManager[None]],
        *,
        thorough: bool,
    ) -> None:
        self._describe, self._paused, self._thorough = describe, paused, thorough
        self._known: set[Any] = set()

    def verify(self, tape: Tape, losses: Tensor) -> None:
        """Refuse losses that mix samples.

        In full when asked for, when the forward called functions or the graph has links that were
        not seen before, and when a layout is open. Where rows are picked by an index, which may
        pick others each time, one random split is probed each time. A verifier that is not
        thorough only settles layouts.
        """
        graph = summarize(losses, tape.batch, self._describe)
        kind = (frozenset(tape.functions), graph.links)
        if tape.batch == 1:
            return
        if not self._thorough:
            _settle_layouts(tape, losses)
        elif tape.verify or kind not in self._known or tape.is_unsettled():
            _probe_in_full(tape, losses)
            with self._paused():
                for call in tape.calls:
                    check_independence(call, list(splits(tape.batch)))
            self._known.add(kind)
        elif graph.selects_rows:
            for half in next(splits(tape.batch)):
                tape.probe(losses, half.to(losses.device))


def _settle_layouts(tape: Tape, losses: Tensor) -> None:
    """Split after split, until every operation's rows can belong to samples in one way only."""
    for halves in splits(tape.batch):
        if not tape.is_unsettled():
            return
        for half in halves:
            tape.probe(losses, half.to(losses.device))
    tape.accept_ambiguity()


def _probe_in_full(tape: Tape, losses: Tensor) -> None:
    everything = torch.ones(tape.batch, dtype=torch.bool, device=losses.device)
    whole = tape.probe(losses, everything)
    for halves in splits(tape.batch):
        parts = [tape.probe(losses, half.to(losses.device)) for half in halves]
        _check_additive(whole, parts)
    tape.accept_ambiguity()


def splits(batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Halves of the batch such that any two samples are on different sides of some split."""
    generator = torch.Generator()
    generator.seed()
    codes = torch.randperm(batch, generator=generator)
    for bit in range(math.ceil(math.log2(batch))):
        half = codes.bitwise_right_shift(bit).bitwise_and(1).bool()
        yield half, ~half


def _check_additive(
    whole: dict[SiteKey, tuple[float, float]], parts: list[dict[SiteKey, tuple[float, float]]]
) -> None:
    """Back-propagation is linear: both halves together give the whole, unless a hook meddles."""
    for key, (value, tolerance) in whole.items():
        found = sum(part.get(key, (0.0, 0.0))[0] for part in parts)
        if abs(found - value) > tolerance:
            raise SampleMixingError(
                f"samples are mixed in the backward pass: the gradients that two halves of the "
                f"batch send to {key} do not add up to those of the whole. A gradient hook scales "
                "or clips them together. Remove it; clipping is done per sample."
            )
