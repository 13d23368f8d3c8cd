"""A small training to audit, and ideal mechanisms whose privacy is known."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from quietgrad import audit
from quietgrad.accounting.accountants.base import GaussianProfile
from quietgrad.audit.bounds import GaussianTradeOff

DELTA = 1e-4


@dataclass(frozen=True)
class Gaussian:
    """The claim to be as private as a Gaussian mechanism with sensitivity `mu` and unit noise."""

    mu: float
    delta: float = DELTA

    @property
    def epsilon(self):
        return self.epsilon_at(1.0)

    def tradeoff(self, strength=1.0):
        return GaussianTradeOff(strength * self.mu)

    def epsilon_at(self, strength):
        return GaussianProfile(strength * self.mu).epsilon(self.delta)


def data(count: int = 40) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, generator=generator)
    return TensorDataset(x, torch.randint(2, (count,), generator=generator))


def losses(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def linear():
    return nn.Linear(3, 2)


def gradient_canaries(**options) -> audit.Train:
    """Ten steps of a linear model with 40 samples; with 1000 canaries, at a rate of 1/2.

    Twice the claimed leak is then six deviations of right guesses away from it.
    """
    given = {"epochs": 5, "batch_size": 520, "delta": DELTA, "noise_multiplier": 3.0}
    return audit.gradient_canaries(linear, data(), losses, sgd, **given | options)


def gaussian(mu: float, *, claimed: float | None = None, threshold: bool = True) -> audit.Train:
    """Unit noise on a present canary's `mu`, said to be on `claimed`."""
    claim = Gaussian(mu if claimed is None else claimed)

    def train(present, seed):
        noise = np.random.default_rng(seed).standard_normal(len(present))
        return audit.Observation(noise + mu * present, claim, mu / 2 if threshold else None)

    return train
