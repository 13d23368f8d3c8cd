"""Private training with ``transformers.Trainer``: the same script, with ``epsilon`` and ``delta``.

::

    from quietgrad.integrations.transformers import PrivateTrainer

    trainer = PrivateTrainer(
        model=model, args=args, train_dataset=train, data_collator=collator,
        epsilon=3.0, delta=1e-5, batch_size=256,
    )
    trainer.train()
    trainer.engine.report("report.html")

``docs/integrations/transformers.md`` says what works and what is refused.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from quietgrad._files import replace_file
from quietgrad.accounting.ledger import Ledger
from quietgrad.capture.draws import preserve_randomness
from quietgrad.engine import PrivacyEngine
from quietgrad.engine.checkpoint import read_state
from quietgrad.errors import (
    EngineStateError,
    IntegrationError,
    MemoryExhaustedError,
    MissingExtraError,
)
from quietgrad.integrations.common import shares_samples
from quietgrad.integrations.losses import (
    PerSampleLoss,
    base_model,
    check_losses,
    default_loss,
)
from quietgrad.integrations.training_arguments import check_arguments
from quietgrad.sampling.samplers import resolve as resolve_sampler

try:
    from transformers import Seq2SeqTrainer, Trainer
    from transformers.trainer_utils import TrainOutput
except ImportError as error:
    raise MissingExtraError("transformers", "trainer") from error

from quietgrad.integrations.trainer_checks import (
    NO_SEARCH,
    STATE_NAME,
    check_accelerator,
    check_dataset,
    check_engine_options,
    check_instance,
    check_not_empty,
    check_script,
    find_checkpoint,
    find_ledger,
    list_datasets,
)
from quietgrad.integrations.trainer_loop import (
    EngineOptimizer,
    EpochCounter,
    TrainerBatch,
    TrainerLoader,
    broadcast_weights,
)

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object

_COMPARED = 8  # samples whose losses are computed beside each other and beside themselves
NOT_PRIVATE = "_not_private"
"""The end of the names under which losses of training samples are logged, if asked for."""


class PrivateTrainerMixin(_Base):
    """Makes a ``Trainer``, or a class derived from it, train with differential privacy.

    Put it in front: ``class PrivateMine(PrivateTrainerMixin, Mine)``.

    Args:
        args: Those of the Trainer, in its order.
        delta: Probability with which the guarantee may fail; below 1 / len(train_dataset).
        epsilon: Target for the whole training; the noise is calibrated to stay within it.
        batch_size: Expected number of samples of a step, on all processes together. By default that
            of the Trainer, ``per_device_train_batch_size`` times the number of processes. It runs
            through the model in parts of ``per_device_train_batch_size``.
        per_sample_loss: Function of ``(outputs, batch)``, the model's outputs and the collated
            batch with its labels, that returns one loss per sample. By default it follows from the
            class of the model (``quietgrad.integrations.losses``).
        ledger: Where releases are recorded, as for the engine; by default ``ledger.jsonl`` in
            ``args.output_dir``.
        log_training_loss: Log mean losses of training samples too, under names that end in
            ``_not_private``: no noise covers them.
        engine_options: Other options of ``quietgrad.PrivacyEngine``, such as ``{"clipping":
            "psac"}``, or ``{"noise_multiplier": 1.0}`` in place of ``epsilon``.
        kwargs: Those of the Trainer.
    """

    def __init__(
        self,
        *args: Any,
        delta: float,
        epsilon: float | None = None,
        batch_size: int | None = None,
        per_sample_loss: PerSampleLoss | None = None,
        ledger: Ledger | str | Path | None = None,
        log_training_loss: bool = False,
        engine_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # Before the Trainer acts on them, or fails in a way of its own.
        if (given := kwargs.get("args", next(iter(args[1:2]), None))) is not None:
            check_arguments(given)
        self._given_dataset = kwargs.get("train_dataset", next(iter(args[3:4]), None))
        check_dataset(self._given_dataset)
        check_script(type(self), kwargs, has_loss=per_sample_loss is not None)
        self._epsilon, self._delta, self._batch_size = epsilon, delta, batch_size
        self._loss, self._ledger_place = per_sample_loss, ledger
        own = type(self).per_sample_losses is not PrivateTrainerMixin.per_sample_losses
        self._has_default_loss = per_sample_loss is None and not own
        self._logs_loss = log_training_loss
        self._engine_options = check_engine_options(engine_options)
        self._engine: PrivacyEngine | None = None
        self._inner_optimizer: Optimizer | None = None
        self._checkpoint: Path | None = None
        self._last_loss = 0.0
        super().__init__(*args, **kwargs)
        check_arguments(self.args)
        check_accelerator(self)
        check_dataset(self.train_dataset)
        for dataset in list_datasets(kwargs.get("eval_dataset")):
            self._refuse_training_data(dataset)
        self._trained_model()
        self.add_callback(EpochCounter(lambda: self.engine.steps_per_epoch))
        if log_training_loss:
            warnings.warn(
                "log_training_loss=True: losses of training samples are logged and saved, under "
                f"names that end in {NOT_PRIVATE}. No noise covers them: do not publish them.",
                stacklevel=2,
            )

    @property
    def engine(self) -> PrivacyEngine:
        """The engine of the training that runs, or of the last one."""
        if self._engine is None:
            raise EngineStateError(
                "the trainer has no engine yet: trainer.train() makes it, when the model, the "
                "optimizer and the number of steps are known."
            )
        return self._engine

    # -- what is computed from samples ---------------------------------------------------------

    def per_sample_losses(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """One loss per sample, where ``compute_loss`` has one for the batch; may be overridden.

        Args:
            model: that is trained.
            inputs: a collated micro-batch, on the model's device.

        Returns:
            A tensor ``[B]``. No entry may depend on other samples of the micro-batch.
        """
        if self._loss is None:
            self._loss = default_loss(model, self.args.label_smoothing_factor)
        labels = self._labels(inputs)
        features = {name: value for name, value in inputs.items() if name not in labels}
        inner = base_model(model)
        if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
            shift = getattr(inner, "prepare_decoder_input_ids_from_labels", None)
            if shift is not None and "labels" in inputs and "decoder_input_ids" not in inputs:
                features["decoder_input_ids"] = shift(labels=inputs["labels"])
        return self._loss(model(**features), inputs)

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Clip and add up the gradients of all samples of a step; ``optimizer.step`` releases them.

        Returns:
            Zero: the loss of training samples is private. Their mean, if it was asked for.
        """
        if not isinstance(inputs, TrainerBatch):
            raise IntegrationError(
                "a batch for training does not come from the engine: a callback or a subclass "
                "replaced the data loader. Leave it, and pass engine_options={'sampling': ...} to "
                "draw otherwise."
            )
        total, count = 0.0, 0
        try:
            for content in inputs.micro_batches:
                model.train()
                losses = self._backward(model, self._prepare_inputs(content))
                if self._logs_loss:
                    total, count = total + float(losses.detach().sum()), count + len(losses)
        except MemoryExhaustedError as error:
            error.add_note("In a Trainer, physical_batch_size is per_device_train_batch_size.")
            raise
        self._last_loss = total / count if count else self._last_loss
        return torch.tensor(self._last_loss, device=self.args.device)

    def _backward(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        losses: list[Tensor] = []

        def compute() -> Tensor:
            with self.compute_loss_context_manager():
                losses.append(self.per_sample_losses(model, dict(inputs)))
            return losses[-1]

        # Inner-outer momentum runs the model at other weights, too.
        self.engine.backward(compute if self._engine_options.get("momentum") else compute())
        return losses[-1]

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> AbstractContextManager[Any]:
        """Mixed precision, for which accelerate would replace the forward of the model."""
        found: AbstractContextManager[Any] = self.accelerator.autocast()
        return found

    def _labels(self, inputs: Mapping[str, Any]) -> list[str]:
        names = [name for name in self.label_names if name in inputs]
        if not names and self.label_names:
            wanted = ", ".join(repr(name) for name in self.label_names)
            raise IntegrationError(
                f"the batch has no {wanted}; it has {', '.join(sorted(inputs))}. Add the labels to "
                "the data set or make them in the data collator, or name them in "
                "TrainingArguments(label_names=[...])."
            )
        return names

    # -- the parts of the Trainer's loop -------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """The engine's batches. It is made here, of the model that is about to be trained."""
        if self.train_dataset is None:
            raise IntegrationError("training needs a data set: pass train_dataset=.")
        dataset, collate = self._dataset_and_collator()
        self._make_engine(self._trained_model(), dataset, collate)
        return TrainerLoader(self.engine, dataset)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], None]:
        """The next batch. How many labels it has is not counted: that would be private."""
        batch = next(epoch_iterator, None)
        return ([] if batch is None else [batch]), None

    def get_total_train_batch_size(self, args: Any) -> int:
        """The expected number of samples of a step."""
        if self._batch_size is not None:
            return self._batch_size
        return int(args.per_device_train_batch_size * args.world_size)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: the number of tokens says who was drawn."""
        return 0

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log epsilon where the Trainer logs the loss of training samples."""
        if ("loss" in logs and "learning_rate" in logs) or "train_loss" in logs:
            for name in ("loss", "train_loss"):
                value = logs.pop(name, None)
                if value is not None and self._logs_loss:
                    logs[f"{name}{NOT_PRIVATE}"] = value
            for name in ("grad_norm", "total_flos"):
                logs.pop(name, None)
            logs["epsilon"] = self.engine.epsilon()
        super().log(logs, *args, **kwargs)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> None:
        """There is none: the engine leaves no gradients behind."""

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Gradients of samples are clipped, not their sum."""

    # -- evaluation ----------------------------------------------------------------------------

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As the Trainer does; the training data is refused."""
        for dataset in list_datasets(self.eval_dataset if eval_dataset is None else eval_dataset):
            self._refuse_training_data(dataset)
        return super().evaluate(eval_dataset, *args, **kwargs)

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """As the Trainer does; the training data is refused."""
        self._refuse_training_data(test_dataset)
        return super().predict(test_dataset, *args, **kwargs)

    def _refuse_training_data(self, dataset: Any) -> None:
        if any(shares_samples(own, dataset) for own in (self._given_dataset, self.train_dataset)):
            raise IntegrationError(
                "the evaluation is to run on samples of the training data, whose losses and "
                "metrics are private and would be logged: evaluate on samples that are not trained "
                "on."
            )

    # -- beginning, going on, ending -----------------------------------------------------------

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train, or go on from a checkpoint, as the Trainer does."""
        if args or kwargs.get("trial") is not None:
            raise IntegrationError(NO_SEARCH)
        check_instance(self)
        self._checkpoint = find_checkpoint(str(self.args.output_dir), resume_from_checkpoint)
        if self._checkpoint is None and self._engine is not None:
            raise EngineStateError(
                f"this trainer has trained {self.engine.steps_taken} steps (epsilon "
                f"{self.engine.epsilon():.4g}): go on with train(resume_from_checkpoint=True), or "
                "make another trainer with ledger=trainer.engine.ledger, so that both count."
            )
        place = None if self._checkpoint is None else str(self._checkpoint)
        try:
            found = super().train(place, **kwargs)
        finally:
            if self._engine is not None:
                self._engine.detach()
        loss = found.training_loss if self._logs_loss else math.nan
        return TrainOutput(found.global_step, loss, found.metrics)

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: every trial is a release."""
        raise IntegrationError(NO_SEARCH)

    def _trained_model(self) -> nn.Module:
        """The model, which accelerate is told to leave as it is: the engine must see it."""
        assert self.model is not None
        self.model._is_accelerate_prepared = True  # type: ignore[assignment]
        return self.model

    def _make_engine(self, model: nn.Module, dataset: Any, collate: Any) -> None:
        check_not_empty(dataset)
        self._check_losses(model, dataset, collate)
        ledger: Ledger | str | Path
        if self._engine is not None:
            ledger = self._engine.ledger
        elif self._ledger_place is not None:
            ledger = self._ledger_place
        else:
            ledger = find_ledger(str(self.args.output_dir), self._checkpoint)
        broadcast_weights(model)
        if self._inner_optimizer is None or self.model_init is not None:
            self.create_optimizer()
            self._inner_optimizer = self.optimizer
        assert self._inner_optimizer is not None
        batch_size = self.get_total_train_batch_size(self.args)
        self._engine = PrivacyEngine(
            model,
            self._inner_optimizer,
            dataset,
            batch_size=batch_size,
            physical_batch_size=min(batch_size, self.args.per_device_train_batch_size),
            epsilon=self._epsilon,
            delta=self._delta,
            epochs=self._count_epochs(len(dataset), batch_size),
            ledger=ledger,
            collate_fn=collate,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.accelerator.is_available(),
            **self._engine_options,
        )
        self.optimizer = EngineOptimizer(self._engine, self._inner_optimizer)

    def _count_epochs(self, samples: int, batch_size: int) -> int:
        if self.args.max_steps <= 0:
            return math.ceil(self.args.num_train_epochs)
        sampler = resolve_sampler(self._engine_options.get("sampling", "poisson"))
        return math.ceil(self.args.max_steps / sampler.bind(samples, batch_size).length)

    def _dataset_and_collator(self) -> tuple[Any, Any]:
        """Without the columns that the model does not take, as the Trainer has it."""
        dataset: Any = self.train_dataset
        if hasattr(dataset, "column_names") and hasattr(dataset, "remove_columns"):
            return self._remove_unused_columns(dataset, description="training"), self.data_collator
        return dataset, self._get_collator_with_removed_columns(self.data_collator, "training")

    def _check_losses(self, model: nn.Module, dataset: Any, collate: Any) -> None:
        """Refuse losses that depend on other samples, and those of another model."""
        count = min(_COMPARED, len(dataset), self.args.per_device_train_batch_size)
        rows = [dataset[place * len(dataset) // count] for place in range(count)]
        is_exact = self.accelerator.mixed_precision == "no"
        tolerance = 1e-3 if is_exact and _dtype_of(model) == torch.float32 else 3e-2

        def losses_of(elements: list[Any]) -> Tensor:
            return self.per_sample_losses(model, dict(self._prepare_inputs(collate(elements))))

        was_training = model.training
        try:
            with preserve_randomness(), torch.no_grad(), self.compute_loss_context_manager():
                model.eval()
                check_losses(losses_of, rows, tolerance=tolerance)
                if self._has_default_loss:
                    self._require_loss_of_the_model(model, rows[0], collate, tolerance)
        finally:
            model.train(was_training)

    def _require_loss_of_the_model(
        self, model: nn.Module, row: Any, collate: Any, tolerance: float
    ) -> None:
        """Refuse a model whose own loss of a single sample is another one than the default."""
        inputs = self._prepare_inputs(collate([row]))
        found, own = self.per_sample_losses(model, dict(inputs)), model(**inputs)
        value = own.get("loss") if isinstance(own, Mapping) else own[0]
        expected = float(value) if isinstance(value, Tensor) and value.numel() == 1 else math.nan
        is_same = math.isclose(float(found), expected, rel_tol=tolerance, abs_tol=tolerance)
        is_smoothed = self.args.label_smoothing_factor > 0  # which the Trainer does, not the model
        if math.isfinite(expected) and not is_smoothed and not is_same:
            raise IntegrationError(
                f"{type(base_model(model)).__name__} has another loss than {self._loss} computes "
                "from its logits (that of a single sample differs: other parts are added, or "
                "positions are counted otherwise). Pass per_sample_loss=, a function of (outputs, "
                "batch) that returns one loss per sample."
            )

    # -- checkpoints ---------------------------------------------------------------------------

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """The engine knows its place in the data: no batches are skipped."""
        return super()._init_training_state(*args, **kwargs)[0], 0

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        state = self.engine.state_dict(weights=False)  # the Trainer saves them
        if self.args.should_save:
            replace_file(Path(output_dir, STATE_NAME), lambda stream: torch.save(state, stream))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.engine.load_state_dict(read_state(Path(checkpoint, STATE_NAME)))


def _dtype_of(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


class PrivateTrainer(PrivateTrainerMixin, Trainer):
    """``transformers.Trainer`` with differential privacy; see :class:`PrivateTrainerMixin`."""


class PrivateSeq2SeqTrainer(PrivateTrainerMixin, Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer`` with differential privacy."""
