"""Two training loops for one recipe: with privacy and without."""

import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, NAdam, Optimizer
from torch.utils.data import DataLoader, Dataset

from quietgrad._checks import require_positive
from quietgrad.engine.engine import PrivacyEngine
from quietgrad.methods.augmentation import SelfAugmentation
from quietgrad.recipes.recipe import Recipe, Settings, Split, on_device_of

Scores = dict[str, float]
_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adam": Adam, "adamw": AdamW, "nadam": NAdam}


@dataclass(frozen=True)
class EpochReport:
    """The state of training after an epoch. All of it may be shown.

    Scores are of the held-out test set: the training loss would be read from private data without
    any noise.
    """

    epoch: int
    steps: int
    scores: Scores
    epsilon: float | None
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """As a line of metrics: scores beside the rest."""
        rest = asdict(self)
        return {**rest.pop("scores"), **rest}


@dataclass(frozen=True)
class Outcome:
    """The result of training. `seconds` are of the steps, without evaluation and accounting."""

    scores: Scores
    steps: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Scores beside the rest."""
        rest = asdict(self)
        return {**rest.pop("scores"), **rest}


OnEpoch = Callable[[EpochReport], None]
OnStep = Callable[[], None]


def require_device(name: str) -> str:
    """The name of a device that there is; ValueError, with all names, for another one."""
    known = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        known += [f"{kind}", *(f"{kind}:{i}" for i in range(torch.accelerator.device_count()))]
    if name not in known:
        none = "" if len(known) > 1 else f" (torch {torch.__version__} finds no accelerator here)"
        raise ValueError(f"device={name!r} is not available: expected {', '.join(known)}{none}")
    return name


def attach(
    recipe: Recipe,
    split: Split,
    model: nn.Module,
    *,
    seed: int | None,
    ledger: Path | None = None,
) -> PrivacyEngine:
    """An engine for this recipe, its noise calibrated to the recipe's epsilon.

    The model may be on any device: batches are moved to it.
    """
    settings = recipe.settings
    losses_of(recipe)  # refuses now what training would refuse
    # With inner momentum the engine itself carries what was released before.
    momentum = settings.momentum if settings.inner_steps is None else 0.0
    return PrivacyEngine(
        model,
        optimizer(settings, model, momentum=momentum),
        split.train,
        lengths=split.lengths,
        units=split.units,
        unit=recipe.unit,
        pin_memory=next(model.parameters()).is_cuda,  # others may have no pinned memory
        ledger=ledger,
        seed=seed,
        **settings.engine_options,
    )


def losses_of(recipe: Recipe) -> Callable[[nn.Module, Sequence[Tensor]], Tensor]:
    """The task's losses; with several views of each sample, the mean over them."""
    if recipe.settings.views == 1:
        return recipe.task.losses
    if recipe.transform is None:
        raise ValueError(
            f"recipe {recipe.name!r} has no random views: leave --views out, or choose a recipe"
            " for images"
        )
    several = SelfAugmentation(recipe.transform, recipe.settings.views, keep_original=True)

    def losses(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        samples, *others = batch
        views = [several(samples), *(several.repeated(column) for column in others)]
        return several.mean(recipe.task.losses(model, views))

    return losses


def train_private(
    recipe: Recipe,
    split: Split,
    model: nn.Module,
    engine: PrivacyEngine,
    *,
    on_epoch: OnEpoch,
    on_step: OnStep = lambda: None,
    seconds: float = 0.0,
) -> Outcome:
    """Train with the engine that is attached to the model, from where it is, and detach it.

    It ends with the last epoch, or when the budget is spent, which is earlier if an interruption
    lost updates that were recorded. `seconds` are those that earlier epochs took.
    """
    losses = losses_of(recipe)
    scores = None
    while engine.has_budget and engine.epochs_completed < recipe.settings.epochs:
        started = time.perf_counter()
        for batch in engine.batches():
            for columns in batch:
                engine.backward(partial(losses, model, on_device_of(model, columns)))
            engine.step()
            on_step()
        seconds += time.perf_counter() - started
        scores = _test_scores(recipe.task.scores, model, split)
        spent = engine.epsilon()
        on_epoch(EpochReport(engine.epochs_completed, engine.steps_taken, scores, spent, seconds))
    scores = scores or _test_scores(recipe.task.scores, model, split)
    engine.detach()
    return Outcome(
        scores | _test_scores(recipe.task.final_scores, model, split), engine.steps_taken, seconds
    )


def train_ordinary(
    recipe: Recipe,
    split: Split,
    model: nn.Module,
    *,
    seed: int | None,
    on_epoch: OnEpoch,
    on_step: OnStep = lambda: None,
) -> Outcome:
    """Train the same way without clipping and noise, on shuffled batches: what privacy costs."""
    settings = recipe.settings
    losses = losses_of(recipe)
    updates = optimizer(settings, model, rate=settings.ordinary_learning_rate)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    loader = DataLoader(split.train, ordinary_batch(settings), shuffle=True, generator=generator)
    seconds, scores = 0.0, Scores()
    for epoch in range(1, settings.epochs + 1):
        started = time.perf_counter()
        for columns in loader:
            updates.zero_grad()
            losses(model, on_device_of(model, columns)).mean().backward()
            updates.step()
            on_step()
        seconds += time.perf_counter() - started
        scores = _test_scores(recipe.task.scores, model, split)
        on_epoch(EpochReport(epoch, epoch * len(loader), scores, None, seconds))
    scores = scores | _test_scores(recipe.task.final_scores, model, split)
    return Outcome(scores, settings.epochs * len(loader), seconds)


def ordinary_batch(settings: Settings) -> int:
    """The size of a batch without privacy: of units, with as many records as may take part."""
    return settings.batch_size * (settings.records_per_unit or 1)


def ordinary_steps(settings: Settings, split: Split) -> int:
    """The number of steps that training without privacy takes."""
    return settings.epochs * -(-len(cast(Sized, split.train)) // ordinary_batch(settings))


def optimizer(
    settings: Settings,
    model: nn.Module,
    *,
    rate: float | None = None,
    momentum: float | None = None,
) -> Optimizer:
    """As the settings say, over all trained parameters of a model."""
    rate = require_positive("learning_rate", settings.learning_rate if rate is None else rate)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = settings.weight_decay
    if settings.optimizer == "sgd":
        kept = settings.momentum if momentum is None else momentum
        return SGD(trained, lr=rate, momentum=kept, weight_decay=decay)
    if settings.inner_steps is not None:
        raise ValueError(f"inner momentum is for sgd, not {settings.optimizer}: leave one out")
    return _OPTIMIZERS[settings.optimizer](trained, lr=rate, weight_decay=decay)


def _test_scores(
    scores: Callable[[nn.Module, Dataset[Any]], Scores], model: nn.Module, split: Split
) -> Scores:
    model.eval()
    found = scores(model, split.test)
    model.train()
    return {f"test_{name}": value for name, value in found.items()}
