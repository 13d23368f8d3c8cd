import copy

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad import diagnostics
from quietgrad.diagnostics import measure

from .helpers import made
from .points import point


def test_too_few_samples_are_refused():
    with pytest.raises(diagnostics.TooFewSamplesError, match=r"1 sample .*no sampling noise"):
        point(1.0)
    with pytest.raises(ValueError, match="no losses"):
        point()
    with pytest.raises(ValueError, match="1 of 2 samples with a finite gradient"):
        point(1.0, float("nan"))


@pytest.mark.parametrize("averages", [(1, 10), (0,), (-1,), (1.5,), (True,), 4, "12", None])
def test_averages_that_make_no_sense_are_refused(averages):
    subject = made("mlp")
    with pytest.raises(ValueError, match="averages="):
        measure(subject.model, subject.losses, averages=averages)


def test_an_attached_model_is_refused_and_a_copy_measured():
    subject = made("mlp")
    optimizer = torch.optim.SGD(subject.model.parameters(), lr=0.1)
    options = {"batch_size": 4, "noise_multiplier": 1.0, "delta": 1e-3}
    qg.PrivacyEngine(
        subject.model, optimizer, TensorDataset(subject.x, subject.y), epochs=1, **options
    )
    with pytest.raises(qg.errors.EngineStateError, match="deepcopy"):
        measure(subject.model, subject.losses, averages=(1,))
    twin = copy.deepcopy(subject.model)
    closure = lambda: F.cross_entropy(twin(subject.x), subject.y, reduction="none")  # noqa: E731
    assert measure(twin, closure, averages=(1,)).samples == 9
