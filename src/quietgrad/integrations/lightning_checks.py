"""What a Lightning script may use beside ``PrivateStrategy``, and what it is told of the rest.

Lightning is not imported here: its two packages have the same classes under two names, so classes
are known by their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from quietgrad.errors import IntegrationError
from quietgrad.integrations.common import Argument, attribute, refuse_arguments
from quietgrad.sampling.samplers import population

LABEL = "not_private/"
"""Names that begin like this say themselves what they are, and may be logged."""
EPSILON = "epsilon"


def _precision(trainer: Any) -> str | None:
    plugin = trainer.precision_plugin
    found = type(plugin).__name__, getattr(plugin, "precision", None)
    return None if found in _PRECISIONS else f"precision={found[1]!r}, by {found[0]}"


_PRECISIONS = {
    ("Precision", "32-true"),
    ("DoublePrecision", "64-true"),
    ("HalfPrecision", "bf16-true"),
    ("MixedPrecision", "bf16-mixed"),
}


def _accelerator(trainer: Any) -> str | None:
    kind = type(trainer.accelerator).__name__
    return f"accelerator={kind}()" if kind.startswith("XLA") else None


def _sync_batchnorm(trainer: Any) -> str | None:
    is_used = getattr(trainer.strategy, "_layer_sync", None) is not None
    return "sync_batchnorm=True" if is_used else None


_CLIPPING = (
    "the gradient of every sample is clipped already, and what is clipped after the noise was "
    "added is another gradient. Leave it out; PrivateStrategy(clipping=, radius=) sets how samples "
    "are clipped"
)

TRAINER_ARGUMENTS = {
    "accelerator": Argument("in part", "no TPUs; GPUs were not tried", _accelerator),
    "strategy": Argument("works", "`PrivateStrategy(...)`; others are not private"),
    "devices": Argument("works", "several processes train data parallel"),
    "num_nodes": Argument(
        "refused", "several machines were not tried. Use devices= of one", attribute("num_nodes", 1)
    ),
    "precision": Argument(
        "in part",
        "a GradScaler follows the data, and other types were not tried. Use 32-true, 64-true, "
        "bf16-mixed or bf16-true",
        _precision,
    ),
    "logger": Argument("works", "gets epsilon, and what you log of validation data"),
    "callbacks": Argument("works", "most do; see the next table"),
    "fast_dev_run": Argument("works", "its steps are counted like others"),
    "max_epochs": Argument("works", "the noise is planned for it"),
    "min_epochs": Argument("works", "training ends with the budget all the same"),
    "max_steps": Argument("works", "the noise is planned for it"),
    "min_steps": Argument("works", "training ends with the budget all the same"),
    "max_time": Argument("works", "fewer steps than planned spend less"),
    "limit_train_batches": Argument("works", "an epoch of Lightning has fewer steps"),
    "limit_val_batches": Argument("works"),
    "limit_test_batches": Argument("works"),
    "limit_predict_batches": Argument("works"),
    "overfit_batches": Argument(
        "refused",
        "the same samples in every step are not a random draw of the data. Train on a small public "
        "data set to see whether a model can learn",
        attribute("overfit_batches", 0),
    ),
    "val_check_interval": Argument("works"),
    "check_val_every_n_epoch": Argument("works"),
    "num_sanity_val_steps": Argument("works"),
    "log_every_n_steps": Argument("works", "how often epsilon is computed and logged"),
    "enable_checkpointing": Argument("works"),
    "enable_progress_bar": Argument("works", "shows epsilon"),
    "enable_model_summary": Argument("harmless"),
    "accumulate_grad_batches": Argument(
        "refused",
        "the samples of a step are drawn at once. Give the DataLoader the batch size of a whole "
        "step; PrivateStrategy(physical_batch_size=) says how many go through the model at once",
        attribute("accumulate_grad_batches", 1),
    ),
    "gradient_clip_val": Argument("refused", _CLIPPING, attribute("gradient_clip_val", 0)),
    "gradient_clip_algorithm": Argument("refused", _CLIPPING, attribute("gradient_clip_algorithm")),
    "deterministic": Argument("works", "noise and sampling stay secret"),
    "benchmark": Argument("harmless"),
    "inference_mode": Argument("harmless"),
    "use_distributed_sampler": Argument("harmless", "validation only; training has its own draws"),
    "profiler": Argument("harmless", "its figures are not covered: times tell of batch sizes"),
    "detect_anomaly": Argument("works"),
    "barebones": Argument("works", "epsilon is not logged then"),
    "plugins": Argument("works", "precisions as above; checkpoint and cluster plugins"),
    "sync_batchnorm": Argument(
        "refused",
        "BatchNorm mixes samples. Replace it: quietgrad.nn.harden(model)",
        _sync_batchnorm,
    ),
    "reload_dataloaders_every_n_epochs": Argument(
        "refused",
        "the engine is bound to one data set. Leave it out: every step draws anew",
        attribute("reload_dataloaders_every_n_epochs", 0),
    ),
    "default_root_dir": Argument("harmless"),
    "enable_autolog_hparams": Argument("harmless"),
    "model_registry": Argument("harmless"),
}

_NO_TRIALS = (
    "its trials train on the private data, and choose by what they see. Choose on public data, or "
    "count the trials (quietgrad.accounting.tuned)"
)
_SAME_PARAMETERS = (
    "the parameters that are trained must stay the same. Freeze the others with "
    "requires_grad_(False) before fit(); to train more of them later, call fit() again"
)

CALLBACKS = {
    "BackboneFinetuning": Argument("refused", _SAME_PARAMETERS),
    "BaseFinetuning": Argument("refused", _SAME_PARAMETERS),
    "BasePredictionWriter": Argument("harmless"),
    "BatchSizeFinder": Argument("refused", _NO_TRIALS),
    "Callback": Argument("works", "your own; it sees no losses and no gradients"),
    "Checkpoint": Argument("works"),
    "DeviceStatsMonitor": Argument("harmless", "memory tells of batch sizes"),
    "EMAWeightAveraging": Argument("works", "averages of released weights cost nothing"),
    "EarlyStopping": Argument("works", "by a metric of validation data, or by epsilon"),
    "GradientAccumulationScheduler": TRAINER_ARGUMENTS["accumulate_grad_batches"],
    "LambdaCallback": Argument("works"),
    "LearningRateFinder": Argument("refused", _NO_TRIALS),
    "LearningRateMonitor": Argument("works"),
    "ModelCheckpoint": Argument("works", "`{epsilon:.2f}` may be in the file name"),
    "ModelPruning": Argument("refused", "masks change the parameters. Prune after training"),
    "ModelSummary": Argument("harmless"),
    "OnExceptionCheckpoint": Argument("works", "the step under way is dropped"),
    "ProgressBar": Argument("harmless"),
    "RichModelSummary": Argument("harmless"),
    "RichProgressBar": Argument("harmless"),
    "SpikeDetection": Argument(
        "refused", "it decides by training losses, which are private. Watch a validation metric"
    ),
    "StochasticWeightAveraging": Argument(
        "refused",
        "it runs a pass over the training data for BatchNorm. Use EMAWeightAveraging, or "
        "WeightAveraging",
    ),
    "TQDMProgressBar": Argument("harmless"),
    "ThroughputMonitor": Argument(
        "refused", "it logs how many samples were drawn, which is private. Use LearningRateMonitor"
    ),
    "Timer": Argument("works"),
    "WeightAveraging": Argument("works", "averages of released weights cost nothing"),
}

_NO_GRADIENTS = (
    "samples are back-propagated and clipped by the engine, and there is no gradient of a batch to "
    "look at. Remove it"
)
HOOKS = {
    "backward": _NO_GRADIENTS,
    "on_before_backward": _NO_GRADIENTS,
    "on_after_backward": _NO_GRADIENTS,
    "on_before_optimizer_step": _NO_GRADIENTS,
    "configure_gradient_clipping": _CLIPPING,
    "on_before_batch_transfer": (
        "it is called before the samples of a step are drawn. Use on_after_batch_transfer, which "
        "gets each micro-batch, or the DataLoader's collate_fn"
    ),
    "tbptt_split_batch": (
        "parts of a sequence would be clipped and released one by one. Pass whole sequences, or "
        "cut them into samples of the data set"
    ),
}


def check_trainer(trainer: Any, framework: Any) -> None:
    """Refuse arguments, callbacks and hooks that would void the guarantee or have no effect.

    Args:
        trainer: about to fit a module.
        framework: the package that it is of.

    Raises:
        IntegrationError: one of them is used.
    """
    refuse_arguments(trainer, framework.Trainer, TRAINER_ARGUMENTS)
    for callback in trainer.callbacks:
        _refuse_callback(callback)
        _refuse_hooks(callback, framework.Callback)
    _refuse_hooks(trainer.lightning_module, framework.LightningModule)
    if trainer.datamodule is not None:
        _refuse_hooks(trainer.datamodule, framework.LightningDataModule)
    _check_module(trainer.lightning_module)


def _refuse_callback(callback: Any) -> None:
    for base in type(callback).__mro__:
        known = CALLBACKS.get(base.__name__)
        if known is not None and ".callbacks." in f"{base.__module__}.":
            if known.verdict == "refused" or base.__name__ == "GradientAccumulationScheduler":
                raise IntegrationError(f"the callback {type(callback).__name__}: {known.note}.")
            return


def _refuse_hooks(owner: Any, base: type) -> None:
    for name, note in HOOKS.items():
        own = vars(owner).get(name, getattr(type(owner), name, None))
        if own is not None and own is not getattr(base, name, None):
            raise IntegrationError(f"{type(owner).__name__}.{name}: {note}.")


def _check_module(module: Any) -> None:
    name = type(module).__name__
    if getattr(module, "truncated_bptt_steps", 0):
        raise IntegrationError(f"{name}.truncated_bptt_steps: {HOOKS['tbptt_split_batch']}.")
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        raise IntegrationError(
            f"{name}.training_step(dataloader_iter): the engine draws the samples of each step. "
            "Take training_step(self, batch, batch_idx), which gets one micro-batch at a time."
        )


def check_optimizers(optimizers: list[Any]) -> Any:
    """The only optimizer.

    Raises:
        IntegrationError: there is none, or several.
    """
    if len(optimizers) != 1:
        raise IntegrationError(
            f"configure_optimizers returned {len(optimizers)} optimizers: a step is released by "
            "one. Give it parameter groups of different options, "
            "torch.optim.AdamW([{'params': ..., 'lr': ...}, ...])."
        )
    return optimizers[0]


@dataclass(frozen=True)
class LoaderSource:
    """What a training loader says of the data."""

    dataset: Dataset[Any]
    batch_size: int
    collate_fn: Callable[[list[Any]], Any] | None
    num_workers: int
    pin_memory: bool


def read_loader(loader: Any) -> LoaderSource:
    """What the engine takes over of a loader; samples are drawn by the engine itself.

    Raises:
        IntegrationError: it is not a DataLoader, or draws in a way of its own.
        TypeError: samples cannot be drawn from its data set.
    """
    if not isinstance(loader, DataLoader):
        raise IntegrationError(
            f"the training loader is a {type(loader).__name__}: the engine must draw the samples "
            "itself. Return one torch.utils.data.DataLoader over a map-style data set (a list of "
            "elements, or anything with __len__ and __getitem__)."
        )
    population(loader.dataset)
    if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
        raise IntegrationError(
            "the training DataLoader has a batch_sampler= of its own, or batch_size=None: the "
            "engine draws the samples of each step. Pass batch_size=, the expected number of "
            "samples of a step, and PrivateStrategy(sampling=) for another way to draw."
        )
    _check_sampler(loader.sampler, len(loader.dataset))  # type: ignore[arg-type]
    if loader.worker_init_fn is not None:
        raise IntegrationError(
            "the training DataLoader has a worker_init_fn=: it would not be called. Do what it "
            "does in the data set."
        )
    has_own = loader.collate_fn is not default_collate
    return LoaderSource(
        loader.dataset,
        loader.batch_size,
        loader.collate_fn if has_own else None,
        loader.num_workers,
        loader.pin_memory,
    )


def _check_sampler(sampler: Any, samples: int) -> None:
    kind = type(sampler)
    is_plain = kind in (SequentialSampler, DistributedSampler)
    if kind is RandomSampler:
        is_plain = not sampler.replacement and sampler.num_samples == samples
    if not is_plain:
        raise IntegrationError(
            f"the training DataLoader draws with a {kind.__name__}: the accounting holds for the "
            "engine's own sampling only. Pass shuffle=True and no sampler, and "
            "PrivateStrategy(sampling=) for another way to draw."
        )


def check_logged(name: str, hook: str, public: Iterable[str]) -> None:
    """Refuse a metric of a training hook unless it is public, or says that it is not private.

    Raises:
        IntegrationError: nobody said that it may be published.
    """
    if name in (EPSILON, *public) or name.startswith(LABEL):
        return
    raise IntegrationError(
        f"self.log({name!r}) in {hook}: what is computed from training samples (losses, "
        "accuracies, norms of gradients) is private, and the guarantee does not cover it. Log "
        "metrics of validation data in validation_step. If the value is public, such as a learning "
        f"rate, pass PrivateStrategy(public_metrics=[{name!r}]). To log it all the same, call it "
        f"{LABEL + name!r}, and publish neither it nor what is chosen by it."
    )
