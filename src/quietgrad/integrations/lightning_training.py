"""A strategy of Lightning's Trainer that trains with an engine, for either of its packages.

The Trainer counts steps, and one of its batches is the sample of one step. It is drawn when
``training_step`` is about to be called, which then gets one micro-batch of it after another.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from quietgrad.engine.engine import PrivacyEngine
from quietgrad.errors import (
    BudgetExhaustedError,
    EngineStateError,
    IntegrationError,
    MissingExtraError,
)
from quietgrad.integrations.common import shares_samples
from quietgrad.integrations.lightning_checks import (
    EPSILON,
    LoaderSource,
    check_logged,
    check_optimizers,
    check_trainer,
    read_loader,
)
from quietgrad.integrations.lightning_ranks import Ranks
from quietgrad.sampling.samplers import resolve

_KEY = "quietgrad"
_LOADER, _TRAINER, _LOOP = (
    "it is that of the training DataLoader",
    "it follows from Trainer(max_epochs=, max_steps=, limit_train_batches=)",
    "it needs a loop of your own, with quietgrad.PrivacyEngine",
)
_GIVEN = {
    **dict.fromkeys(("batch_size", "collate_fn", "num_workers", "pin_memory"), _LOADER),
    **dict.fromkeys(("epochs", "steps"), _TRAINER),
    "pipeline": _LOOP,
}
_HELD_BY_LIGHTNING = ("model", "optimizer")


class StepBatch:
    """The samples of one step, as micro-batches; drawn when it is iterated, which is once."""

    def __init__(self, training: PrivateTraining) -> None:
        self._training: PrivateTraining | None = training

    def __iter__(self) -> Iterator[Any]:
        training, self._training = self._training, None
        if training is None:
            raise EngineStateError(
                "the batch was iterated before: its samples are handed out once, to training_step. "
                "A callback, or a hook such as on_train_batch_start, must not iterate it."
            )
        return training.draw()


class StepLoader:
    """What Lightning iterates in place of the training loader: one batch for each step.

    Its place in the data is the engine's, which is saved with it.
    """

    def __init__(self, training: PrivateTraining, steps: int) -> None:
        self._training, self._steps = training, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[StepBatch]:
        for _ in range(self._steps):
            if not self._training.has_budget():
                return
            yield StepBatch(self._training)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: Lightning asks for it before it resumes within an epoch."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class PrivateTraining(Ranks):
    """A strategy of Lightning's Trainer that trains with differential privacy.

    ``training_step`` returns one loss per sample, and gets one micro-batch after another. The data
    set, ``batch_size`` (the expected number of samples of a step, on all ranks together) and
    ``collate_fn`` are those of the training DataLoader; samples are drawn by the engine. Loggers
    get epsilon, and what is logged of training samples is refused. Checkpoints hold the engine's
    state. With ``devices=2`` training is data parallel.

    Args:
        delta: Probability with which the guarantee may fail; should be below 1 / len(dataset).
        epsilon: Target for all steps of the Trainer and for what is in ``ledger`` already.
        noise_multiplier: The noise itself, instead of a target.
        physical_batch_size: Largest number of samples that ``training_step`` gets at once.
        public_metrics: Names that may be logged in training, because they are not computed from
            training samples.
        options: Others of ``quietgrad.PrivacyEngine``, such as ``ledger=`` or ``clipping=``.
    """

    strategy_name = "private"

    def __init__(
        self,
        *,
        delta: float,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        physical_batch_size: int | None = None,
        public_metrics: Iterable[str] = (),
        **options: Any,
    ) -> None:
        super().__init__()
        _check_options(options)
        if isinstance(public_metrics, str):
            raise TypeError(f"public_metrics={public_metrics!r} is a str: expected a list of names")
        self._public = tuple(public_metrics)
        self._options = {
            "delta": delta,
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
            "physical_batch_size": physical_batch_size,
            **options,
        }
        self._engine: PrivacyEngine | None = None
        self._source: LoaderSource | None = None
        self._dataset: Any = None  # that was trained on, or will be
        self._batches: Iterator[Any] | None = None
        self._logging: Any = None

    @property
    def engine(self) -> PrivacyEngine:
        """The engine, from the beginning of ``Trainer.fit`` on, also after its end."""
        if self._engine is None:
            raise EngineStateError("there is no engine yet: it is made when Trainer.fit() begins.")
        return self._engine

    # -- the Trainer begins ----------------------------------------------------------------------

    def setup_environment(self) -> None:
        """Refuse what cannot be kept, before anything begins."""
        trainer = self.lightning_module.trainer
        if trainer.state.fn == "fit":
            check_trainer(trainer, self.framework)
        super().setup_environment()

    def setup(self, trainer: Any) -> None:
        """Make the engine, once model, optimizer and data are known."""
        self._source, self._is_beginning = None, True
        try:
            super().setup(trainer)
            if trainer.state.fn == "fit":
                trainer.fit_loop.setup_data()  # which calls process_dataloader, if none did before
                self._begin(trainer, self._source)
        finally:
            self._is_beginning = False

    def _begin(self, trainer: Any, source: LoaderSource | None) -> None:
        if source is None:
            return  # the Trainer asks for no batches
        optimizer = check_optimizers(self.optimizers)
        self._engine = engine = self._make_engine(trainer, source, optimizer)
        if engine.steps_per_epoch != (counted := self._steps_per_pass(source)):
            raise IntegrationError(
                f"the engine draws {engine.steps_per_epoch} steps of a pass over the data, and the "
                f"Trainer was told {counted}: it draws something else than elements of the data "
                "set. Write a loop of your own, with quietgrad.PrivacyEngine."
            )
        self._batches = None
        self._watch_logs(trainer)

    def process_dataloader(self, loader: object) -> object:
        """The loader of training is replaced; those of validation stay as they are."""
        trainer = self.lightning_module.trainer
        if not trainer.training:
            is_own = shares_samples(self._dataset, getattr(loader, "dataset", None))
            if is_own and not trainer.predicting:
                raise IntegrationError(
                    "a loader of validation or test data has samples that are trained on, whose "
                    "metrics are private and would be logged: take other data."
                )
            return loader
        if self._source is not None:
            raise IntegrationError(
                "there are several training loaders: a step draws from one data set. Concatenate "
                "them (torch.utils.data.ConcatDataset)."
            )
        self._source = source = read_loader(loader)
        self._dataset = source.dataset
        return StepLoader(self, self._steps_per_pass(source))

    def _steps_per_pass(self, source: LoaderSource) -> int:
        sampler = resolve(self._options.get("sampling", "poisson"))
        return sampler.bind(len(source.dataset), source.batch_size).length  # type: ignore[arg-type]

    def _make_engine(self, trainer: Any, source: LoaderSource, optimizer: Any) -> PrivacyEngine:
        options = dict(self._options)
        if self._engine is not None:  # of a fit before: both count
            self._engine.detach()
            options["ledger"] = self._engine.ledger
        return PrivacyEngine(
            self.lightning_module,
            optimizer,
            source.dataset,
            batch_size=source.batch_size,
            collate_fn=source.collate_fn,
            num_workers=source.num_workers,
            pin_memory=source.pin_memory,
            steps=self._plan(trainer, self._steps_per_pass(source)),
            **options,
        )

    def _plan(self, trainer: Any, steps_per_pass: int) -> int | None:
        """Number of steps that the Trainer will take at most."""
        limit = trainer.limit_train_batches
        per_epoch = limit if isinstance(limit, int) else int(limit * steps_per_pass)
        limits = (trainer.max_epochs, min(per_epoch, steps_per_pass)), (trainer.max_steps, 1)
        steps = [int(count * each) for count, each in limits if count is not None and count >= 0]
        if not steps and self._options["epsilon"] is not None:
            raise IntegrationError(
                "Trainer(max_epochs=-1): epsilon= is kept by noise that is planned for a number of "
                "steps. Pass max_epochs= or max_steps=, or PrivateStrategy(noise_multiplier=)."
            )
        return max(1, min(steps)) if steps else None

    # -- one step --------------------------------------------------------------------------------

    def has_budget(self) -> bool:
        """Whether there may be another step; if not, training ends after this epoch."""
        if self.engine.has_budget:
            return True
        trainer = self.lightning_module.trainer
        if not trainer.should_stop:
            trainer.should_stop = True
            warnings.warn("the budget is spent: training stops here", stacklevel=2)
        return False

    def draw(self) -> Iterator[Any]:
        """The micro-batches of the next step, on the device of the model."""
        for content in self._next_batch():
            converted = self.precision_plugin.convert_input(content)
            yield super().batch_to_device(converted, dataloader_idx=0)

    def _next_batch(self) -> Iterator[Any]:
        # Passes go on however many batches Lightning takes for an epoch.
        for _ in range(2):
            if self._batches is None:
                self._batches = self.engine.batches()
            batch: Iterator[Any] | None = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = None
        raise BudgetExhaustedError("the budget is spent: there is no batch for another step.")

    def batch_to_device(self, batch: Any, device: Any = None, dataloader_idx: int = 0) -> Any:
        """A batch of training is moved one micro-batch after another."""
        if isinstance(batch, StepBatch):
            return batch
        return super().batch_to_device(batch, device, dataloader_idx)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's with every micro-batch, and clip and add up what it returns."""
        batch, *others = args
        if not isinstance(batch, StepBatch):
            raise IntegrationError(
                f"the training loader is in a {type(batch).__name__}: pass it to Trainer.fit, or "
                "return it, by itself."
            )
        step = self.lightning_module.training_step
        if not self.lightning_module.automatic_optimization:
            with self.precision_plugin.train_step_context():
                step(batch, *others, **kwargs)
            return None  # callbacks get nothing that was read from training samples

        def losses(content: Any) -> Any:
            with self.precision_plugin.train_step_context():
                return _losses_of(step(content, *others, **kwargs))

        asks_again = self._options.get("momentum") is not None  # at past weights
        for content in batch:
            self.engine.backward(partial(losses, content) if asks_again else losses(content))
        return torch.tensor(math.nan, device=self.root_device)  # no figure: the loss is private

    def backward(self, losses: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """What ``manual_backward`` calls; automatic optimization has nothing left to do."""
        if not self.lightning_module.automatic_optimization:
            if args or kwargs:
                raise IntegrationError(
                    "manual_backward(losses) takes one loss per sample, and nothing else."
                )
            self.engine.backward(losses)
        return losses

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """Compute and release a step."""
        if kwargs:
            raise IntegrationError(f"optimizer.step({', '.join(kwargs)}=...) takes no arguments.")
        result = closure()
        self.engine.step()
        return result

    # -- what is logged --------------------------------------------------------------------------

    def _watch_logs(self, trainer: Any) -> None:
        """Log epsilon, and check whatever else is logged in training."""
        loop = trainer.fit_loop.epoch_loop
        loop._results = _guard(loop._results, self._public)
        if self._logging is None:
            self._logging = self.framework.callbacks.LambdaCallback(
                on_train_batch_end=self._log_step, on_train_epoch_end=self._log_epoch
            )
        if not trainer.barebones and self._logging not in trainer.callbacks:
            trainer.callbacks.insert(0, self._logging)  # before those that look at metrics

    def _log_step(self, trainer: Any, module: Any, *others: Any) -> None:
        every = trainer.log_every_n_steps
        if every and (trainer.global_step % every == 0 or trainer.should_stop):
            module.log(EPSILON, self.engine.epsilon(), prog_bar=True)

    def _log_epoch(self, trainer: Any, module: Any) -> None:
        module.log(EPSILON, self.engine.epsilon(), prog_bar=True)

    # -- checkpoints -----------------------------------------------------------------------------

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Put the engine's state beside the weights and the optimizer's."""
        if self._engine is not None and "optimizer_states" in checkpoint:
            if self.lightning_module.trainer.interrupted:
                self._engine.discard_batch()
            state = self._engine.state_dict()
            checkpoint[_KEY] = {k: v for k, v in state.items() if k not in _HELD_BY_LIGHTNING}
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """Load the engine's state; the weights are in the module by now."""
        if self._engine is None:
            super().load_optimizer_state_dict(checkpoint)
            return
        if _KEY not in checkpoint:
            raise IntegrationError(
                "the checkpoint was not written by PrivateStrategy: nobody knows what its training "
                "spent. If it was trained on public data, load its weights "
                "(Module.load_from_checkpoint) and call fit() without ckpt_path."
            )
        held = self.lightning_module.state_dict(), checkpoint["optimizer_states"][0]
        try:
            self._engine.load_state_dict(
                checkpoint[_KEY] | dict(zip(_HELD_BY_LIGHTNING, held, strict=True))
            )
        except EngineStateError as error:
            error.add_note(
                "With PrivateStrategy, batch_size is that of the training DataLoader, and steps "
                "follows from Trainer(max_epochs=, max_steps=, limit_train_batches=)."
            )
            raise
        self._batches = None


def strategy_for(package: str, place: str) -> Any:
    """The class ``PrivateStrategy`` for one of Lightning's packages.

    Args:
        package: the one that the Trainer is imported from.
        place: the module that the class will be imported from.
    """
    try:
        framework = import_module(package)
    except ImportError as error:
        raise MissingExtraError(package.partition(".")[0], "lightning") from error
    bases = (PrivateTraining, framework.strategies.ParallelStrategy)
    own = {"framework": framework, "__module__": place, "__doc__": PrivateTraining.__doc__}
    return type("PrivateStrategy", bases, own)


def _losses_of(output: Any) -> Any:
    """What ``training_step`` returned, or the entry of it that Lightning asks for."""
    losses = output.get("loss") if isinstance(output, Mapping) else output
    if losses is None:
        raise IntegrationError(
            "training_step returned no losses: every sample that was drawn counts, and none may be "
            "skipped by what it contains. Return one loss per sample."
        )
    return losses


def _guard(results: Any, public: tuple[str, ...]) -> Any:
    """What keeps the metrics of training, and refuses those that nobody said may be published."""
    kind: Any = type(results)
    kind = getattr(kind, "unguarded", kind)
    if not callable(getattr(kind, "log", None)):
        raise IntegrationError(
            "this version of Lightning keeps what self.log() was given in another way than the "
            "tested ones, and it cannot be checked (docs/integrations/lightning.md)."
        )

    def log(self: Any, hook: str, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        check_logged(name, hook, public)
        # By default it is read from the batch, and how many samples were drawn is private.
        kwargs["batch_size"] = kwargs.get("batch_size") or 1
        kind.log(self, hook, name, value, *args, **kwargs)

    return type("TrainingMetrics", (kind,), {"log": log, "unguarded": kind})(training=True)


def _check_options(options: dict[str, Any]) -> None:
    _, _, _, *known = inspect.signature(PrivacyEngine).parameters
    for name in options:
        if name in _GIVEN:
            raise IntegrationError(f"PrivateStrategy({name}=...): {_GIVEN[name]}. Leave it out.")
        if name not in known:
            raise TypeError(
                f"PrivateStrategy() has no argument {name!r}: expected one of "
                f"{', '.join(each for each in known if each not in _GIVEN)}"
            )
