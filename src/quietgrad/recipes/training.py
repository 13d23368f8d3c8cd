"""Two training loops for one recipe: with privacy and without."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from quietgrad._checks import require_positive
from quietgrad.engine import PrivacyEngine
from quietgrad.recipes.recipe import Recipe, Split


@dataclass(frozen=True)
class EpochReport:
    """How training stands after an epoch. All of it may be shown.

    Loss and accuracy are of the held-out test set: the training loss would be read from private
    data without any noise.
    """

    epoch: int
    test_loss: float
    test_accuracy: float
    epsilon: float | None


@dataclass(frozen=True)
class Outcome:
    """How training ended. `seconds` are those of the steps, without evaluation and accounting."""

    test_loss: float
    test_accuracy: float
    steps: int
    seconds: float


OnEpoch = Callable[[EpochReport], None]
OnStep = Callable[[], None]


def attach(
    recipe: Recipe,
    split: Split,
    model: nn.Module,
    *,
    seed: int | None,
    ledger: Path | None = None,
) -> PrivacyEngine:
    """An engine for this recipe, its noise calibrated to the recipe's epsilon."""
    return PrivacyEngine(
        model,
        optimizer(recipe, model),
        split.train,
        ledger=ledger,
        seed=seed,
        **engine_options(recipe),
    )


def engine_options(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says about its engine."""
    names = (
        "batch_size epochs epsilon delta clipping grouping physical_batch_size sampling adjacency"
        " accountant noise"
    )
    return {name: getattr(recipe, name) for name in names.split()}


def train_private(
    recipe: Recipe,
    split: Split,
    model: nn.Module,
    engine: PrivacyEngine,
    *,
    on_epoch: OnEpoch,
    on_step: OnStep = lambda: None,
) -> Outcome:
    """Train with the engine that is attached to the model, from where it is, and detach it.

    It ends with the last epoch, or when the budget is spent, which is earlier if an interruption
    lost updates that were recorded.
    """
    seconds = 0.0
    report = _report(engine.epochs_completed, model, split, engine.epsilon())
    while engine.has_budget and engine.epochs_completed < recipe.epochs:
        started = time.perf_counter()
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(F.cross_entropy(model(x), y, reduction="none"))
            engine.step()
            on_step()
        seconds += time.perf_counter() - started
        report = _report(engine.epochs_completed, model, split, engine.epsilon())
        on_epoch(report)
    engine.detach()
    return Outcome(report.test_loss, report.test_accuracy, engine.steps_taken, seconds)


def train_ordinary(
    recipe: Recipe, split: Split, model: nn.Module, *, seed: int | None, on_epoch: OnEpoch
) -> Outcome:
    """Train the same way without clipping and noise, on shuffled batches: what privacy costs."""
    seconds = 0.0
    sgd = optimizer(recipe, model)
    loader = DataLoader(split.train, recipe.batch_size, shuffle=True, generator=_generator(seed))
    for epoch in range(1, recipe.epochs + 1):
        started = time.perf_counter()
        for x, y in loader:
            sgd.zero_grad()
            F.cross_entropy(model(x), y).backward()
            sgd.step()
        seconds += time.perf_counter() - started
        report = _report(epoch, model, split, epsilon=None)
        on_epoch(report)
    return Outcome(report.test_loss, report.test_accuracy, recipe.epochs * len(loader), seconds)


def optimizer(recipe: Recipe, model: nn.Module) -> SGD:
    """As the recipe says, over all parameters of a model."""
    rate = require_positive("learning_rate", recipe.learning_rate)
    return SGD(model.parameters(), lr=rate, momentum=recipe.momentum)


def _generator(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)


def _report(epoch: int, model: nn.Module, split: Split, epsilon: float | None) -> EpochReport:
    loss, accuracy = _evaluate(model, split)
    return EpochReport(epoch, loss, accuracy, epsilon)


@torch.no_grad()
def _evaluate(model: nn.Module, split: Split) -> tuple[float, float]:
    model.eval()
    loss = correct = total = 0.0
    for x, y in DataLoader(split.test, batch_size=512):
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(dim=1) == y).sum().item()
        total += len(y)
    model.train()
    return loss / total, correct / total
