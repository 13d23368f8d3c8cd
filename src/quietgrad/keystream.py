"""Random bits that cannot be predicted, from AES-256-CTR and ChaCha20, and Gaussians made of them.

AES-256 in counter mode (NIST SP 800-38A) is OpenSSL's, through the ``cryptography`` package, and
runs on the host. ChaCha20 (RFC 8439) takes sums, shifts and exclusive ors of integers only: torch
computes it on any device. A key comes from the operating system and is used for one purpose, then
forgotten; with a seed it is derived instead, for runs that are to be repeated and protect nobody.
"""

import hashlib
import math
import os
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

KEY_BYTES: Final = 32
BLOCK_BYTES: Final = 16
_SLACK = BLOCK_BYTES - 1  # what the cipher wants to have room for beyond its output
_WORD = np.dtype("<u8")
_ZEROS = memoryview(bytes(1 << 18))


def fresh_key() -> bytes:
    """A key that nobody else has, from the operating system."""
    return os.urandom(KEY_BYTES)


def derived_key(seed: int, *purpose: int | str) -> bytes:
    """The key of a seed for one purpose. Different purposes have unrelated keys."""
    return hashlib.sha256(repr(("quietgrad", seed, *purpose)).encode()).digest()


class CallKeys:
    """Makes a key whenever one is asked for, and keeps none.

    Args:
        purpose: keeps the keys of one source apart from those of others.
        seed: makes them reproducible: those of a step then depend on its number only.
    """

    def __init__(self, purpose: str, seed: int | None) -> None:
        self._purpose, self._seed = purpose, seed
        self._step = self._calls = 0

    def begin_step(self, step: int) -> None:
        """From here on the keys are those of this step."""
        self._step, self._calls = step, 0

    def next(self) -> bytes:
        """A key that was never given before, or once more the same if a step is repeated."""
        if self._seed is None:
            return fresh_key()
        self._calls += 1
        return derived_key(self._seed, self._purpose, self._step, self._calls)


class Words:
    """Reusable room for random 64-bit words.

    Args:
        capacity: the most words that are asked for at once.
    """

    def __init__(self, capacity: int) -> None:
        wanted = capacity * _WORD.itemsize
        # torch's memory begins where vector instructions load fastest, a bytearray's does not.
        self._bytes = torch.empty(wanted + _SLACK, dtype=torch.uint8, device="cpu").numpy()
        self._words = self._bytes[:wanted].view(_WORD)
        self._place: tuple[bytes, int] | None = None

    def fill(self, key: bytes, first_block: int, count: int) -> NDArray[np.uint64]:
        """So many words of the key's stream from a block on; valid until the next call."""
        if self._place != (key, first_block):  # to go on is cheaper than to begin
            counter = first_block.to_bytes(BLOCK_BYTES, "big")
            self._stream = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
        room, wanted = self._bytes.data, count * _WORD.itemsize
        for start in range(0, wanted, len(_ZEROS)):
            self._stream.update_into(_ZEROS[: wanted - start], room[start:])
        blocks, rest = divmod(wanted, BLOCK_BYTES)
        self._place = None if rest else (key, first_block + blocks)
        return self._words[:count]


def words(key: bytes, count: int) -> NDArray[np.uint64]:
    """The first random 64-bit words of a key's stream."""
    return Words(count).fill(key, 0, count)


_WORDS_OF_BLOCK = 8  # of 64 bits, in a block of ChaCha20
_CONSTANTS = b"expand 32-byte k"
_DOUBLE_ROUNDS = 10
_LOW_HALF = 2**32 - 1
_COUNTER = 12  # its place among the 16 words of a state
# Where the words of the columns are, and of the diagonals.
_QUARTERS = [
    tuple(4 * row + (i + turn * row) % 4 for row in range(4)) for turn in (0, 1) for i in range(4)
]


def chacha20_state(key: bytes, nonce: int, device: torch.device, first_block: int = 0) -> Tensor:
    """What a stream begins with, on its device: 16 words of int32.

    Args:
        key: 32 bytes.
        nonce: a number of 96 bits; each has a stream of its own, of 2^32 blocks.
        device: where the stream is computed. Nothing waits for the copy.
        first_block: where in the stream to begin.
    """
    words = _CONSTANTS + key + struct.pack("<I", first_block) + nonce.to_bytes(12, "little")
    state = torch.tensor(struct.unpack("<16i", words), dtype=torch.int32, device="cpu")
    return state.to(device, non_blocking=True)


def chacha20(
    state: Tensor, blocks: int, double_round: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """The first blocks of a stream: [16, blocks] words of int32, which wrap as unsigned ones do.

    Args:
        state: what `chacha20_state` gives.
        blocks: how many.
        double_round: another way to compute it than by rows.
    """
    words = state.view(-1, 1).repeat(1, blocks)
    words[_COUNTER].add_(torch.arange(blocks, dtype=torch.int32, device=state.device))
    begin = words
    for _ in range(_DOUBLE_ROUNDS):
        words = (double_round or double_round_by_row)(words)
    return words.add_(begin)


def double_round_by_row(words: Tensor) -> Tensor:
    """Columns, then diagonals, four at once: a quarter of the launches of word by word."""
    a, b, c, d = _quarter(*words.view(4, 4, -1).unbind())
    # Turned by its number, each row has the words of a diagonal in the same column.
    a, b, c, d = _quarter(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
    return torch.cat([a, b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)])


def double_round_by_word(words: Tensor) -> Tensor:
    """The same word by word: hundreds of launches, of which a compiler makes one."""
    done = list(words.unbind())
    for places in _QUARTERS:
        quarter = _quarter(*(done[place] for place in places))
        for place, word in zip(places, quarter, strict=True):
            done[place] = word
    return torch.stack(done)


def long_words(blocks: Tensor) -> Tensor:
    """Flat words of int64, each of two words of a block; none is taken twice."""
    low, high = blocks.chunk(2)
    return low.long().bitwise_and_(_LOW_HALF).add_(high, alpha=2**32).view(-1)


def _quarter(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The quarter round of RFC 8439, 2.1."""
    a = a + b
    d = _turned(d ^ a, 16)
    c = c + d
    b = _turned(b ^ c, 12)
    a = a + b
    d = _turned(d ^ a, 8)
    c = c + d
    b = _turned(b ^ c, 7)
    return a, b, c, d


def _turned(words: Tensor, bits: int) -> Tensor:
    """Each word rotated to the left; the mask takes off what a sign is shifted in as."""
    low = (words >> (32 - bits)).bitwise_and_((1 << bits) - 1)
    return low.add_(words, alpha=1 << bits)


class FastGaussians:
    """Reusable buffers in which random words become Gaussian variables of single precision.

    By the formula of Box and Muller (1958). This is numpy and not torch, whose logarithms, sines
    and cosines take two to three times as long.

    Args:
        capacity: the most values that are asked for at once; even.
    """

    def __init__(self, capacity: int) -> None:
        half = capacity // 2
        self._integers = torch.empty(half, dtype=torch.int32, device="cpu").numpy()
        rooms: NDArray[np.float32] = torch.empty(3, half, device="cpu").numpy()
        self._radius, self._angle, self._values = rooms

    def halves(self, words: NDArray[np.int32], std: float) -> Iterator[NDArray[np.float32]]:
        """As many values as words of int32 (an even number), half of them at a time.

        A half may be written to, and is valid until the next. It is to be used up at once, while it
        is in the cache. A radius is made of 31 bits, of which a float holds the lowest ones in the
        tail: it is cut off beyond 6.6 standard deviations, with a probability of 2^-33.
        """
        half, unit = len(words) // 2, 2.0**-31
        integers, radius = self._integers[:half], self._radius[:half]
        angle, values = self._angle[:half], self._values[:half]
        np.bitwise_and(words[:half], 2**31 - 1, out=integers)
        np.copyto(radius, integers, casting="unsafe")
        radius += 0.5
        radius *= unit
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        radius *= std  # the square of std may be beyond a float
        np.copyto(angle, words[half:], casting="unsafe")
        angle *= math.pi * unit
        for function in (np.cos, np.sin):
            function(angle, out=values)
            values *= radius
            yield values


_LAYERS: Final = 1 << 13
_OUTSIDE: Final = 3  # so many layers' worth of the area lies outside of all rectangles
_LOW_BITS: Final = 2**63 - 1


class Layers(NamedTuple):
    """The area under the right half of a bell curve, exp(-x^2/2), cut into parts.

    Most of it is in flat rectangles that lie on one another, all of the same area, each from the
    middle to where its upper edge meets the curve. The rest is the tail beyond the lowest
    rectangle, what lies between the end of each of the others and the curve, and what is above the
    highest.

    Args:
        widths: of the rectangles, by layer; 0 for the first, which stand for the rest.
        left: where the parts of the rest begin, the tail first.
        across: how wide the boxes are that they lie in; 0 for the tail.
        bottom: of the boxes.
        height: of the boxes.
        ends: areas of the boxes, added up, as shares of all. That of the tail is what it lies in
            if its end is drawn as `_rest_of` does.
    """

    widths: NDArray[np.float64]
    left: NDArray[np.float64]
    across: NDArray[np.float64]
    bottom: NDArray[np.float64]
    height: NDArray[np.float64]
    ends: NDArray[np.float64]


@cache
def layers() -> Layers:
    """The same at every call; to compute it takes some milliseconds."""
    area = math.sqrt(math.pi / 2) / _LAYERS
    widths, edges = [3.0], [0.0]  # the first only tells where to look for the next
    while len(widths) <= _LAYERS - _OUTSIDE:
        width = _next_width(widths[-1], edges[-1], area)
        widths.append(width)
        edges.append(edges[-1] + area / width)
    ends = np.array([*widths[1:], 0.0])
    levels = np.array([*edges, 1.0])
    across = np.concatenate([[0.0], -np.diff(ends)])
    height = np.diff(levels)
    boxes = across * height
    boxes[0] = levels[1] / ends[0]
    shares = np.cumsum(boxes)
    return Layers(
        np.array([0.0] * _OUTSIDE + widths[1:]),
        ends,
        across,
        levels[:-1],
        height,
        shares / shares[-1],
    )


def _next_width(width: float, edge: float, area: float) -> float:
    """Of the rectangle on this edge whose corner is on the curve, by Newton's method."""
    for _ in range(100):
        curve = math.exp(-0.5 * width * width)
        step = (width * (curve - edge) - area) / (curve - edge - width * width * curve)
        width -= step
        if abs(step) < 1e-12 * width:  # the next would be far below the last digit
            break
    return width


def _rest_of(words: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gaussian variables that lie outside of all rectangles, of words ``[4, n]``.

    There are fewer than n: what is above the curve is dropped. A place is made of two words, so
    that the tail, whose end is at 13.9 standard deviations, is finely spaced everywhere.
    """
    cut, unit = layers(), 2.0**-63
    which, place, further, level = (words & _LOW_BITS).astype(np.float64) * unit
    place += (further + 0.5 * unit) * unit
    part = np.searchsorted(cut.ends[:-1], which, side="right")
    x = cut.left[part] + cut.across[part] * place
    y = cut.bottom[part] + cut.height[part] * level
    is_kept = y < np.exp(-0.5 * x * x)
    tail = np.flatnonzero(part == 0)
    start = cut.left[0]
    x[tail] = np.sqrt(start * start - 2 * np.log(place[tail]))  # Marsaglia 1964
    is_kept[tail] = level[tail] * x[tail] < start
    values: NDArray[np.float64] = np.where(words[0] < 0, -x, x)[is_kept]
    return values


class Rest:
    """The values of a key that lie outside of all rectangles, one after the other.

    Args:
        key: whose stream they are made of.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.begin(0, 0)

    def begin(self, first_block: int, values: int) -> None:
        """Go to a place in the stream; nothing else may use what comes after it.

        About so many values of any kind are drawn from there on.
        """
        self._block = first_block
        # Half of what is tried is kept. More at once take less time for each.
        self._tries = 2 * min(32 + values * _OUTSIDE // _LAYERS, 2048)
        self._words = Words(4 * self._tries)
        self._values: NDArray[np.float64] = np.empty(0)

    def take(self, count: int) -> NDArray[np.float64]:
        """The next values."""
        while len(self._values) < count:
            words = self._words.fill(self._key, self._block, 4 * self._tries)
            self._block += 4 * self._tries * _WORD.itemsize // BLOCK_BYTES
            more = _rest_of(words.view("<i8").reshape(4, -1))
            self._values = np.concatenate([self._values, more])
        taken, self._values = self._values[:count], self._values[count:]
        return taken


class Gaussians:
    """Reusable buffers in which each random word becomes a Gaussian variable of double precision.

    The last 13 bits of a word choose a layer, and the whole word as a number is a place in its
    rectangle (Marsaglia and Tsang 2000, The Ziggurat Method for Generating Random Variables).
    Nothing is rejected there: what lies outside of all rectangles has 3 of the 8192 layers.

    This is numpy and not torch, whose operations take longer for so few values.

    Args:
        capacity: the most values that are asked for at once.
        std: the standard deviation.
        rest: gives so many standard Gaussian variables that lie outside of all rectangles.
    """

    def __init__(
        self, capacity: int, std: float, rest: Callable[[int], NDArray[np.float64]]
    ) -> None:
        self._std, self._rest = std, rest
        self._widths = layers().widths * (std * 2.0**-63)
        rooms: NDArray[np.float64] = torch.empty(
            2, capacity, dtype=torch.float64, device="cpu"
        ).numpy()
        self._values, self._sums = rooms
        # Numbers of layers are used up before there are values.
        self._chosen, self._is_outside = self._values.view(np.int64), np.empty(capacity, bool)

    def added_to(self, total: NDArray[Any], words: NDArray[np.int64]) -> NDArray[np.float64]:
        """The total plus a value of each word; valid until the next call, and may be written to."""
        count = len(total)
        chosen, values = self._chosen[:count], self._values[:count]
        sums: NDArray[np.float64] = self._sums[:count]
        np.bitwise_and(words, _LAYERS - 1, out=chosen)
        outside = np.flatnonzero(np.less(chosen, _OUTSIDE, out=self._is_outside[:count]))
        self._widths.take(chosen, out=sums, mode="wrap")  # all are in range; "raise" would copy
        np.copyto(values, words, casting="unsafe")
        values *= sums
        values[outside] = self._rest(len(outside)) * self._std
        np.copyto(sums, total)
        sums += values
        return sums


# Below this an integer has too few digits: the circles that radii lie on would be seen apart.
_FEW_DIGITS = 2**30
# Further words for radii with few digits, without waiting to see how many there are: of the two
# million radii of a chunk, more than 16 want one with a probability below 2^-250.
_SPARE = 16


def device_gaussians(words: Tensor, count: int) -> Tensor:
    """Standard Gaussian variables of so many words, and of the 16 after them.

    By the formula of Box and Muller (1958), where the words are, and nothing waits. A radius is
    made of 63 bits, and the farthest ones, about one in 2^33, of 63 more, so that the tail is as
    finely spaced as the rest. What is cut off, beyond 13 standard deviations, has a probability of
    about 2^-126.
    """
    half, unit = count // 2, 2.0**-63
    integers = words[:half] & _LOW_BITS
    smallest, places = integers.topk(min(_SPARE, half), largest=False)
    further = (words[count:][: len(smallest)] & _LOW_BITS).double().add(0.5).mul(unit)
    refined = smallest + torch.where(smallest < _FEW_DIGITS, further, 0.5)
    radius = integers.double().add(0.5).scatter(0, places, refined)
    radius = radius.mul(unit).log().mul(-2.0).sqrt()
    angle = words[half:count].double().mul(math.pi * unit)
    return torch.cat([angle.cos() * radius, angle.sin() * radius])


class Compiled:
    """A function that is compiled when it is first called; if that fails, another one for good.

    Args:
        function: what to compile.
        otherwise: gives the same without a compiler.
    """

    def __init__(
        self, function: Callable[..., Tensor], otherwise: Callable[..., Tensor] | None = None
    ) -> None:
        self._function, self._otherwise = function, otherwise or function
        self._is_new = True

    def __call__(self, *arguments: Tensor | int) -> Tensor:
        """What the function gives."""
        try:
            if self._is_new:
                self._function, self._is_new = torch.compile(self._function, dynamic=False), False
            return self._function(*arguments)
        except Exception:  # compilers fail in many ways, and noise must not depend on one
            self._function, self._is_new = self._otherwise, False
            return self._otherwise(*arguments)


# A round at a time: to compile all of them as one takes ten times as long, more than a minute.
_COMPILED_ROUND = Compiled(double_round_by_word, double_round_by_row)
_COMPILED_GAUSSIANS = Compiled(device_gaussians)


def drawn_gaussians(state: Tensor, count: int, is_compiled: bool = False) -> Tensor:
    """Standard Gaussian variables of a stream, an even number, where its state is."""
    blocks = -(-(count + _SPARE) // _WORDS_OF_BLOCK)
    if is_compiled:
        words = chacha20(state, blocks, _COMPILED_ROUND)
        return _COMPILED_GAUSSIANS(long_words(words), count)
    return device_gaussians(long_words(chacha20(state, blocks)), count)
