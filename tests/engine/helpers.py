"""Small models, data and engines that the tests of this package share."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad import PrivacyEngine

FEATURES, CLASSES = 3, 2
QUIET = 1e-9
"""A noise multiplier so small that a step shows the clipped sum itself."""


def data(count: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, FEATURES, dtype=torch.float64, generator=generator)
    return TensorDataset(x, torch.randint(CLASSES, (count,), generator=generator))


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES)
    return nn.Sequential(*layers).double()


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def attach(model, optimizer=None, dataset=None, **options) -> PrivacyEngine:
    """An engine with a seed; SGD with learning rate 1 shows each gradient in the weights."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
    given = {"batch_size": 8, "delta": 1e-3, "seed": 0}
    if "epsilon" not in options:
        given["noise_multiplier"] = 1.0
    return PrivacyEngine(model, optimizer, dataset or data(), **given | options)


def train(engine: PrivacyEngine, model: nn.Module, steps: int, each_step=lambda: None) -> None:
    """Train for this many steps, over as many epochs as it takes."""
    taken = 0
    while taken < steps:
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(losses(model, x, y))
            engine.step()
            each_step()
            taken += 1
            if taken == steps:
                break


def flat(model: nn.Module) -> Tensor:
    """All parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
