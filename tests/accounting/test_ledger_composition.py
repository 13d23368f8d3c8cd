"""What a ledger composes, against dp-accounting's own accountants fed with the same events."""

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from quietgrad.accounting import FullBatch, GaussianEvent, Ledger, Poisson, epsilon

NOISE_SCHEDULE = [
    GaussianEvent(float(sigma), Poisson(0.05), 20) for sigma in np.linspace(3.0, 9.0, 3)
]
BATCH_SIZES = [GaussianEvent(4.0, Poisson(rate), 30) for rate in (0.1, 0.2, 0.4)]
PHASES = [
    GaussianEvent(3.0, Poisson(0.1), 50),
    GaussianEvent(20.0, FullBatch(), 3),
    GaussianEvent(2.0, Poisson(0.01), 900),
]
RUNS = {"noise schedule": NOISE_SCHEDULE, "batch sizes": BATCH_SIZES, "phases": PHASES}
every_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def composed(accountant, run):
    for event in run:
        gaussian = dp.GaussianDpEvent(event.noise_multiplier)
        if isinstance(event.sampling, Poisson):
            gaussian = dp.PoissonSampledDpEvent(event.sampling.rate, gaussian)
        accountant.compose(gaussian, event.steps)
    return accountant.get_epsilon(1e-5)


@every_run
def test_by_distributions(run):
    assert Ledger(run).epsilon(1e-5) == pytest.approx(composed(PLDAccountant(), run), rel=2e-3)


@every_run
def test_by_divergences(run):
    value = Ledger(run).epsilon(1e-5, accountant="rdp")
    assert value == pytest.approx(composed(RdpAccountant(), run), rel=1e-9)


@every_run
@pytest.mark.parametrize("left_out", [0, -1])
def test_an_event_that_is_left_out_would_be_noticed(run, left_out):
    fewer = [event for event in run if event != run[left_out]]
    value = Ledger(run).epsilon(1e-5, accountant="rdp")
    assert value > 1.001 * composed(RdpAccountant(), fewer)


@every_run
def test_step_by_step_is_the_same_as_at_once(run):
    book = Ledger()
    for event in run:
        for _ in range(event.steps):
            book.record(GaussianEvent(event.noise_multiplier, event.sampling))
    assert book.events == tuple(run)


def test_phases_cost_less_together_than_their_epsilons_added_up():
    apart = sum(
        epsilon(
            noise_multiplier=event.noise_multiplier,
            sampling=event.sampling,
            steps=event.steps,
            delta=1e-5,
        )
        for event in PHASES
    )
    assert Ledger(PHASES).epsilon(1e-5) < apart


def test_very_different_mechanisms_compose():
    loud = GaussianEvent(0.5, Poisson(1e-4), 1000)
    quiet = GaussianEvent(100.0, Poisson(0.5), 1000)
    both = Ledger([loud, quiet])
    for accountant in ("pld", "rdp"):
        value = both.epsilon(1e-5, accountant=accountant)
        alone = [Ledger([event]).epsilon(1e-5, accountant=accountant) for event in (loud, quiet)]
        assert max(alone) < value < sum(alone)
    assert both.epsilon(1e-5) < both.epsilon(1e-5, accountant="rdp")
