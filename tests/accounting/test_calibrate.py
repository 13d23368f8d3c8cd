import time

import pytest

from quietgrad.accounting import calibrate, epsilon

SETTINGS = [
    (3.0, 1e-4, 0.178, 180),
    (3.0, 1e-5, 0.04, 1000),
    (1.0, 1e-5, 256 / 60000, 14040),
    (8.0, 1e-5, 1e-3, 2400),
    (0.1, 1e-6, 0.001, 100_000),
    (2.0, 1e-5, 1.0, 100),
    (50.0, 1e-5, 0.01, 1000),
]


@pytest.mark.parametrize(("target", "delta", "rate", "steps"), SETTINGS)
def test_what_is_spent_stays_within_the_target_and_close_to_it(target, delta, rate, steps):
    sigma = calibrate(epsilon=target, delta=delta, sample_rate=rate, steps=steps)
    spent = epsilon(noise_multiplier=sigma, sample_rate=rate, steps=steps, delta=delta)
    assert target - min(0.01, 0.001 * target) <= spent <= target


def test_less_noise_would_not_do():
    target, delta, rate, steps = SETTINGS[0]
    sigma = calibrate(epsilon=target, delta=delta, sample_rate=rate, steps=steps)
    spent = epsilon(noise_multiplier=0.99 * sigma, sample_rate=rate, steps=steps, delta=delta)
    assert spent > target


def test_an_epsilon_next_to_zero_is_not_exceeded():
    sigma = calibrate(epsilon=1e-7, delta=1e-5, sample_rate=0.01, steps=100)
    assert epsilon(noise_multiplier=sigma, sample_rate=0.01, steps=100, delta=1e-5) <= 1e-7


def test_a_typical_setting_takes_seconds_at_most():
    started = time.perf_counter()
    calibrate(epsilon=3.0, delta=1e-5, sample_rate=0.04, steps=1000)
    # About half a second on an idle core; the margin is for a loaded one.
    assert time.perf_counter() - started < 10


def test_too_large_a_target_says_what_little_noise_spends():
    with pytest.raises(ValueError, match=r"epsilon=1e\+09 cannot.*spends only .*smaller epsilon"):
        calibrate(epsilon=1e9, delta=1e-5, sample_rate=0.01, steps=100)


def test_a_run_that_delta_covers_without_noise_is_refused():
    with pytest.raises(ValueError, match="spends only 0"):
        calibrate(epsilon=3.0, delta=1e-3, sample_rate=1e-6, steps=5)


def test_too_small_a_delta_says_so():
    with pytest.raises(ValueError, match=r"epsilon=3 cannot be reached with any noise: delta"):
        calibrate(epsilon=3.0, delta=1e-30, sample_rate=0.01, steps=100)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("epsilon", 0.0), ("epsilon", -1.0), ("delta", 1.5), ("sample_rate", 0), ("steps", 0)],
)
def test_wrong_arguments_are_named(argument, value):
    arguments = {"epsilon": 3.0, "delta": 1e-5, "sample_rate": 0.1, "steps": 10}
    with pytest.raises(ValueError, match=f"^{argument}={value!r} is not valid: expected"):
        calibrate(**arguments | {argument: value})
