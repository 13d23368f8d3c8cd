"""In large batches others are left out instead of replaced: every two samples are told apart."""

import pytest
import torch
from torch import nn

from quietgrad import PrivacyEngine
from quietgrad.errors import SampleMixingError

BATCH = 12


class Model(nn.Module):
    """Two layers with dropout; what ``between`` adds to the hidden values has no gradient."""

    def __init__(self, between, rate=0.5):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.dropout, self.between = nn.Dropout(rate), between

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(self.dropout(h + self.between(h.detach())))


def train(model, *, batch=BATCH):
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(batch, 4), torch.arange(batch) % 2)
    engine = PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data,
        batch_size=batch,
        sampling="full-batch",
        noise_multiplier=1.0,
        delta=1e-5,
        verification="once",
    )
    for content in next(engine.batches()):
        x, y = content
        engine.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
    engine.step()
    engine.detach()


def one_from_another(one, other):
    def between(h):
        shift = torch.zeros_like(h)
        shift[one % len(h)] = h[other % len(h)]
        return shift

    return between


@pytest.mark.parametrize("rate", [0.0, 0.5])
@pytest.mark.parametrize("pair", [(0, 11), (11, 0), (3, 4), (7, 2)], ids=str)
def test_one_sample_that_sees_one_other_is_refused(pair, rate):
    with pytest.raises(SampleMixingError):
        train(Model(one_from_another(*pair), rate))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_sample_that_sees_its_place_is_refused(rate):
    with pytest.raises(SampleMixingError, match="place"):
        train(Model(lambda h: torch.arange(float(len(h)))[:, None] / 4, rate))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_sample_that_sees_their_number_is_refused(rate):
    with pytest.raises(SampleMixingError, match="number of samples"):
        train(Model(lambda h: torch.full_like(h, 1 / len(h)), rate))


def test_a_model_for_one_size_of_batch_is_verified_by_replacing():
    def only_whole(h):
        assert len(h) == BATCH
        return 0 * h

    train(Model(only_whole))

    def mixing(h):
        only_whole(h)
        return one_from_another(5, 6)(h)

    with pytest.raises(SampleMixingError):
        train(Model(mixing))


def test_what_all_copies_have_in_common_is_seen():
    with pytest.raises(SampleMixingError):
        train(Model(lambda h: torch.full_like(h, float((h == h[:1]).all()))))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_samples_that_are_apart_train(rate):
    train(Model(lambda h: 0.1 * h.sign(), rate))
