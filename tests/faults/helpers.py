"""Small engines for the tests of faults, and what must hold after each of them."""

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad
from quietgrad import PrivacyEngine
from quietgrad.accounting import ledger_file
from quietgrad.engine import update

COUNT, FEATURES, CLASSES = 6, 3, 2
QUIET = 1e-9
"""A noise multiplier so small that a step shows the clipped sum itself."""


def data(count: int = COUNT) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, FEATURES, dtype=torch.float64, generator=generator)
    return TensorDataset(x, torch.randint(CLASSES, (count,), generator=generator))


X, Y = data().tensors


def mlp(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(FEATURES, 4), nn.Tanh(), *more, nn.Linear(4, CLASSES)
    return nn.Sequential(*layers).double()


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def attach(model, dataset=None, **options) -> PrivacyEngine:
    """An engine whose one batch is the whole data, in two micro-batches."""
    given = {
        "batch_size": COUNT,
        "physical_batch_size": COUNT // 2,
        "noise_multiplier": QUIET,
        "delta": 1e-3,
        "seed": 0,
    }
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    return PrivacyEngine(model, optimizer, dataset or data(), **given | options)


def record_beside_noise(monkeypatch, is_beside: bool = True) -> None:
    """As with larger models on slow disks, where it saves time; or else never."""
    monkeypatch.setattr(update, "_LEAST", 0 if is_beside else 1 << 60)
    monkeypatch.setattr(ledger_file, "_SLOW", -1.0)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def train_once(engine, model) -> None:
    """One epoch, of one step."""
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(losses(model, x, y))
        engine.step()


def assert_trains_as_ever(engine, model) -> None:
    """The next step is on all samples, each of them once, and nothing else shows."""
    assert not torch.overrides._get_current_function_mode_stack()
    assert all(p.grad is None for p in model.parameters())
    before, steps = copy.deepcopy(model), engine.steps_taken
    train_once(engine, model)
    assert engine.steps_taken == steps + 1
    expected = quietgrad.clipped_sum(before, lambda: losses(before, X, Y)).grads
    moved = torch.cat([expected[name].flatten() for name, _ in model.named_parameters()])
    torch.testing.assert_close(flat(before) - flat(model), moved / COUNT, rtol=0, atol=1e-7)
