"""The stream on devices is ChaCha20 as published, whichever way it is computed."""

import struct

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from tests.devices import pretend

from quietgrad.keystream import (
    chacha20,
    chacha20_state,
    double_round_by_row,
    double_round_by_word,
    fresh_key,
    long_words,
)

CPU = torch.device("cpu")
WAYS = pytest.mark.parametrize(
    "way", [double_round_by_row, double_round_by_word], ids=lambda way: way.__name__
)
COUNTING_KEY = bytes(range(32))
# RFC 8439: the key, the nonce, the block's number and its bytes.
KNOWN = {
    "2.3.2": (
        COUNTING_KEY,
        "000000090000004a00000000",
        1,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    "A.1, vector 1": (
        bytes(32),
        "00" * 12,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    "A.1, vector 2": (
        bytes(32),
        "00" * 12,
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
}


def as_bytes(blocks):
    """In the order of the RFC: a block after the other."""
    words = blocks.cpu().t().flatten().tolist()
    return struct.pack(f"<{len(words)}i", *words)


def of_openssl(key, nonce, first_block, blocks):
    algorithm = algorithms.ChaCha20(key, struct.pack("<I", first_block) + nonce)
    return Cipher(algorithm, None).encryptor().update(bytes(64 * blocks))


@WAYS
@pytest.mark.parametrize("name", KNOWN)
def test_known_answers(way, name):
    key, nonce, block, expected = KNOWN[name]
    number = int.from_bytes(bytes.fromhex(nonce), "little")
    assert as_bytes(chacha20(chacha20_state(key, number, CPU, block), 1, way)).hex() == expected


@WAYS
@pytest.mark.parametrize("device", ["cpu", "pretend"])
@pytest.mark.parametrize("first_block", [0, 7, 2**31 - 3, 2**32 - 40])
def test_it_is_the_stream_of_openssl(way, device, first_block):
    pretend.register()
    for nonce in (0, 5, 2**96 - 2**40):
        key = fresh_key()
        state = chacha20_state(key, nonce, torch.device(device), first_block)
        expected = of_openssl(key, nonce.to_bytes(12, "little"), first_block, 40)
        assert as_bytes(chacha20(state, 40, way)) == expected


def test_long_words_take_every_bit_once():
    blocks = chacha20(chacha20_state(fresh_key(), 0, CPU), 33)
    words = long_words(blocks)
    assert words.shape == (8 * 33,)
    halves = [
        half for word in words.tolist() for half in struct.unpack("<2i", struct.pack("<q", word))
    ]
    assert sorted(halves) == sorted(blocks.flatten().tolist())


def test_a_stream_is_made_without_waiting():
    pretend.register()
    with pretend.counting() as counts:
        long_words(chacha20(chacha20_state(fresh_key(), 0, torch.device("pretend")), 40))
    assert counts.sync_count == 0, counts.by_line(counts.syncs)
    assert counts.launch_count < 600
