"""The grid, the tails and the bits of cryptographic noise."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from quietgrad import noise as sources
from quietgrad.noise import Gaussians, SecureNoise, grid_size


def no_more(count):
    raise AssertionError(f"{count} further words, though all radii have digits enough")


def gaussians(words, std=1.0, more=no_more):
    bits = torch.tensor(words, dtype=torch.uint64).view(torch.int64)
    return Gaussians(len(words)).of(bits, std, more).tolist()


def further(*words):
    def more(count):
        assert count == len(words)
        return torch.tensor(words, dtype=torch.int64)

    return more


def radius_of(u):
    return math.sqrt(-2 * math.log(u))


def test_the_farthest_value_is_finite_and_known():
    radius, angle = 0, 0  # no bits at all, along the first axis
    farthest = math.sqrt(2 * 127 * math.log(2))
    assert gaussians([radius, angle], more=further(0)) == pytest.approx([farthest, 0.0])
    assert 13.2 < farthest < 13.3


@pytest.mark.parametrize("top", [0, 1 << 63])
def test_the_nearest_value_is_zero_and_not_nan(top):
    ones = 2**63 - 1
    assert gaussians([top | ones, 12345]) == [0.0, 0.0]


@pytest.mark.parametrize("word", [0, 1, 2, 1000, 2**30 - 1])
def test_the_farthest_radii_are_as_finely_spaced_as_others(word):
    """With 63 bits alone the last circles are a tenth of a deviation apart, and tell."""
    near, far = (gaussians([word, 0], more=further(more))[0] for more in (2**62, 2**62 - 2**34))
    assert near == pytest.approx(radius_of((word + 0.5) / 2.0**63), rel=1e-14)
    assert 0 <= far - near < 1e-9
    assert far > near or word > 1000  # from there on, a double cannot tell them apart


def test_only_the_farthest_take_further_words():
    assert gaussians([2**30, 0])[0] == pytest.approx(radius_of((2**30 + 0.5) / 2.0**63))
    words = [5, 2**40, 7, 2**50, 0, 0, 0, 0]
    values = gaussians(words, more=further(2**62, 2**61))
    expected = [5.5, 2**40 + 0.5, 7.25, 2**50 + 0.5]
    assert values[:4] == pytest.approx([radius_of(each / 2.0**63) for each in expected])


def test_against_the_formula_of_box_and_muller():
    words = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    radius_bits, angle_bits = words[:500] & np.uint64(2**63 - 1), words[500:].view(np.int64)
    u = (radius_bits.astype(float) + 0.5) / 2.0**63
    radius, angle = np.sqrt(-2 * np.log(u)), angle_bits.astype(float) / 2.0**63 * np.pi
    expected = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    np.testing.assert_allclose(gaussians(words.tolist()), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("std", [1e-6, 0.3, 1.0, 3.7, 1e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_releases_lie_on_a_grid_that_depends_on_the_scale_alone(std, dtype):
    grid = grid_size(std, 12)
    assert 2**-13 < grid / std <= 2**-12
    assert math.frexp(grid)[0] == 0.5  # a power of two
    for seed in range(3):
        totals = torch.randn(1000, dtype=dtype, generator=torch.Generator().manual_seed(seed)) * std
        (noisy,) = SecureNoise().add([totals], std)
        steps = noisy.double() / grid
        assert torch.equal(steps, steps.round())


def test_the_bits_below_the_grid_tell_nothing_about_the_total():
    """Without a grid, the last bits of the sum of a total and a double differ by the total."""
    std = 1.0
    for total in (0.0, 1 / 3):
        (noisy,) = SecureNoise().add([torch.full((1 << 18,), total, dtype=torch.float64)], std)
        steps = (noisy / grid_size(std, 12)).long()
        counts = np.bincount((steps % 16).numpy(), minlength=16)
        assert stats.chisquare(counts).pvalue > 1e-7


@pytest.mark.parametrize("large", [1e3, 1e6])
def test_rounding_is_to_the_nearest(large):
    """The mean of many releases of one total is the total: nothing is cut off one-sidedly."""
    total = torch.full((1 << 20,), large + 0.123456, dtype=torch.float64)
    (noisy,) = SecureNoise(seed=1).add([total.clone()], 0.5)
    z = (noisy - total).mean().item() / 0.5 * math.sqrt(len(total))
    assert 2 * stats.norm.sf(abs(z)) > 1e-7


def test_further_words_are_of_another_part_of_the_stream():
    key = bytes(32)
    chunks = np.concatenate([sources.Words(64).fill(key, i * 131072, 64) for i in range(8)])
    other = np.concatenate([sources._further_words(key, i, 8).numpy() for i in range(8)])
    assert not set(other.view(np.uint64).tolist()) & set(chunks.tolist())
    assert len(set(other.tolist())) == 64


def test_a_chunk_has_its_own_part_of_the_stream(monkeypatch):
    """Chunks of another size take the same words for the first of them, and no word twice."""
    blocks = []
    fill = sources.Words.fill

    def watched(self, key, first_block, count):
        blocks.append((key, first_block, math.ceil(count / 2)))
        return fill(self, key, first_block, count)

    monkeypatch.setattr(sources.Words, "fill", watched)
    SecureNoise().add([torch.zeros(1_000_001), torch.zeros(5)], 1.0)
    assert len({key for key, _, _ in blocks}) == 1
    ends = [first + count for _, first, count in blocks]
    starts = [first for _, first, _ in blocks]
    assert len(blocks) == 4
    assert all(start >= end for end, start in zip(ends, starts[1:], strict=False))
