"""Which samples of a batch are replaced by others, or left out, to see whether the rest notices."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import combinations, islice

import torch
from torch import Tensor

# Copies of a sample that are tried together; and of how many samples a batch is small.
COPIED, FEW = 4, 8


Vote = Callable[[Sequence[bool]], list[bool]]
"""Of each whether it is so on some of the ranks that run the same passes."""

_COMMON: ContextVar[random.Random | None] = ContextVar("common choices", default=None)
_VOTE: ContextVar[Vote | None] = ContextVar("vote", default=None)


@contextmanager
def common_choices(source: random.Random, vote: Vote) -> Iterator[None]:
    """In here choices are those of other ranks, too: drawn from one source, or voted on."""
    token, voted = _COMMON.set(source), _VOTE.set(vote)
    try:
        yield
    finally:
        _COMMON.reset(token)
        _VOTE.reset(voted)


def on_any(*are_so: bool) -> list[bool]:
    """Of each whether it is so here, or on another rank that runs the same passes."""
    vote = _VOTE.get()
    return list(are_so) if vote is None else vote(are_so)


def on_all(is_so: bool) -> bool:
    """Whether it is so on all of them."""
    return not on_any(not is_so)[0]


def draw_below(count: int) -> int:
    """From the operating system's entropy, so that nothing is aligned with it."""
    source = _COMMON.get()
    return secrets.randbelow(count) if source is None else source.randrange(count)


def new_generator() -> torch.Generator:
    """One that draws from there."""
    generator, source = torch.Generator(), _COMMON.get()
    if source is None:
        generator.seed()
        return generator
    return generator.manual_seed(source.getrandbits(63))


def random_order(count: int) -> Tensor:
    """Of so many."""
    return torch.randperm(count, generator=new_generator(), device="cpu")


def displace(samples: Tensor, count: int) -> Tensor:
    """These of ``count`` samples in a random order, in which none is at its own place in the batch.

    What happens to one place of a batch then shows, wherever the place is, and whether it is
    counted from the beginning or from the end. (Of two samples one may be at its place counted
    from the end.)
    """
    found: list[int] = samples[random_order(len(samples))].tolist()
    size = len(found)

    def is_at_home(place: int) -> bool:
        return found[place] in (place, place + count - size)

    for place in range(size if size > 1 else 0):
        if not is_at_home(place):
            continue
        for step in range(1, size):
            other = (place + step) % size
            found[place], found[other] = found[other], found[place]
            if not (is_at_home(place) or is_at_home(other)):
                break
            found[place], found[other] = found[other], found[place]
        else:
            if found[place] == place:
                other = (place + 1) % size
                found[place], found[other] = found[other], found[place]
    return torch.tensor(found, dtype=samples.dtype, device=samples.device)


def split_samples(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Halves, as masks, such that any two samples are on different sides of some split."""
    codes = random_order(count)
    for bit in range(math.ceil(math.log2(count))):
        half = codes.bitwise_right_shift(bit).bitwise_and(1).bool()
        yield half, ~half


def separate_samples(count: int, *, shuffle: bool = True) -> list[Tensor]:
    """Masks such that of any two samples each is kept in some of them without the other.

    Each sample is in another selection of half of the masks, and none of these holds another.
    """
    masks = next(n for n in range(2, count + 2) if math.comb(n, n // 2) >= count)
    chosen = islice(combinations(range(masks), (masks + 1) // 2), count)
    kept = torch.zeros(masks, count, dtype=torch.bool, device="cpu")
    order = random_order(count) if shuffle else torch.arange(count, device="cpu")
    for sample, which in zip(order.tolist(), chosen, strict=True):
        kept[list(which), sample] = True
    # The first one is used most: it is to be as near to half of the samples as any.
    balanced = sorted(kept, key=lambda mask: abs(2 * int(mask.sum()) - count))
    return [mask for mask in balanced if mask.any()]


def replace_others(
    kept: Tensor, scores: Tensor | None = None, *, largest: bool | None = None
) -> Tensor:
    """Which sample stands in each place when all but ``kept[B]`` become another one.

    It is the kept one with the ``largest`` score, or with the smallest, so that whatever is
    computed of all moves far; if a single one is kept, that sample of all. Any of those kept if
    nothing is said.
    """
    places = torch.arange(len(kept), device="cpu")
    if scores is None or largest is None:
        sources = places[kept]
        return torch.where(kept, places, sources[draw_below(len(sources))])
    scores = scores if largest else -scores
    is_alone = int(kept.sum()) == 1 and len(kept) > 2
    source = (scores if is_alone else scores.where(kept, -math.inf)).argmax()
    return torch.where(kept, places, source)


def score_samples(tensor: Tensor, batch: int, dim: int = 0) -> Tensor:
    """The sum of each sample's values, which are along a dimension."""
    values = tensor.detach().real if tensor.is_complex() else tensor.detach()
    return values.movedim(dim, 0).reshape(batch, -1).double().sum(1).nan_to_num().cpu()


def take_several(samples: Tensor, count: int) -> Tensor:
    """These samples, or all and one of them twice: a batch of one may be run differently."""
    if len(samples) > 1:
        return samples
    return torch.cat(
        [torch.arange(count, device="cpu").flip(0), torch.tensor([count - 1], device="cpu")]
    )


def list_companies(masks: Sequence[Tensor], scores: Tensor | None) -> Iterator[Tensor]:
    """Some of the samples: those of each mask, and a single one beside copies of another.

    The other one is that with the largest score, and that with the smallest.
    """
    for mask in masks:
        yield displace(mask.nonzero().flatten(), len(mask))
    chosen = int(random_order(len(masks[0]))[0])
    ends = [] if scores is None else [int(scores.argmax()), int(scores.argmin())]
    for other in (chosen, *ends):
        yield torch.tensor([chosen, *[other] * (COPIED - 1)], device="cpu")


def choose_singles(count: int) -> Tensor:
    """Masks of single samples: what all others have in common may decide (no padding at all)."""
    chosen = random_order(count)[: COPIED if count <= FEW else 1]
    return torch.eye(count, dtype=torch.bool, device="cpu")[chosen]
