"""The stream is AES-256-CTR as published, and keys are not used twice."""

import numpy as np
import pytest
from scipy import stats

from quietgrad.keystream import Words, derived_key, fresh_key, words

# NIST SP 800-38A, F.5.5: CTR-AES256.Encrypt. The keystream is the "output block" of each segment.
NIST_KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_COUNTER = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
NIST_PLAINTEXT = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
NIST_CIPHERTEXT = bytes.fromhex(
    "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
    "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
)


def test_known_answer():
    stream = Words(8).fill(NIST_KEY, NIST_COUNTER, 8).tobytes()
    assert bytes(a ^ b for a, b in zip(stream, NIST_PLAINTEXT, strict=True)) == NIST_CIPHERTEXT


def test_the_first_block_of_a_zero_key():
    """AES-256 of a zero block under a zero key (NIST's known-answer tests, KeySbox and others)."""
    assert words(bytes(32), 2).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_a_stream_can_be_read_from_any_block():
    key = fresh_key()
    whole = words(key, 1 << 17)  # several pieces of the zeros that are encrypted
    for block in (0, 1, 777, 40_000):
        part = Words(100).fill(key, block, 100)
        assert np.array_equal(part, whole[2 * block : 2 * block + 100])


def test_going_on_reads_the_same_stream_as_beginning_anew():
    key, other = fresh_key(), fresh_key()
    whole, room = words(key, 1000), Words(300)
    assert np.array_equal(room.fill(key, 0, 200), whole[:200])
    assert np.array_equal(room.fill(key, 100, 300), whole[200:500])  # goes on
    assert np.array_equal(room.fill(key, 0, 201), whole[:201])  # ends in the middle of a block
    assert np.array_equal(room.fill(key, 100, 100), whole[200:300])
    assert np.array_equal(room.fill(other, 150, 100), words(other, 400)[300:])
    assert np.array_equal(room.fill(key, 200, 100), whole[400:500])


@pytest.mark.parametrize("count", [0, 1, 2, 3, 32767, 32768, 32769, 100_001])
def test_any_number_of_words(count):
    drawn = words(fresh_key(), count)
    assert drawn.shape == (count,)
    assert len(np.unique(drawn)) == count


def test_bits_are_fair_and_independent():
    bits = np.unpackbits(words(derived_key(0, "bits"), 1 << 15).view(np.uint8)).reshape(-1, 64)
    ones = bits.sum(axis=0)
    assert stats.chisquare(np.stack([ones, len(bits) - ones]), axis=0).pvalue.min() > 1e-8
    flips = (bits.ravel()[1:] != bits.ravel()[:-1]).sum()
    assert stats.binomtest(int(flips), bits.size - 1, 0.5).pvalue > 1e-8


def test_fresh_keys_differ():
    assert len({fresh_key() for _ in range(1000)}) == 1000


def test_derived_keys_differ_by_every_part_of_their_purpose():
    purposes = [(1,), (1, 0), (10,), (1, "0"), ("1",), ("pass", 1), ("pass", 11), ("pass", 1, 1)]
    keys = {derived_key(seed, *purpose) for seed in (0, 1, 2**64) for purpose in purposes}
    assert len(keys) == 3 * len(purposes)
    assert derived_key(5, "pass", 1) == derived_key(5, "pass", 1)
