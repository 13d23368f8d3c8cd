"""Small models of every kind of factor, and a training loop that keeps all per-sample gradients."""

from __future__ import annotations

import copy
import math

import torch
from tests.contract.oracle import loop
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from quietgrad import PrivacyEngine, clipping

COUNT, CLASSES, QUIET = 6, 3, 1e-9


class Standardized(nn.Conv2d):
    """A convolution whose kernel is standardized: its gradient is pulled back."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight / (weight.std((1, 2, 3), keepdim=True) + 1e-6), self.bias)


class Words(nn.Module):
    """An embedding, a recurrent layer, a head that shares the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.gru = nn.GRU(4, 4, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(ids))
        return F.linear(self.norm(states[:, -1]), self.embedding.weight)[:, :CLASSES]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def cnn() -> nn.Module:
    layers = nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), Standardized(4, 2, 2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(18, CLASSES))


MODELS = {
    "mlp": (mlp, lambda: torch.randn(COUNT, 4).double()),
    "cnn": (cnn, lambda: torch.randn(COUNT, 1, 6, 6).double()),
    "words": (Words, lambda: torch.randint(9, (COUNT, 5))),
}


def made(name: str) -> tuple[nn.Module, TensorDataset]:
    """A model and its samples, the same each time."""
    build, draw = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build().double()
        return model, TensorDataset(draw(), torch.arange(COUNT) % CLASSES)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def attach(
    model: nn.Module, dataset: TensorDataset, *, lr: float = 0.5, **options
) -> PrivacyEngine:
    """An engine that takes the whole data in every step, in two micro-batches, almost noiseless."""
    given = {
        "batch_size": COUNT,
        "physical_batch_size": COUNT // 2,
        "sampling": "full-batch",
        "noise_multiplier": QUIET,
        "delta": 1e-3,
        "noise": "fast",
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return PrivacyEngine(model, optimizer, dataset, **given | options)


def step(engine: PrivacyEngine, model: nn.Module) -> None:
    """One epoch, of one step."""
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(lambda x=x, y=y: losses(model, x, y))
        engine.step()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def grads_at(
    model: nn.Module, weights: dict[str, Tensor], data: TensorDataset
) -> dict[str, Tensor]:
    """Per-sample gradients by a loop over batches of one, in a copy with these weights."""
    twin = copy.deepcopy(model)
    twin.load_state_dict(weights)
    x, y = data.tensors
    return loop(twin, lambda i: losses(twin, x[i], y[i]), COUNT)


def clipped(grads: dict[str, Tensor], groups, function: str) -> dict[str, Tensor]:
    """The weighted sums of explicit per-sample gradients, group by group."""
    sums = {}
    for group in groups:
        rows = torch.cat([grads[name].flatten(1) for name in group.parameters], 1)
        weights = clipping.resolve(function).weights(rows.norm(dim=1), group.radius)
        for name in group.parameters:
            sums[name] = torch.einsum("b,b...->...", weights, grads[name])
    return sums


def distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float((left[n] - right[n]).square().sum()) for n in left))
