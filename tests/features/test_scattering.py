"""Scattering: what wavelets are known for, and features as Kymatio 0.3.0 computes them."""

import pytest
import torch

from quietgrad.features import Scattering, lowpass, morlet


def images(count=3, channels=1, size=16):
    return torch.rand(count, channels, size, size, generator=torch.Generator().manual_seed(0))


def test_shapes_and_channels():
    scattering = Scattering((16, 16))
    assert scattering.channels == 81
    assert scattering(images(channels=3)).shape == (3, 243, 4, 4)
    assert scattering(images(0)).shape == (0, 81, 4, 4)
    assert Scattering((16, 16), scales=1, angles=4).channels == 5


def test_wavelets_have_no_mean_and_the_average_keeps_it():
    for scale in (0, 1):
        wavelet = morlet((32, 32), scale, 3, 8)
        assert abs(wavelet[0, 0]) < 1e-9
        assert wavelet.abs().max() > 0.5
    assert lowpass((32, 32), 2)[0, 0] == pytest.approx(1, abs=1e-3)


def test_a_constant_image_has_its_average_and_nothing_else():
    features = Scattering((16, 16))(torch.full((1, 1, 16, 16), 0.7))
    torch.testing.assert_close(features[:, 0], torch.full((1, 4, 4), 0.7), rtol=1e-3, atol=1e-4)
    assert features[:, 1:].abs().max() < 1e-4


def test_it_is_linear_in_brightness_and_samples_are_apart():
    scattering = Scattering((16, 16))
    x = images(5)
    features = scattering(x)
    torch.testing.assert_close(scattering(3 * x), 3 * features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(scattering(x[2:3]), features[2:3], rtol=1e-5, atol=1e-6)


def test_small_shifts_change_little_beside_the_image_itself():
    scattering = Scattering((32, 32))
    x = images(4, size=33)
    one, other = x[..., :32, :32], x[..., :32, 1:]
    before, after = scattering(one), scattering(other)
    moved = (before - after).norm() / before.norm()
    assert moved < 0.3 * (one - other).norm() / one.norm()


@pytest.mark.parametrize("size", [(15, 16), (2, 2)])
def test_sizes_that_do_not_divide(size):
    with pytest.raises(ValueError, match="multiples of 4"):
        Scattering(size)


def test_images_of_another_size():
    with pytest.raises(ValueError, match="expected"):
        Scattering((16, 16))(images(size=20))


def test_a_square_has_one_side():
    one, other = Scattering(16), Scattering((16, 16))
    assert torch.equal(one(images()), other(images()))
    assert repr(one) == repr(other) == "Scattering((16, 16), scales=2, angles=8)"
    with pytest.raises(ValueError, match="multiples of 4"):
        Scattering(15)


def test_bytes_are_refused():
    with pytest.raises(TypeError, match=r"torch.uint8.*255"):
        Scattering(16)((255 * images()).byte())
