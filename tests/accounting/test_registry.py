"""An accountant is a small object that is registered by name."""

import math
from dataclasses import dataclass

import pytest

from quietgrad import accounting
from quietgrad.accounting import GaussianEvent, Ledger, Poisson, accountants, calibrate, epsilon

RUN = {"sample_rate": 0.5, "steps": 16}


@dataclass(frozen=True)
class Toy:
    """Epsilon is the number of releases over the noise, whatever delta is."""

    name: str = "toy"
    is_guarantee: bool = False

    def profile(self, releases, adjacency, *, precision="fine"):
        return ToyProfile(sum(n * r.rate / r.noise_multiplier for r, n in releases.items()))


@dataclass(frozen=True)
class ToyProfile:
    value: float

    def epsilon(self, delta):
        return self.value

    def delta(self, epsilon):
        return float(epsilon < self.value)


@pytest.fixture
def _toy(monkeypatch):
    monkeypatch.setitem(accountants._ACCOUNTANTS, "toy", Toy())


@pytest.mark.usefixtures("_toy")
def test_a_registered_accountant_is_understood_by_name():
    assert epsilon(noise_multiplier=2.0, delta=1e-5, accountant="toy", **RUN) == 4.0
    assert accounting.delta(noise_multiplier=2.0, epsilon=3.0, accountant="toy", **RUN) == 1.0
    found = accounting.curve(noise_multiplier=2.0, accountant="toy", deltas=[0.1, 0.2], **RUN)
    assert found.epsilons == (4.0, 4.0)


@pytest.mark.usefixtures("_toy")
def test_a_registered_accountant_calibrates():
    sigma = calibrate(epsilon=1.0, delta=1e-5, accountant="toy", **RUN)
    assert sigma == pytest.approx(8.0, rel=1e-3)
    before = [GaussianEvent(16.0, Poisson(0.5), 16)]
    sigma = calibrate(epsilon=1.0, delta=1e-5, accountant="toy", spent=before, **RUN)
    assert sigma == pytest.approx(16.0, rel=1e-2)


@pytest.mark.usefixtures("_toy")
def test_a_registered_accountant_reads_a_ledger():
    book = Ledger([GaussianEvent(1.0, Poisson(0.5), 2)])
    assert book.epsilon(1e-5, accountant="toy") == 1.0
    book.record(GaussianEvent(2.0, Poisson(0.5), 4))
    assert book.epsilon(1e-5, accountant="toy") == 2.0


@pytest.mark.usefixtures("_toy")
def test_names_say_which_are_guarantees():
    assert accountants.names()[-1] == "toy"
    assert "toy" not in accountants.names(guarantees_only=True)
    assert accounting.accountant_names() == accountants.names()


def test_the_default_comes_first():
    assert accountants.names()[0] == "pld"
    assert accountants.names() == accounting.accountant_names() == ("pld", "rdp", "gdp")


@pytest.mark.parametrize("name", accountants.names())
def test_a_registered_accountant_keeps_the_protocol(name):
    accountant = accountants.resolve(name)
    assert accountant.name == name
    assert isinstance(accountant.is_guarantee, bool)
    nothing = accountant.profile({}, "add-remove-one")
    assert (nothing.epsilon(1e-5), nothing.delta(0.0)) == (0.0, 0.0)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown accountant 'pdl'.*'pld'.*pld, rdp, gdp"):
        accountants.resolve("pdl")
    assert math.isfinite(epsilon(noise_multiplier=9.0, delta=1e-5, accountant="gdp", **RUN))
