"""Random bits that cannot be predicted: AES-256 in counter mode (NIST SP 800-38A).

The cipher is OpenSSL's, through the ``cryptography`` package. A key comes from the operating
system and is used for one purpose, then forgotten; with a seed it is derived instead, for runs that
are to be repeated and protect nobody.
"""

import hashlib
import os
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

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
