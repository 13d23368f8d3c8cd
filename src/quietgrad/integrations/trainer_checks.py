"""Whether a script for ``transformers.Trainer`` can be made private, and where a run goes on."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import transformers
from torch.utils.data import IterableDataset
from transformers import Trainer
from transformers.trainer_utils import get_last_checkpoint

from quietgrad.accounting.ledger import Ledger
from quietgrad.engine import PrivacyEngine
from quietgrad.errors import EngineStateError, IntegrationError, LedgerError

STATE_NAME = "privacy_engine.pt"
"""What a checkpoint holds of the engine, beside the files of the Trainer."""
LEDGER_NAME = "ledger.jsonl"
"""The ledger in the Trainer's output folder."""

NO_SEARCH = (
    "a hyperparameter search trains on the same data in every trial, and each of them counts: make "
    "one trainer for each trial with ledger= the same file; or draw the number of trials at random "
    "and account for the best of them with quietgrad.accounting.tuned."
)
_OF_THE_TRAINER = (
    "model", "optimizer", "dataset", "batch_size", "delta", "epochs", "steps", "epsilon", "ledger",
    "physical_batch_size", "collate_fn", "num_workers", "pin_memory", "pipeline",
)  # fmt: skip
_OF_A_CHECKPOINT = ("trainer_state.json", "optimizer.pt", "scheduler.pt", STATE_NAME)
# Of the Trainer, which private training calls or replaces.
_NEEDED = (
    "_clip_grad_norm", "_get_collator_with_removed_columns", "_get_grad_norm",
    "_init_training_state", "_load_optimizer_and_scheduler", "_remove_unused_columns",
    "_save_optimizer_and_scheduler", "autocast_smart_context_manager", "floating_point_ops",
    "get_batch_samples", "get_total_train_batch_size",
)  # fmt: skip
# Of the user's own Trainer: they would not run, or draw and step otherwise.
_REPLACED = (
    "_get_train_sampler", "get_batch_samples", "get_train_dataloader", "training_step",
)  # fmt: skip
# Trainers of TRL whose loss is the model's.
_WITH_LOSS_OF_MODEL = ("SFTTrainer",)


def check_script(kind: type, options: Mapping[str, Any], *, has_loss: bool) -> None:
    """Refuse a Trainer whose own methods would not run, and losses of the whole batch.

    Args:
        kind: the class of the trainer.
        options: for the Trainer.
        has_loss: whether a loss per sample was passed.
    """
    lacking = [name for name in _NEEDED if not hasattr(Trainer, name)]
    if lacking:
        raise IntegrationError(
            f"transformers {transformers.__version__} has no Trainer.{lacking[0]}, which private "
            "training replaces: install a release that quietgrad was tested with "
            "(constraints.txt)."
        )
    if options.get("compute_loss_func") is not None:
        raise IntegrationError(
            "compute_loss_func= returns one loss for the batch, of which no sample's gradient can "
            "be clipped: pass per_sample_loss=, a function of (outputs, batch) that returns one "
            "loss per sample."
        )
    own = overrides(kind, "compute_loss")
    if own is not None and not has_loss and overrides(kind, "per_sample_losses") is None:
        raise IntegrationError(
            f"{own.__name__} overrides compute_loss, which returns one loss for the batch: "
            "override per_sample_losses(model, inputs), which returns one loss per sample, or pass "
            "per_sample_loss=."
        )
    of_trl = next((base for base in kind.__mro__ if "compute_loss" in vars(base)), Trainer)
    is_other = of_trl.__module__.startswith("trl.") and of_trl.__name__ not in _WITH_LOSS_OF_MODEL
    if is_other and not has_loss and not _has_own_losses(kind):
        raise IntegrationError(
            f"{of_trl.__name__} computes its loss itself, as one number of the whole batch: "
            "override per_sample_losses(model, inputs), which returns one loss per sample, or pass "
            "per_sample_loss=. For SFT and DPO there is quietgrad.integrations.trl."
        )
    for name in _REPLACED:
        if own := overrides(kind, name):
            raise IntegrationError(
                f"{own.__name__} overrides {name}, and who takes part in a step must be drawn as "
                "the accountant was told: leave it out, or pass engine_options={'sampling': ...}."
            )


def _has_own_losses(kind: type) -> bool:
    """Whether one loss per sample is computed by something else than the default of all models."""
    owner = next((base for base in kind.__mro__ if "per_sample_losses" in vars(base)), kind)
    return owner.__name__ != "PrivateTrainerMixin"


def check_instance(trainer: Trainer) -> None:
    """Refuse methods that were replaced in the trainer itself: they would not run, or draw."""
    for name in ("compute_loss", *_REPLACED):
        if name in vars(trainer):
            raise IntegrationError(
                f"trainer.{name} was replaced: private training computes one loss per sample, of "
                "samples that the engine draws. Pass per_sample_loss=, or override "
                "per_sample_losses(model, inputs) in a class of your own."
            )


def overrides(kind: type, name: str) -> type | None:
    """The first class that has this method and is neither quietgrad's nor a framework's."""
    known = ("quietgrad", "transformers", "trl")
    for base in kind.__mro__:
        if name in base.__dict__ and base.__module__.split(".")[0] not in known:
            return base
    return None


def check_engine_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those of the engine that do not follow from the Trainer's arguments."""
    known = set(inspect.signature(PrivacyEngine).parameters) - set(_OF_THE_TRAINER)
    for name in options or {}:
        if name in _OF_THE_TRAINER:
            raise IntegrationError(
                f"engine_options has {name!r}, which follows from other arguments: pass epsilon=, "
                "delta=, batch_size= and ledger= to the trainer, and the rest in "
                "TrainingArguments."
            )
        if name not in known:
            raise IntegrationError(
                f"engine_options has {name!r}, which is no option of quietgrad.PrivacyEngine: "
                f"expected some of {', '.join(sorted(known))}."
            )
    return dict(options or {})


def check_accelerator(trainer: Trainer) -> None:
    """Refuse what was set by a launcher, or by the configuration file of accelerate."""
    args, accelerator = trainer.args, trainer.accelerator
    if args.n_gpu > 1:
        raise IntegrationError(
            f"{args.n_gpu} devices are visible to one process, and the Trainer would wrap the "
            "model in DataParallel: launch one process per device with torchrun, or make one "
            "visible (CUDA_VISIBLE_DEVICES=0)."
        )
    for name, is_on in (
        ("DeepSpeed", trainer.is_deepspeed_enabled),
        ("FSDP", trainer.is_fsdp_enabled),
        ("a model in parts on several devices", trainer.is_model_parallel),
    ):
        if is_on:
            raise IntegrationError(
                f"{name} is switched on, by the model or in the configuration of accelerate: "
                "launch ordinary data parallel training with torchrun instead."
            )
    precision = accelerator.mixed_precision
    if precision not in ("no", "bf16") or getattr(accelerator, "scaler", None) is not None:
        raise IntegrationError(
            f"mixed precision {precision!r} is switched on in the configuration of accelerate, "
            "with a GradScaler that follows the data: pass bf16=True, or train in float32."
        )


def check_dataset(dataset: Any) -> None:
    """Refuse a stream, from which no sample can be drawn."""
    if dataset is None:
        return
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        raise IntegrationError(
            f"train_dataset is a {type(dataset).__name__}, a stream without a length: every sample "
            "must be within reach in every step. Make it map-style: load_dataset() without "
            "streaming=True, datasets.Dataset.from_generator(...), a list, or a torch Dataset with "
            "__len__ and __getitem__ (over a memmap, if it is large)."
        )


def check_not_empty(dataset: Any) -> None:
    """Refuse a data set of nothing, of which no loss can be tried."""
    if not len(dataset):
        raise IntegrationError(f"train_dataset ({type(dataset).__name__}) is empty.")


def list_datasets(datasets: Any) -> list[Any]:
    """Those of a dictionary, or the one; names of them are left out."""
    found = datasets.values() if isinstance(datasets, Mapping) else [datasets]
    return [each for each in found if not isinstance(each, str)]


def find_checkpoint(output_dir: str, wanted: str | bool | None) -> Path | None:
    """The folder to go on from, if it is whole.

    Args:
        output_dir: where checkpoints are.
        wanted: one of them, True for the last, or nothing.
    """
    if not wanted:
        return None
    if wanted is True:
        last = get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None  # type: ignore[no-untyped-call]
        if last is None:
            raise EngineStateError(
                f"{output_dir} has no checkpoint to go on from: call train() to begin. If "
                f"{LEDGER_NAME} is there, of a run that ended before its first checkpoint, pass "
                "ledger= that file, so that its steps count."
            )
        wanted = str(last)
    place = Path(wanted)
    if lacking := _lacking(place):
        whole = [
            each.name for each in sorted(place.parent.glob("checkpoint-*")) if not _lacking(each)
        ]
        advice = f" Whole ones beside it: {', '.join(whole)}." if whole else ""
        raise EngineStateError(
            f"{place} cannot be gone on from: it has no {', '.join(lacking)}. It was saved by "
            "another Trainer, with save_only_model=True, or the run was killed meanwhile."
            f"{advice} The ledger still has every step."
        )
    return place


def _lacking(place: Path) -> list[str]:
    return [name for name in _OF_A_CHECKPOINT if not (place / name).is_file()]


def find_ledger(output_dir: str, checkpoint: Path | None) -> Path:
    """The ledger's file where none was named: that of the run that goes on, or a new one."""
    place = Path(output_dir, LEDGER_NAME)
    if checkpoint is None and place.exists():
        steps = Ledger.open(place).steps
        raise LedgerError(
            f"{place} holds {steps} steps of an earlier run. To go on with it, call "
            "train(resume_from_checkpoint=True). For a run of its own pass another output_dir; if "
            "both are published, or if the first ended before a checkpoint, pass ledger= this "
            "file, so that both count."
        )
    if checkpoint is not None and not place.exists():
        beside = checkpoint.parent / LEDGER_NAME
        found = f"ledger={str(beside)!r}" if beside.exists() else "ledger= the place where it is"
        raise LedgerError(
            f"{place} is not there, so that steps after {checkpoint.name} are not known: pass "
            f"{found}. If it is lost, pass the path of a new one, knowing that steps after the "
            "checkpoint are not counted."
        )
    return place
