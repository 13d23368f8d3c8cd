"""Audits that can see nothing say so, rather than that nothing is wrong."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import TensorDataset

from quietgrad import audit
from quietgrad.accounting import GaussianEvent, Passes, Poisson
from quietgrad.audit.canaries import Attendance
from quietgrad.sampling import OwnSampler

from .broken import no_noise
from .helpers import DELTA, data, linear, losses, sgd

GIVEN = {"epochs": 2, "batch_size": 70, "delta": DELTA, "noise_multiplier": 2.0}


def with_nan(positions, count=40):
    x, y = data(count).tensors
    x = x.clone()
    x[positions] = torch.nan
    return TensorDataset(x, y)


def test_an_element_that_is_no_number_does_not_hide_canaries():
    with no_noise():
        results = [
            audit.one_run(
                audit.gradient_canaries(linear, dataset, losses, sgd, **GIVEN),
                canaries=100,
                seed=0,
            )
            for dataset in (data(), with_nan([0, 1]))
        ]
    assert all(result.violated for result in results)
    assert results[0].correct == results[1].correct


def test_data_without_an_element_to_train_on_is_refused():
    train = audit.gradient_canaries(linear, with_nan(slice(None)), losses, sgd, **GIVEN)
    with pytest.raises(ValueError, match="none can stand in for canaries"):
        audit.one_run(train, canaries=100)


def test_canaries_that_training_drops_are_reported():
    def diverging(model, batch):
        diverging.calls += 1
        found = losses(model, batch)
        return found if diverging.calls < 3 else found * torch.inf

    diverging.calls = 0
    train = audit.gradient_canaries(linear, data(), diverging, sgd, **GIVEN)
    with pytest.raises(ValueError, match="canaries were dropped"):
        audit.one_run(train, canaries=100, seed=0)


def own_sampler(elements):
    batches = [list(range(i, i + 10)) for i in range(0, elements, 10)]
    return OwnSampler(batches, accounted_as=Passes(length=len(batches)))


@pytest.mark.parametrize("kind", ["gradient", "example"])
@pytest.mark.parametrize("canaries", [20, 100])
def test_a_sampler_that_never_draws_canaries_is_reported(kind, canaries):
    options = GIVEN | {
        "batch_size": 10,
        "sampling": own_sampler(40),
        "adjacency": "replace-one",
    }
    train = (
        audit.gradient_canaries(linear, data(), losses, sgd, **options)
        if kind == "gradient"
        else audit.example_canaries(linear, data(), data(canaries), losses, sgd, **options)
    )
    with pytest.raises(ValueError, match="took part in no step"):
        audit.one_run(train, canaries=canaries, seed=0)


def test_one_that_draws_them_is_audited():
    options = {"batch_size": 10, "sampling": own_sampler(60), "adjacency": "replace-one"}
    train = audit.gradient_canaries(linear, data(), losses, sgd, **GIVEN | options)
    with no_noise():
        assert audit.one_run(train, canaries=20, seed=0).violated


def trained(sampling, *, rate, steps):
    ledger = SimpleNamespace(events=[GaussianEvent(1.0, sampling, steps)])
    return SimpleNamespace(sample_rate=rate, steps_taken=steps, ledger=ledger)


def test_chance_may_leave_few_canaries_out_and_a_pass_may_not():
    """Refusing what chance does would tell of the coins."""
    Attendance().require_some(trained(Poisson(0.1), rate=0.1, steps=20), present=1)
    Attendance().require_some(trained(Passes(10), rate=0.1, steps=20), present=0)
    for sampling, present in ((Poisson(0.1), 20), (Passes(10), 1)):
        with pytest.raises(ValueError, match="took part in no step"):
            Attendance().require_some(trained(sampling, rate=0.1, steps=20), present=present)
