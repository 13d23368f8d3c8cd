"""Many tensors as one run of entries, cut into chunks that fit the cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from quietgrad.noise.contract import released_dtype

# Entries at a time: small enough for the cache, large enough for torch to use all its threads.
CHUNK = 1 << 18


class Piece(NamedTuple):
    """A run of entries, flat: where they come from and where they go to."""

    total: Tensor
    noisy: Tensor


def room_for(total: Tensor) -> Tensor:
    """Where to release a total: in its own memory if that will do."""
    dtype = released_dtype(total)
    if total.device.type == "cpu" and total.dtype == dtype and total.is_contiguous():
        return total
    return torch.empty(total.shape, dtype=dtype)


def chunks_of(totals: Iterable[Tensor], rooms: Iterable[Tensor]) -> list[list[Piece]]:
    """Chunks of at most ``CHUNK`` entries: large tensors are cut, small ones put together."""
    pieces = map(Piece, (t.cpu().reshape(-1) for t in totals), (room.view(-1) for room in rooms))
    return list(_packed(pieces))


def joined(chunk: Sequence[Piece]) -> Tensor:
    """All totals of a chunk, one after the other; to be read, not written."""
    return chunk[0].total if len(chunk) == 1 else torch.cat([piece.total for piece in chunk])


def write(values: Tensor, chunk: Sequence[Piece]) -> None:
    """Put the values of a chunk where they belong."""
    sizes = [len(piece.noisy) for piece in chunk]
    for piece, part in zip(chunk, values.split(sizes), strict=True):
        piece.noisy.copy_(part)


def _packed(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    chunk: list[Piece] = []
    room = CHUNK
    for piece in pieces:
        for part in _cut(piece, room):
            chunk.append(part)
            room -= len(part.total)
            if not room:
                yield chunk
                chunk, room = [], CHUNK
    if chunk:
        yield chunk


def _cut(piece: Piece, room: int) -> Iterator[Piece]:
    """The first part as large as there is room, the others as large as a chunk."""
    size = len(piece.total)
    if size <= room:
        yield piece
        return
    ends = [*range(room, size, CHUNK), size]
    for start, end in pairwise([0, *ends]):
        yield Piece(piece.total[start:end], piece.noisy[start:end])
