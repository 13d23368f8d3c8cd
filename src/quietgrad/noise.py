"""Gaussian noise that makes a release private: where it comes from, and that it never repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quietgrad._checks import require_positive, unknown_name
from quietgrad.keystream import (
    BLOCK_BYTES,
    CallKeys,
    FastGaussians,
    Gaussians,
    Rest,
    Words,
    chacha20_state,
    drawn_gaussians,
)

__all__ = ["FastNoise", "Noise", "SecureNoise", "names", "resolve"]

_RELEASED_AS = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    # Half precision would round the noise to a few thousand values, and the tail away.
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
_RELEASED_AS_THEY_ARE = frozenset(each for each, other in _RELEASED_AS.items() if each == other)
_HALF = (torch.float16, torch.bfloat16)
_LARGEST = 2.0**100  # a tail of ten deviations stays far from what float32 can hold
_SMALLEST = 2.0**-100


class Noise(Protocol):
    """A source of Gaussian noise.

    It neither reads nor moves the global generators of torch and numpy, and never gives the same
    noise twice: what it draws with is made anew for every call of ``add`` and kept nowhere, so
    there is nothing to save, to log, to copy or to inherit by a fork.
    """

    @property
    def description(self) -> str:
        """Says in a report where the noise came from."""

    def begin_step(self, step: int) -> None:
        """With a seed, the noise of a step depends on its number only, so that it can be resumed.

        Without one nothing changes.
        """

    def add(self, totals: Sequence[Tensor], std: float, divisor: float = 1.0) -> list[Tensor]:
        """The totals with independent noise of standard deviation ``std`` in every entry.

        Both are divided, which costs nothing while they are in the cache. The totals are used up:
        their memory may hold the result. It is float64 for a float64 total and float32 for float32
        and the half types: round to a half type after, not before.
        """


def released_dtype(total: Tensor) -> torch.dtype:
    """What a total is released as; TypeError if there can be no noise for it."""
    if total.dtype not in _RELEASED_AS:
        expected = ", ".join(str(dtype) for dtype in _RELEASED_AS)
        raise TypeError(f"no noise for a tensor of {total.dtype}: expected one of {expected}")
    return _RELEASED_AS[total.dtype]


def require_std(std: float) -> float:
    """A scale that protects, and whose noise neither overflows nor vanishes in float32."""
    require_positive("std", std)
    if not _SMALLEST <= std <= _LARGEST:
        raise ValueError(
            f"std={std:g} is outside of what float32 holds with a margin: expected 2^-100 to 2^100."
            " Choose a radius nearer to 1"
        )
    return float(std)


def require_apart(totals: Sequence[Tensor]) -> None:
    """Refuse totals that begin at the same memory: they would get the same noise."""
    places = [total.data_ptr() for total in totals if total.numel()]
    if len(set(places)) < len(places):
        raise ValueError(
            "two totals share their memory, and would be released with the same noise: pass copies"
        )


def require_divisor(divisor: float) -> float:
    """What sums are divided by: a positive number."""
    return float(require_positive("divisor", divisor))


def grid_size(std: float, bits: int) -> float:
    """The largest power of two that is at most ``std * 2**-bits``."""
    return float(math.ldexp(1.0, math.frexp(std)[1] - 1 - bits))


# Entries at a time: small enough for the cache, large enough for calls to take little of it.
CHUNK = 1 << 18
_FEW = 8  # parts of a chunk, which may be large: torch would copy them with threads of its own
_CHUNKS_OF_THREAD = 8  # for fewer, a thread of its own does not pay


class Piece(NamedTuple):
    """A run of entries, flat: where they come from and where they go to."""

    total: Tensor
    noisy: Tensor


def output_buffer(total: Tensor) -> Tensor:
    """Where to release a total of the host: in its own memory if that will do."""
    if total.dtype in _RELEASED_AS_THEY_ARE and total.is_contiguous():
        return total
    return torch.empty(total.shape, dtype=released_dtype(total), device="cpu")


def chunks_of(totals: Iterable[Tensor], rooms: Iterable[Tensor]) -> list[list[Piece]]:
    """Chunks of at most ``CHUNK`` entries: large tensors are cut, small ones put together."""
    return list(_pack([*map(_piece_of, totals, rooms)]))


def _piece_of(total: Tensor, room: Tensor) -> Piece:
    flat = total.reshape(-1)
    return Piece(flat, flat if room is total else room.view(-1))


def whole_of(chunk: Sequence[Piece]) -> Piece:
    """All entries of a chunk, one after the other."""
    if len(chunk) == 1:
        return chunk[0]
    totals = [piece.total for piece in chunk]
    if len(chunk) > _FEW or any(each.dtype in _HALF for each in totals):
        total = torch.cat(totals)
    else:  # numpy begins no threads: this may run in one of several
        total = torch.from_numpy(np.concatenate([each.numpy() for each in totals]))
    return Piece(total, output_buffer(total))


def released_array(whole: Piece) -> NDArray[Any]:
    """The total in the memory where it is released."""
    if whole.noisy.data_ptr() != whole.total.data_ptr():
        whole.noisy.copy_(whole.total)
    return whole.noisy.numpy()


def halves_of(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both halves of a run, the second one shorter if they cannot be equal."""
    half = (len(values) + 1) // 2
    return values[:half], values[half:]


def in_threads(
    work: Callable[[Sequence[tuple[int, list[Piece]]]], None], chunks: Sequence[list[Piece]]
) -> None:
    """Hand out chunks, each with its number, to as many threads as torch uses."""
    numbered = list(enumerate(chunks))
    count = min(torch.get_num_threads(), len(chunks) // _CHUNKS_OF_THREAD)
    if count < 2:
        work(numbered)
        return
    bounds = [len(chunks) * place // count for place in range(count + 1)]
    own, *others = (numbered[start:end] for start, end in pairwise(bounds))
    with ThreadPoolExecutor(count - 1) as pool:
        begun = [pool.submit(work, each) for each in others]
        work(own)
        for each in begun:
            each.result()


def spread(whole: Piece, chunk: Sequence[Piece]) -> None:
    """Put what was released of a chunk where it belongs, if it is not there already."""
    if len(chunk) == 1:
        return
    parts = whole.noisy.split_with_sizes([piece.noisy.numel() for piece in chunk])
    if len(chunk) > _FEW:
        torch._foreach_copy_([piece.noisy for piece in chunk], parts)
        return
    for piece, part in zip(chunk, parts, strict=True):
        np.copyto(piece.noisy.numpy(), part.numpy())


def _pack(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    chunk: list[Piece] = []
    room = CHUNK
    for piece in pieces:
        size = piece.total.numel()
        if size < room:  # as most are that there are many of
            chunk.append(piece)
            room -= size
            continue
        for part in _cut(piece, room):
            chunk.append(part)
            room -= part.total.numel()
            if not room:
                yield chunk
                chunk, room = [], CHUNK
    if chunk:
        yield chunk


def _cut(piece: Piece, room: int) -> Iterator[Piece]:
    """The first part as large as there is room, the others as large as a chunk."""
    size = piece.total.numel()
    if size <= room:
        yield piece
        return
    ends = [*range(room, size, CHUNK), size]
    for start, end in pairwise([0, *ends]):
        yield Piece(piece.total[start:end], piece.noisy[start:end])


# A view of complex numbers must begin at an even place, and kernels like to load four at once.
_ALIGNED = 4


def release(
    totals: Sequence[Tensor],
    keys: CallKeys,
    on_host: Callable[[list[list[Piece]], bytes], None],
    on_device: Callable[[Tensor, bytes], None],
) -> list[Tensor]:
    """What comes of the totals: chunks of the host, and one flat buffer for each other device.

    Totals that are released in another dtype have a buffer of their own. Each buffer, and the host,
    has a key of its own. Only totals of the host are used up: a buffer is a copy.
    """
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    rooms: dict[int, Tensor] = {}
    for i, total in enumerate(totals):
        if total.device.type == "cpu":
            rooms[i] = output_buffer(total)
        else:
            places.setdefault((total.device, released_dtype(total)), []).append(i)
    on_host(chunks_of((totals[i] for i in rooms), rooms.values()), keys.next())
    for (_, dtype), members in places.items():
        own = [totals[i] for i in members]
        flat = _joined(own, dtype)
        on_device(flat, keys.next())
        rooms.update(zip(members, _apart(flat, own), strict=True))
    return [rooms[i] for i in range(len(totals))]


def _joined(totals: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """A copy of all entries in one run; between two totals there is what aligns the next."""
    padding = totals[0].new_zeros(_ALIGNED)
    parts = ((t.reshape(-1), padding[: -t.numel() % _ALIGNED]) for t in totals)
    return torch.cat([part for pair in parts for part in pair]).to(dtype)


def _apart(flat: Tensor, totals: Sequence[Tensor]) -> Iterator[Tensor]:
    """The parts of a run, in the shapes of the totals it was made of."""
    sizes = [size for t in totals for size in (t.numel(), -t.numel() % _ALIGNED)]
    return (part.view(t.shape) for part, t in zip(flat.split(sizes)[::2], totals, strict=True))


_FAST_BLOCKS = CHUNK * 4 // BLOCK_BYTES


class FastNoise:
    """Gaussian noise of single precision, drawn where the total is.

    On a CPU the bits are cryptographic, but a float has few digits: the tail ends at 6.6 standard
    deviations, and sums are released as floats come, whose last bits may tell of the total. On
    other devices it is torch's generator, and who sees enough of its noise could tell the rest.

    Args:
        seed: makes the noise reproducible. For tests and for comparing runs only.
    """

    description = "fast (NOT cryptographic)"

    def __init__(self, seed: int | None = None) -> None:
        self._keys = CallKeys("fast noise", seed)

    def begin_step(self, step: int) -> None:
        """With a seed, the noise of a step depends on its number only."""
        self._keys.begin_step(step)

    def add(self, totals: Sequence[Tensor], std: float, divisor: float = 1.0) -> list[Tensor]:
        """The totals with noise, as floats come, divided."""
        std, divisor = require_std(std), require_divisor(divisor)
        require_apart(totals)
        return release(
            totals,
            self._keys,
            partial(_add_noise_fast, std=std, divisor=divisor),
            partial(_add_noise_fast_on_device, std=std, divisor=divisor),
        )


def _add_noise_fast_on_device(flat: Tensor, key: bytes, std: float, divisor: float) -> None:
    """With a generator of its own, whose seed is as long as torch takes."""
    generator = torch.Generator(flat.device).manual_seed(int.from_bytes(key[:8], signed=True))
    noise = torch.empty_like(flat).normal_(generator=generator)
    flat.add_(noise, alpha=std).div_(divisor)


def _add_noise_fast(chunks: list[list[Piece]], key: bytes, std: float, divisor: float) -> None:
    """Every chunk with the bits of its own place in the key's stream."""

    def add_to(numbered: Sequence[tuple[int, list[Piece]]]) -> None:
        sizes = [sum(piece.total.numel() for piece in chunk) for _, chunk in numbered]
        room = max((size + size % 2 for size in sizes), default=0)
        words, gaussians = Words(room // 2), FastGaussians(room)
        for (index, chunk), size in zip(numbered, sizes, strict=True):
            bits = words.fill(key, index * _FAST_BLOCKS, (size + 1) // 2).view("<i4")
            whole = whole_of(chunk)
            is_double = whole.total.dtype == torch.float64
            drawn = gaussians.halves(bits, 1.0 if is_double else std / divisor)
            released = released_array(whole)
            for noisy, values in zip(halves_of(released), drawn, strict=False):
                values = values[: len(noisy)]
                with np.errstate(over="ignore"):  # a total that is infinite, or nearly
                    noisy *= 1 / divisor
                    # Doubles are scaled in their own precision.
                    noisy += values * np.float64(std / divisor) if is_double else values
            spread(whole, chunk)

    in_threads(add_to, chunks)


_SECURE_BLOCKS = CHUNK * 8 // BLOCK_BYTES
_FURTHER = 1 << 64  # more blocks than all chunks of a call take together; a chunk has its own
# The grid is 2^-12 to 2^-13 of the noise: far coarser than a double, far finer than matters.
_GRID_BITS = 12
# Up to here totals in units of the grid are far from what a float can hold, which is 2^128.
_FINEST = 2.0**64


class SecureNoise:
    """Gaussian noise from a cryptographic stream, in double precision, on a grid.

    The stream is that of AES-256-CTR on the CPU. On other devices it is ChaCha20, computed there.
    The description names both, because a run may be resumed on another device.

    Args:
        seed: makes the noise reproducible. For tests and for comparing runs only: noise that can
            be recomputed protects nobody.
    """

    description = "secure (AES-256-CTR or ChaCha20, on a grid)"

    def __init__(self, seed: int | None = None) -> None:
        self._keys = CallKeys("noise", seed)

    def begin_step(self, step: int) -> None:
        """With a seed, the noise of a step depends on its number only."""
        self._keys.begin_step(step)

    def add(self, totals: Sequence[Tensor], std: float, divisor: float = 1.0) -> list[Tensor]:
        """The totals with noise, rounded to the grid, then divided."""
        std, divisor = require_std(std), require_divisor(divisor)
        require_apart(totals)
        return release(
            totals,
            self._keys,
            partial(_add_noise_secure, std=std, divisor=divisor),
            partial(_add_noise_secure_on_device, std=std, divisor=divisor),
        )


def _add_noise_secure(chunks: list[list[Piece]], key: bytes, std: float, divisor: float) -> None:
    """Every chunk with the bits of its own place in the key's stream."""
    grid = grid_size(std, _GRID_BITS)

    def add_to(numbered: Sequence[tuple[int, list[Piece]]]) -> None:
        sizes = [sum(piece.total.numel() for piece in chunk) for _, chunk in numbered]
        room = max(sizes, default=0)
        rest = Rest(key)
        words, gaussians = Words(room), Gaussians(room, std, rest.take)
        for (index, chunk), size in zip(numbered, sizes, strict=True):
            bits = words.fill(key, index * _SECURE_BLOCKS, size).view("<i8")
            rest.begin((index + 1) * _FURTHER, size)
            whole = whole_of(chunk)
            released = released_array(whole)
            _release_on_grid(gaussians.added_to(released, bits), released, grid, divisor)
            spread(whole, chunk)

    in_threads(add_to, chunks)


def _release_on_grid(
    noisy: NDArray[np.float64], room: NDArray[Any], grid: float, divisor: float
) -> None:
    """A total with noise: rounded to the grid, then divided."""
    steps: NDArray[Any] = noisy
    with np.errstate(over="ignore"):  # a total that is infinite, or nearly
        if divisor / grid < _FINEST:
            # First to what is released: whatever is done to a noisy total, it remains private. To
            # round and to divide floats takes half the time.
            np.copyto(room, noisy, casting="same_kind")
            steps = room
        steps *= 1 / grid  # exact, because the grid is a power of two
        np.rint(steps, out=steps)
        steps /= divisor / grid
        if steps is not room:
            np.copyto(room, steps, casting="same_kind")


# Entries at a time on a device: few launches for each, and 200 MB of memory.
_DEVICE_CHUNK = 1 << 22
_WITH_COMPILER = frozenset({"cuda", "xpu"})


def _add_noise_secure_on_device(flat: Tensor, key: bytes, std: float, divisor: float) -> None:
    """Every chunk with a stream of its own: its number is the nonce."""
    _require_doubles(flat.device)
    grid = grid_size(std, _GRID_BITS)
    for index, part in enumerate(flat.split(_DEVICE_CHUNK) if len(flat) else ()):
        # To compile takes seconds: only for what has chunks of full size, which is then one size.
        is_compiled = flat.device.type in _WITH_COMPILER and len(part) == _DEVICE_CHUNK
        state = chacha20_state(key, index, flat.device)
        values = drawn_gaussians(state, len(part), is_compiled).mul_(std / grid)
        # Exact, because the grid is a power of two, but for the rounding of the addition and the
        # division. To divide by both is one pass instead of two.
        part.copy_(values.add_(part, alpha=1 / grid).round_().div_(divisor / grid))


def _require_doubles(device: torch.device) -> None:
    try:
        torch.empty(0, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError) as error:
        raise RuntimeError(
            f"secure noise is computed in double precision, which {device} does not have: train"
            ' on another device, or choose noise="fast", which is not cryptographic there'
        ) from error


_SOURCES: dict[str, Callable[[int | None], Noise]] = {"secure": SecureNoise, "fast": FastNoise}


def names() -> tuple[str, ...]:
    """The names `resolve` understands."""
    return tuple(_SOURCES)


def resolve(name: str, seed: int | None = None) -> Noise:
    """The source of this name; ValueError, with the nearest names, if there is none."""
    if not isinstance(name, str) or name not in _SOURCES:
        raise unknown_name("noise", name, names())
    return _SOURCES[name](seed)
