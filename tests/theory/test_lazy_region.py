"""Where clipping stops learning (Bu et al., "Automatic Clipping", Appendix F, Figures 3 and 12)."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from quietgrad.clipping import PSAC, Abadi, AutoS, AutoV
from quietgrad.theory import balanced_classification, clipped, mixture_mean

THETA = np.linspace(-2, 2, 17)
AWAY = THETA[np.abs(THETA) > 0.2]
INSIDE = AWAY[np.abs(AWAY) < 1]
RADIUS = 0.01


@pytest.mark.parametrize(
    ("name", "function"),
    [("abadi", Abadi()), ("auto-v", AutoV()), ("auto-s", AutoS(0.3)), ("psac", PSAC(0.4))],
)
@pytest.mark.parametrize("radius", [0.01, 1.0, 7.0])
def test_weights_are_those_of_the_library(name, function, radius):
    gradients = np.concatenate([np.linspace(-10, 10, 401), np.logspace(-12, 12, 97)])
    norms = torch.as_tensor(np.abs(gradients))
    expected = function.weights(norms, radius).numpy() * gradients
    found = clipped(gradients, name, radius=radius, gamma=0.3, r=0.4)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_without_clipping_both_problems_pull_towards_zero():
    for problem in (balanced_classification, mixture_mean):
        gradients = problem(AWAY, "none")
        assert (np.sign(gradients) == np.sign(AWAY)).all()
        assert (np.diff(problem(THETA, "none")) > 0).all()


def test_classification_auto_v_is_flat_at_zero_and_abadi_nearly():
    assert np.abs(balanced_classification(THETA, "auto-v")).max() < 1e-12
    assert np.abs(balanced_classification(THETA, "abadi")).max() < 0.01 * RADIUS
    assert np.abs(balanced_classification(INSIDE, "abadi")).max() < 0.001 * RADIUS


@pytest.mark.parametrize("name", ["auto-s", "psac"])
def test_classification_is_not_flat_with_auto_s_and_psac(name):
    gradients = balanced_classification(AWAY, name)
    assert (np.sign(gradients) == np.sign(AWAY)).all()
    assert (np.diff(balanced_classification(THETA, name)) > 0).all()
    lazy = np.abs(balanced_classification(AWAY, "abadi"))
    assert (np.abs(gradients) > 10 * lazy).all()


def test_classification_psac_pulls_harder_than_auto_s():
    psac, auto_s = (np.abs(balanced_classification(AWAY, name)) for name in ("psac", "auto-s"))
    assert (psac > 3 * auto_s).all()


@pytest.mark.parametrize("name", ["abadi", "auto-v"])
def test_mixture_is_lazy_inside_with_abadi_and_auto_v(name):
    assert np.abs(mixture_mean(INSIDE, name)).max() < 0.001 * RADIUS


@pytest.mark.parametrize("name", ["auto-s", "psac"])
def test_mixture_moves_inside_with_auto_s_and_psac(name):
    gradients = mixture_mean(INSIDE, name)
    assert (np.sign(gradients) == np.sign(INSIDE)).all()
    assert (np.abs(gradients) > 4 * np.abs(mixture_mean(INSIDE, "abadi"))).all()
    assert (np.diff(mixture_mean(THETA, name)) > 0).all()


def test_the_same_seed_gives_the_same_samples():
    same = [balanced_classification(0.3, "none", seed=5) for _ in range(2)]
    assert same[0] == same[1] != balanced_classification(0.3, "none", seed=6)
    assert balanced_classification(0.3, "none").shape == ()
    assert mixture_mean([[0.1, 0.2]], "none").shape == (1, 2)


def test_far_thetas_do_not_overflow():
    with np.errstate(all="raise", under="ignore"):
        assert balanced_classification(1e4, "none") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clipping": "auto"}, "clipping='auto' is not valid: expected one of 'none', 'abadi'"),
        ({"radius": 0.0}, "radius=0.0 is not valid"),
        ({"gamma": -1.0}, "gamma=-1.0 is not valid"),
        ({"r": 2.0}, "r=2.0 is not valid"),
        ({"samples": 0}, "samples=0 is not valid"),
        ({"theta": float("nan")}, "theta=nan is not valid: expected finite numbers"),
    ],
)
def test_bad_arguments_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        mixture_mean(**({"theta": 0.0, "clipping": "auto-s"} | wrong))


def test_theory_needs_no_torch():
    script = (
        "import sys, quietgrad.theory as theory\n"
        "theory.balanced_classification(0.0, 'auto-s')\n"
        "theory.concave_envelope(1e-4, r=2.0, xi=1.0, gamma=0.01, largest_norm=5.0)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
