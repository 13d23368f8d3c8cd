import ast
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quietgrad.accounting
from quietgrad.accounting import GaussianEvent, epsilon
from quietgrad.accounting.grid import COARSE, FINE, Grid
from quietgrad.accounting.pld import pld_epsilon

from .oracles import gaussian_epsilon, sampled_gaussian_epsilon


@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "expected", "within"),
    [(1.1, 256 / 60000, 14040, 2.380, 0.005), (1.0, 0.04, 1500, 10.66, 0.01)],
)
def test_known_values(sigma, rate, steps, expected, within):
    value = epsilon(noise_multiplier=sigma, sample_rate=rate, steps=steps, delta=1e-5)
    assert value == pytest.approx(expected, abs=within)


@pytest.mark.parametrize("sigma", [1.0, 4.0, 100.0])
@pytest.mark.parametrize("steps", [1, 10, 100])
def test_without_sampling_it_is_the_exact_gaussian(sigma, steps):
    exact = gaussian_epsilon(sigma / math.sqrt(steps), 1e-5)
    value = epsilon(noise_multiplier=sigma, sample_rate=1.0, steps=steps, delta=1e-5)
    assert exact - 1e-9 <= value <= exact * 1.002 + 1e-4


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rate", [0.001, 0.1, 0.9])
def test_one_sampled_step_matches_the_closed_form(sigma, rate):
    exact = sampled_gaussian_epsilon(sigma, rate, 1e-6)
    value = epsilon(noise_multiplier=sigma, sample_rate=rate, steps=1, delta=1e-6)
    assert exact - 1e-9 <= value <= exact * 1.002 + 1e-4


def test_no_steps_spend_nothing():
    assert epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=0, delta=1e-5) == 0.0


@settings(max_examples=8, deadline=None)
@given(
    sigma=st.floats(1.0, 5.0),
    rate=st.floats(0.001, 0.5),
    steps=st.integers(1, 500),
    factor=st.floats(1.05, 2.0),
)
def test_more_noise_spends_less_and_more_steps_or_samples_spend_more(sigma, rate, steps, factor):
    def spent(noise_multiplier=sigma, sample_rate=rate, steps=steps):
        event = GaussianEvent(noise_multiplier, sample_rate, steps)
        return pld_epsilon([event], 1e-5, grid=COARSE)

    assert spent(noise_multiplier=factor * sigma) <= spent() + 1e-6
    assert spent(steps=2 * steps) >= spent() - 1e-6
    assert spent(sample_rate=min(1.0, factor * rate)) >= spent() - 1e-6


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(2.0, 0.1, 100), (5.0, 0.001, 100_000)])
def test_coarser_grids_bound_finer_ones(sigma, rate, steps):
    event = GaussianEvent(sigma, rate, steps)
    finer = Grid(coarsest=3e-5, cells_per_deviation=60, most_cells=300_000)
    values = [pld_epsilon([event], 1e-5, grid=grid) for grid in (finer, FINE, COARSE)]
    assert values == sorted(values)
    assert values[1] <= 1.005 * values[0]


def test_a_delta_that_cannot_be_resolved_is_infinite_not_wrong():
    assert epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=10, delta=1e-30) == math.inf


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("noise_multiplier", 0.0, "> 0"),
        ("noise_multiplier", math.inf, "finite"),
        ("noise_multiplier", math.nan, "finite"),
        ("noise_multiplier", "1", "> 0"),
        ("sample_rate", 0.0, r"\(0, 1\]"),
        ("sample_rate", 1.1, r"\(0, 1\]"),
        ("delta", 0.0, r"\(0, 1\)"),
        ("delta", 1.0, r"\(0, 1\)"),
        ("steps", -1, ">= 0"),
        ("steps", 2.5, "integer"),
        ("steps", True, "integer"),
    ],
)
def test_wrong_arguments_are_named_with_value_and_expectation(argument, value, expected):
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(ValueError, match=f"{argument}={value!r}.*{expected}"):
        epsilon(**arguments | {argument: value})


def test_accounting_imports_no_torch():
    folder = Path(quietgrad.accounting.__file__).parent
    for path in [*folder.glob("*.py"), folder.parent / "_checks.py"]:
        assert "torch" not in _imported(path), path


def _imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
