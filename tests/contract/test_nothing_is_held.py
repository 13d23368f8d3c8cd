"""A step lets go of all it needed: a training that held on would run out of memory in the end."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import TensorDataset

import quietgrad as qg

SAMPLES = 6


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 8)
        self.places = nn.Parameter(torch.randn(1, 5, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.layer(self.words(tokens) + self.places).mean(1))


def _images():
    return torch.randn(SAMPLES, 2, 8, 8)


def _standardized():
    layers = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ELU(), nn.Flatten(), nn.Linear(144, 3))
    qg.nn.standardize_weights(layers)
    return layers


MODELS = {
    "weights computed from parameters": (_standardized, _images),
    "weight norm": (
        lambda: nn.Sequential(nn.Flatten(), weight_norm(nn.Linear(128, 3))),
        _images,
    ),
    "a gated layer": (
        lambda: qg.nn.gru_classifier(torch.randn(9, 4), hidden=4, classes=3),
        lambda: torch.randint(9, (SAMPLES, 5)),
    ),
    "attention": (_Attention, lambda: torch.randint(9, (SAMPLES, 5))),
}


def _tensors():
    gc.collect()
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of what torch keeps for the collector
@pytest.mark.every_nth(2)
@pytest.mark.parametrize("name", MODELS)
def test_steps_leave_no_tensors_behind(name):
    torch.manual_seed(0)
    build, draw = MODELS[name]
    model, data = build(), TensorDataset(draw(), torch.randint(3, (SAMPLES,)))
    engine = qg.PrivacyEngine(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=SAMPLES,
        sampling="full-batch", noise_multiplier=1.0, delta=1e-3, seed=0,
    )  # fmt: skip

    def step():
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(F.cross_entropy(model(x), y, reduction="none"))
            engine.step()

    for _ in range(3):
        step()
    before = _tensors()
    for _ in range(4):
        step()
    assert _tensors() <= before
