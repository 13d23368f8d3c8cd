"""The layers, the tails, the grid and the bits of cryptographic noise."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import special, stats

from quietgrad import keystream
from quietgrad.keystream import Gaussians, Rest, layers
from quietgrad.noise import SecureNoise, grid_size

from .statistics import SURE, two_sided

LAYERS, OUTSIDE = 8192, 3
AREA = math.sqrt(math.pi / 2) / LAYERS
ONES = 2**63 - 1


def curve(x):
    return np.exp(-0.5 * x * x)


def area_under_the_curve(x):
    return math.sqrt(math.pi / 2) * special.erf(x / math.sqrt(2))


def widths():
    return layers().widths[OUTSIDE:]


def test_rectangles_of_one_area_lie_on_one_another_with_their_corners_on_the_curve():
    assert len(layers().widths) == LAYERS
    assert (layers().widths[:OUTSIDE] == 0).all()
    assert (np.diff(widths()) < 0).all()
    top = np.cumsum(AREA / widths())
    np.testing.assert_allclose(top, curve(widths()), rtol=0, atol=1e-15)


def test_boxes_hold_what_lies_outside_of_the_rectangles():
    cut = layers()
    right = cut.left + cut.across
    np.testing.assert_allclose(cut.left, [*widths(), 0.0])
    np.testing.assert_allclose(right[1:], widths())
    assert (curve(cut.left) <= cut.bottom + cut.height + 1e-15).all()
    assert (curve(right[1:]) >= cut.bottom[1:] - 1e-15).all()
    # Between the end of one rectangle and that of the one below, or beyond, or above them all.
    under = np.diff(area_under_the_curve(np.array([0.0, *widths()[::-1], np.inf])))[::-1]
    outside = under - np.array([0.0, *np.diff(-widths()), widths()[-1]]) * cut.bottom
    assert outside.sum() == pytest.approx(OUTSIDE * AREA, rel=1e-10)
    boxes = np.array([curve(widths()[0]) / widths()[0], *(cut.across * cut.height)[1:]])
    assert (outside < boxes).all()
    np.testing.assert_allclose(np.diff([0, *cut.ends]), boxes / boxes.sum(), rtol=1e-8)


def outside_distribution(x):
    """How likely a value outside of the rectangles is nearer than this, without its sign."""
    ends = widths()[::-1]
    # Under the rectangles, up to x: all of those that end before it, and a part of the others.
    done = np.searchsorted(ends, x)
    level = np.append(np.cumsum(AREA / widths())[::-1], 0.0)[done]
    return (area_under_the_curve(x) - done * AREA - level * x) / (OUTSIDE * AREA)


def outside(count, seed=0):
    rest = Rest(keystream.derived_key(seed, "test"))
    rest.begin(0, LAYERS * count)
    return rest.take(count)


def test_what_lies_outside_is_drawn_as_it_is_distributed():
    values = outside(300_000)
    assert stats.kstest(np.abs(values), outside_distribution).pvalue > SURE
    assert two_sided(np.sign(values).mean() * math.sqrt(len(values))) > SURE
    beyond = int((np.abs(values) > widths()[0]).sum())
    share = 2 * stats.norm.sf(widths()[0]) * LAYERS / OUTSIDE
    assert stats.binomtest(beyond, len(values), share).pvalue > SURE
    tail = np.abs(values)[np.abs(values) > widths()[0]]
    cut = stats.norm.sf(widths()[0])
    assert stats.kstest(tail, lambda x: 1 - stats.norm.sf(x) / cut).pvalue > SURE


def test_another_distribution_outside_would_be_found():
    values = np.abs(outside(300_000))
    for wrong in (values * 1.02, np.sort(values)[: -len(values) // 100]):
        assert stats.kstest(wrong, outside_distribution).pvalue < SURE


def test_what_lies_outside_goes_on_and_does_not_repeat():
    rest = Rest(bytes(32))
    parts = [rest.take(count) for count in (0, 1, 5, 1000, 0, 70)]
    together = np.concatenate(parts)
    assert len(together) == len(set(together.tolist())) == 1076
    again = Rest(bytes(32))
    assert np.array_equal(again.take(1076), together)


def tried(which, place, further=0, level=0):
    return keystream._rest_of(np.array([[which], [place], [further], [level]])).tolist()


def test_the_farthest_value_is_finite_and_known():
    farthest = math.sqrt(widths()[0] ** 2 + 2 * 127 * math.log(2))
    assert tried(0, 0) == pytest.approx([farthest])
    assert tried(-(2**63), 0) == pytest.approx([-farthest])  # its highest bit is the sign
    assert 13.9 < farthest < 14.1


def test_the_tail_begins_where_the_rectangles_end():
    assert tried(0, ONES, ONES) == pytest.approx([widths()[0]])


@pytest.mark.parametrize("place", [0, 1, 2, 1000, 2**30 - 1, 2**50])
def test_the_farthest_values_are_as_finely_spaced_as_others(place):
    """With 63 bits alone the last places are a tenth of a deviation apart, and tell."""
    (near,), (far,) = (tried(0, place, further) for further in (2**62, 2**62 - 2**34))
    expected = widths()[0] ** 2 - 2 * math.log((place + 0.5) / 2.0**63)
    assert near == pytest.approx(math.sqrt(expected), rel=1e-14)
    assert 0 <= far - near < 1e-9
    assert far > near or place > 1000  # from there on, a double cannot tell them apart


def test_what_is_above_the_curve_is_dropped():
    assert tried(0, 1, level=2**61)  # a quarter of the tail's envelope, far out
    assert not tried(0, 1, level=2**62)
    # The highest box ends at the top of the curve, and in its right half the curve is lower.
    assert tried(ONES, 0, level=ONES // 2)[0] == pytest.approx(0, abs=1e-15)
    assert tried(ONES, ONES // 2, level=ONES // 2)[0] == pytest.approx(widths()[-1] / 2)
    assert not tried(ONES, ONES, level=1 << 40)


def values_of(words, std=1.0, rest=None):
    def none(count):
        assert count == 0
        return np.empty(0)

    words = np.array(words, dtype=np.int64)
    return Gaussians(len(words), std, rest or none).added_to(np.zeros(len(words)), words)


@pytest.mark.parametrize("std", [1.0, 1e-20, 250.0])
def test_a_word_is_a_place_in_the_rectangle_that_its_last_bits_choose(std):
    words = np.random.default_rng(0).integers(-(2**63), 2**63, 100_000)
    words = words[words % LAYERS >= OUTSIDE]
    expected = std * words / 2.0**63 * layers().widths[words % LAYERS]
    np.testing.assert_allclose(values_of(words, std), expected, rtol=1e-14)


def test_the_farthest_and_the_nearest_in_a_rectangle():
    lowest, highest = OUTSIDE, LAYERS - 1
    words = [-(2**63) + lowest, 2**63 - LAYERS + lowest, -(2**63) + highest, 2**63 - 1, highest]
    first, last = widths()[0], widths()[-1]
    assert values_of(words).tolist() == pytest.approx([-first, first, -last, last, 0.0], abs=1e-12)


def test_words_of_the_first_layers_stand_for_what_lies_outside():
    words = [5, 0, LAYERS + 1, 7, -LAYERS + 2, 3]
    values = values_of(words, 2.0, lambda count: np.array([10.0, 20.0, 30.0])[:count])
    assert values[[1, 2, 4]].tolist() == [20.0, 40.0, 60.0]
    assert (np.abs(values[[0, 3, 5]]) < 1e-12).all()


@pytest.mark.parametrize("bins", [64, 4096])
def test_cells_of_the_same_probability_are_hit_equally_often(bins):
    """Finer than a grid of layers would be seen: every layer ends in some cell."""
    (values,) = SecureNoise(seed=2).add([torch.zeros(1 << 22, dtype=torch.float64)], 1.0)
    # Spread over its cell of the grid, so that its edges do not matter.
    spread = values.numpy() + (np.random.default_rng(0).random(len(values)) - 0.5) * 2.0**-12
    counts = np.bincount((special.ndtr(spread) * bins).astype(int), minlength=bins)
    assert stats.chisquare(counts).pvalue > SURE


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


def test_floats_get_the_noise_of_doubles_rounded_once_more():
    sizes = [300_001, 7]
    single = torch.cat(SecureNoise(seed=4).add([torch.zeros(size) for size in sizes], 1.5))
    doubles = [torch.zeros(size, dtype=torch.float64) for size in sizes]
    double = torch.cat(SecureNoise(seed=4).add(doubles, 1.5))
    steps = (single.double() - double) / grid_size(1.5, 12)
    assert float(steps.abs().max()) <= 1
    assert float((steps != 0).double().mean()) < 2**-8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_not_finite_stays_so(dtype):
    odd = [math.inf, -math.inf, math.nan]
    (noisy,) = SecureNoise().add([torch.tensor([*odd, 0.0], dtype=dtype).repeat(5000)], 1.0)
    noisy = noisy.view(-1, 4)
    assert noisy[:, 0].eq(math.inf).all()
    assert noisy[:, 1].eq(-math.inf).all()
    assert noisy[:, 2].isnan().all()
    assert noisy[:, 3].isfinite().all()


def test_no_part_of_the_stream_is_used_twice(monkeypatch):
    """One key, and for each entry words of its own: also for those outside of the rectangles."""
    blocks = []
    fill = keystream.Words.fill

    def watched(self, key, first_block, count):
        blocks.append((first_block, first_block + math.ceil(count / 2), key))
        return fill(self, key, first_block, count)

    monkeypatch.setattr(keystream.Words, "fill", watched)
    SecureNoise().add([torch.zeros(1_000_001), torch.zeros(5)], 1.0)
    assert len({key for _, _, key in blocks}) == 1
    assert sum(end - start for start, end, _ in blocks if start < 1 << 64) == 500_003
    assert any(start >= 1 << 64 for start, _, _ in blocks)
    blocks.sort()
    assert all(end <= start for (_, end, _), (start, _, _) in pairwise(blocks))
