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
from typing import Final

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
        self._bytes = bytearray(capacity * _WORD.itemsize + _SLACK)
        self._words = np.frombuffer(self._bytes, dtype=_WORD, count=capacity)
        self._place: tuple[bytes, int] | None = None

    def fill(self, key: bytes, first_block: int, count: int) -> NDArray[np.uint64]:
        """So many words of the key's stream from a block on; valid until the next call."""
        if self._place != (key, first_block):  # to go on is cheaper than to begin
            counter = first_block.to_bytes(BLOCK_BYTES, "big")
            self._stream = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
        room, wanted = memoryview(self._bytes), count * _WORD.itemsize
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
    state = torch.tensor(struct.unpack("<16i", words), dtype=torch.int32)
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


# Below this an integer has too few digits: the circles that radii lie on would be seen apart.
_FEW_DIGITS = 2**30


class Gaussians:
    """Reusable buffers in which random words become Gaussian variables (Box and Muller 1958).

    Args:
        capacity: the most values that are asked for at once; even.
        bits: 63, for values of double precision from words of int64, or 31, for values of single
            precision from words of int32.
    """

    def __init__(self, capacity: int, bits: int = 63) -> None:
        half, self._bits = capacity // 2, bits
        words, floats = {63: (torch.int64, torch.float64), 31: (torch.int32, torch.float32)}[bits]
        self._integers = torch.empty(half, dtype=words)
        self._radius, self._angle, self._values = torch.empty(3, half, dtype=floats)

    def of(
        self, words: Tensor, std: float, more_words: Callable[[int], Tensor] | None = None
    ) -> Tensor:
        """As many values as words: both halves, to keep."""
        return torch.cat([half.clone() for half in self.halves(words, std, more_words)])

    def halves(
        self, words: Tensor, std: float, more_words: Callable[[int], Tensor] | None = None
    ) -> Iterator[Tensor]:
        """As many values as words (an even number), half of them at a time.

        A half may be written to, and is valid until the next. It is to be used up at once, while it
        is in the cache.

        A radius is made of 63 bits, and the farthest ones, about one in 2^33, of 63 more, so that
        the tail is as finely spaced as the rest. What is cut off, beyond 13 standard deviations,
        has a probability of about 2^-126. With 31 bits, of which a float holds the lowest ones in
        the tail, it is cut off beyond 6.6 standard deviations, with a probability of 2^-33.

        Args:
            words: random bits.
            std: the standard deviation.
            more_words: gives so many further words, where radii have 63 bits.
        """
        half, unit = len(words) // 2, 2.0**-self._bits
        integers, radius = self._integers[:half], self._radius[:half]
        angle, values = self._angle[:half], self._values[:half]
        low_bits = 2**self._bits - 1
        torch.bitwise_and(words[:half], low_bits, out=integers)
        radius.copy_(integers).add_(0.5)
        if more_words is not None and half and int(integers.min()) < _FEW_DIGITS:
            few = (integers < _FEW_DIGITS).nonzero().flatten()
            digits = torch.bitwise_and(more_words(len(few)), low_bits).double()
            radius[few] = integers[few] + (digits + 0.5) * unit
        radius.mul_(unit).log_()
        if radius.dtype == torch.float64:
            radius.mul_(-2.0 * std**2).sqrt_()
        else:
            radius.mul_(-2.0).sqrt_().mul_(std)  # the square of std may be beyond a float
        angle.copy_(words[half:]).mul_(math.pi * unit)
        for function in (torch.cos, torch.sin):
            yield function(angle, out=values).mul_(radius)


# Further words for radii with few digits, without waiting to see how many there are: of the two
# million radii of a chunk, more than 16 want one with a probability below 2^-250.
_SPARE = 16


def device_gaussians(words: Tensor, count: int) -> Tensor:
    """Standard Gaussian variables of so many words, and of the 16 after them.

    As `Gaussians` makes them, with 63 bits, but where the words are, and nothing waits.
    """
    half, unit, low_bits = count // 2, 2.0**-63, 2**63 - 1
    integers = words[:half] & low_bits
    smallest, places = integers.topk(min(_SPARE, half), largest=False)
    further = (words[count:][: len(smallest)] & low_bits).double().add(0.5).mul(unit)
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
