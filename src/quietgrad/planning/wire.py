"""What one rank sends in a step: bytes by collective, as a ring sends them.

In a ring each of N ranks sends (N - 1) / N of a tensor to gather it or to reduce and scatter it,
and twice that for an all-reduce. A broadcast counts as the tensor, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quietgrad.planning.modes import CutLayer, Mode, Weight

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, SEND = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "broadcast",
    "send",
)
_VOTE = 8  # bytes of a number on which ranks agree, or that they add up


class Sent(NamedTuple):
    """What a rank sends in a step for one purpose.

    Attributes:
        collective: all-gather, reduce-scatter, all-reduce, broadcast or send.
        what: in words.
        size: bytes.
    """

    collective: str
    what: str
    size: float


def ring(collective: str, size: float, ranks: int) -> float:
    """Bytes that a rank sends of a tensor of so many."""
    if ranks == 1:
        return 0.0
    share = (ranks - 1) / ranks
    return size * {ALL_REDUCE: 2 * share, BROADCAST: 1.0, SEND: 1.0}.get(collective, share)


def padded(weight: Weight, parts: int) -> int:
    """Numbers of a weight when all ranks' parts are as large as the first one's."""
    return weight.shard(parts).numbers * parts if weight.shape else weight.numbers


def send_sums(weights: Sequence[Weight], copies: int, what: str) -> Iterator[Sent]:
    """Once in a step: sums of all copies are reduced, and what is released is gathered."""
    if copies == 1:
        return
    kinds: dict[int, int] = {}
    for weight in weights:
        if weight.is_trained:
            size = weight.sum_size // max(1, weight.numbers)
            kinds[size] = kinds.get(size, 0) + weight.numbers
    size = sum(-(-numbers // copies) * copies * each for each, numbers in kinds.items())
    yield Sent(REDUCE_SCATTER, f"clipped sums{what}", ring(REDUCE_SCATTER, size, copies))
    yield Sent(ALL_GATHER, f"sums with noise{what}", ring(ALL_GATHER, size, copies))


def send_shards(
    weights: Sequence[Weight],
    groups: Sequence[Sequence[str]],
    mode: Mode,
    micro_batches: int,
    itemsize: int | None,
) -> Iterator[Sent]:
    """FSDP2 and HSDP: weights are gathered in both passes, sums scattered behind them."""
    parts, world = mode.parts, mode.world
    gathered = scattered = 0.0
    for weight in weights:
        whole = padded(weight, parts)
        # What is outside of all blocks stays gathered from the forward pass to the backward pass.
        times = 2 if weight.place else 1
        gathered += times * whole * (itemsize or weight.itemsize)
        if weight.is_trained:
            scattered += whole * (weight.sum_size // max(1, weight.numbers))
    size = micro_batches * ring(ALL_GATHER, gathered, parts)
    yield Sent(ALL_GATHER, "weights, for both passes", size)
    size = micro_batches * ring(REDUCE_SCATTER, scattered, parts)
    yield Sent(REDUCE_SCATTER, "clipped sums", size)
    shards = [weight.shard(parts) for weight in weights]
    yield from send_sums(shards, mode.copies, ", of the copies")
    inner: dict[str, set[str]] = {}
    for weight in weights:
        inner.setdefault(weight.place, set()).add(weight.name)
    has_early = any(set(names) <= module for names in groups for module in inner.values())
    votes = micro_batches * (2 + has_early) * ring(ALL_REDUCE, _VOTE, world)
    checked = ring(ALL_REDUCE, _VOTE * (len(groups) + 1), parts)
    yield Sent(ALL_REDUCE, "votes, norms of the sums", votes + checked)


class LayerTraffic(NamedTuple):
    """Bytes per sample that go in and out of a layer whose weight is spread."""

    layer: CutLayer
    inputs: int
    outputs: int


def send_parts(
    weights: Sequence[Weight],
    groups: int,
    traffic: Sequence[LayerTraffic],
    mode: Mode,
    samples: int,
    micro_batches: int,
) -> Iterator[Sent]:
    """Tensor parallel: activations in both passes, squared norms, and what is whole on all ranks.

    Args:
        weights: as a rank holds them.
        groups: their number.
        traffic: of the layers that are spread.
        mode: how ranks share the work.
        samples: in all micro-batches of this rank.
        micro_batches: of this rank.
    """
    parts = mode.parts
    reduced = gathered = backward = 0.0
    for each in traffic:
        if each.layer.style == "rowwise":
            reduced += each.outputs
        elif each.layer.style == "gathered":
            gathered += each.outputs
        if each.layer.style != "rowwise" and not each.layer.is_embedding:
            backward += each.inputs
    if reduced:
        size = samples * ring(ALL_REDUCE, reduced, parts)
        yield Sent(ALL_REDUCE, "activations, in the forward pass", size)
    if gathered:
        size = samples * ring(ALL_GATHER, gathered, parts)
        yield Sent(ALL_GATHER, "activations, in the forward pass", size)
    if backward:
        size = samples * ring(ALL_REDUCE, backward, parts)
        yield Sent(ALL_REDUCE, "gradients of activations", size)
    norms = ring(ALL_REDUCE, _VOTE * samples * groups, parts)
    checked = ring(ALL_REDUCE, _VOTE * groups, parts)
    yield Sent(ALL_REDUCE, "squared norms", norms + checked)
    # Losses, twice; whether passes are to be repeated; which groups are complete; once in a step
    # whether sums of what is whole are apart.
    compared = _VOTE * (2 * samples + micro_batches * (2 + 3 + groups) + 1)
    yield Sent(ALL_REDUCE, "votes, and losses that are compared", ring(ALL_REDUCE, compared, parts))
    whole = sum(weight.sum_size for weight in weights if weight.is_trained and not weight.is_cut)
    if whole:
        size = ring(BROADCAST, 2 * whole, parts)
        yield Sent(BROADCAST, "sums of what is whole, compared, and with noise", size)
    yield from send_sums(weights, mode.copies, ", of ranks beside each other")


def send_stage(
    weights: Sequence[Weight], mode: Mode, forward: float, backward: float, samples: int
) -> Iterator[Sent]:
    """A pipeline: activations to the next stage, their gradients to the one before.

    Args:
        weights: of the stage.
        mode: how ranks share the work.
        forward: bytes per sample that it hands on.
        backward: bytes per sample of the gradients that it hands back.
        samples: in all micro-batches of the rank, with those that fill them up.
    """
    if forward:
        yield Sent(SEND, "activations, to the next stage", samples * forward)
    if backward:
        yield Sent(SEND, "gradients, to the stage before", samples * backward)
    yield from send_sums(weights, mode.copies, ", of the pipelines")
