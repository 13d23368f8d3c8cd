"""Losses with one entry per sample, from the logits of models of transformers.

A model of transformers returns the mean loss of its batch, of which no sample's gradient can be
clipped. These compute what the model would return for each sample in a batch of its own. All are
functions of ``(outputs, batch)``: what the model returned, and what was collated, with its labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad.errors import IntegrationError, LossError, SampleMixingError

PerSampleLoss = Callable[[Any, Mapping[str, Any]], Tensor]
"""From the model's outputs and the batch with its labels: one loss per sample, ``[B]``."""

IGNORED = -100
"""The label of positions that do not count, as everywhere in transformers."""


@dataclass(frozen=True)
class SequenceClassification:
    """Of texts, images or sounds, from ``logits [B, C]``; also several labels, and regression.

    Attributes:
        class_weights: factor on the loss of each class. Public constants: a weight that is computed
            from the training data is not covered by the guarantee.
        label_smoothing: share of the target that is spread over all classes.
        problem_type: ``"single_label_classification"``, ``"multi_label_classification"`` or
            ``"regression"``. By default it follows from the labels: whole numbers are classes.
    """

    class_weights: Sequence[float] | None = None
    label_smoothing: float = 0.0
    problem_type: str | None = None

    def __post_init__(self) -> None:
        _check_constants(self.class_weights, self.label_smoothing)

    def __call__(self, outputs: Any, batch: Mapping[str, Any]) -> Tensor:
        """One loss per sample."""
        logits, labels = read_output(outputs, "logits").float(), read_label(batch, "labels")
        kind = self.problem_type or _kind_of(logits, labels)
        if kind == "single_label_classification":
            return _cross_entropy(logits, labels.view(-1), self.class_weights, self.label_smoothing)
        if self.class_weights is not None or self.label_smoothing:
            raise IntegrationError(
                f"class weights and label smoothing are for one class per sample, and this is "
                f"{kind}: pass a per_sample_loss of your own"
            )
        targets = labels.to(logits.dtype).view(logits.shape)
        element_wise = F.mse_loss if kind == "regression" else F.binary_cross_entropy_with_logits
        return element_wise(logits, targets, reduction="none").flatten(1).mean(1)


@dataclass(frozen=True)
class Tokens:
    """Mean over the labelled positions of each sample, from ``logits [B, T, C]``.

    For token classification, masked language models and sequence-to-sequence models; with
    ``shift`` for causal language models, whose logits are for the next token. A sample in which no
    position is labelled has the loss zero.

    Attributes:
        shift: whether the logits of a position are for the label of the next one.
        class_weights: factor on the loss of each class, divided by their sum over the positions of
            the sample. Public constants.
        label_smoothing: share of the target that is spread over all classes.
    """

    shift: bool = False
    class_weights: Sequence[float] | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        _check_constants(self.class_weights, self.label_smoothing)

    def __call__(self, outputs: Any, batch: Mapping[str, Any]) -> Tensor:
        """One loss per sample."""
        logits, labels = read_output(outputs, "logits"), read_label(batch, "labels")
        if logits.shape[:2] != labels.shape:
            raise LossError(
                f"logits of shape {list(logits.shape)} and labels of shape {list(labels.shape)} do "
                "not have the same positions: pass a per_sample_loss= for this model"
            )
        if self.shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        losses = _cross_entropy(logits.float().mT, labels, self.class_weights, self.label_smoothing)
        counts = labels.ne(IGNORED).to(losses.dtype)
        if self.class_weights is not None:
            weights = losses.new_tensor(list(self.class_weights))
            counts = counts * weights[labels.clamp(min=0)]
        totals = counts.sum(1)
        return losses.sum(1) / totals.masked_fill(totals == 0, 1)


@dataclass(frozen=True)
class QuestionAnswering:
    """Of answers that are spans: the mean of the losses of their start and of their end.

    Padded positions (``attention_mask``) get no probability. In the model's own loss they do, so
    that it changes with the longest sample of the batch.
    """

    def __call__(self, outputs: Any, batch: Mapping[str, Any]) -> Tensor:
        """One loss per sample."""
        mask = batch.get("attention_mask")
        losses = []
        for end in ("start", "end"):
            logits = read_output(outputs, f"{end}_logits").float()
            length = logits.shape[1]
            positions = read_label(batch, f"{end}_positions").view(-1).clamp(0, length)
            if mask is not None:
                logits = logits.masked_fill(mask == 0, torch.finfo(logits.dtype).min)
                # An answer that was cut off counts for nothing, however far its sample is padded.
                place = positions.clamp(max=length - 1).unsqueeze(1)
                positions = positions.masked_fill(mask.gather(1, place).squeeze(1) == 0, length)
            losses.append(F.cross_entropy(logits, positions, reduction="none", ignore_index=length))
        return (losses[0] + losses[1]) / 2


def read_output(outputs: Any, name: str) -> Tensor:
    """A tensor that the model returned.

    Raises:
        IntegrationError: the model returns something else.
    """
    found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
    if not isinstance(found, Tensor):
        kind = type(outputs).__name__
        raise IntegrationError(
            f"the model returned no {name!r} ({kind}), from which the losses of its samples could "
            "be computed: pass per_sample_loss=, a function of (outputs, batch) that returns one "
            "loss per sample"
        )
    return found


def read_label(batch: Mapping[str, Any], name: str) -> Tensor:
    """The labels of that name.

    Raises:
        IntegrationError: the batch has none.
    """
    found = batch.get(name)
    if not isinstance(found, Tensor):
        raise IntegrationError(
            f"the batch has no {name!r}; it has {', '.join(sorted(batch)) or 'nothing'}. Add the "
            "column to the data set or make it in the data collator, name it in "
            "TrainingArguments(label_names=[...]), or pass per_sample_loss="
        )
    return found


def default_loss(model: nn.Module, label_smoothing: float = 0.0) -> PerSampleLoss:
    """The loss of this model's task, by its class.

    Args:
        model: one of transformers, perhaps with adapters of PEFT.
        label_smoothing: share of the target that is spread over all classes.

    Raises:
        IntegrationError: its task is not known, or its loss has other parts.
    """
    from transformers.models.auto import modeling_auto as auto

    inner = base_model(model)
    config, name = getattr(inner, "config", None), type(inner).__name__

    def is_for(*tasks: str) -> bool:
        tables = [getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}) for task in tasks]
        entries = [entry for table in tables for entry in table.values()]
        return any(
            name == entry or (isinstance(entry, tuple) and name in entry) for entry in entries
        )

    if is_for("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION"):
        kind = getattr(config, "problem_type", None)
        if kind is None and getattr(config, "num_labels", None) == 1:
            kind = "regression"
        return SequenceClassification(label_smoothing=label_smoothing, problem_type=kind)
    if is_for("TOKEN_CLASSIFICATION", "MASKED_LM"):
        return Tokens(label_smoothing=label_smoothing)
    if is_for("SEQ_TO_SEQ_CAUSAL_LM") and getattr(config, "is_encoder_decoder", False):
        return Tokens(label_smoothing=label_smoothing)
    if is_for("CAUSAL_LM"):
        return Tokens(shift=True, label_smoothing=label_smoothing)
    if is_for("QUESTION_ANSWERING"):
        if label_smoothing:
            raise IntegrationError(
                "label_smoothing_factor= has no effect on question answering: leave it out"
            )
        return QuestionAnswering()
    raise IntegrationError(
        f"no loss per sample is known for {name}, which computes its loss itself, as one number of "
        "the whole batch: pass per_sample_loss=, a function of (outputs, batch) that returns one "
        "loss per sample, such as lambda outputs, batch: F.cross_entropy(outputs.logits, "
        "batch['labels'], reduction='none')"
    )


def check_losses(
    losses_of: Callable[[list[Any]], Tensor], rows: Sequence[Any], *, tolerance: float
) -> None:
    """Refuse losses that are another one for a sample beside others than beside itself.

    Args:
        losses_of: collates elements and returns their losses.
        rows: elements of the data set.
        tolerance: relative difference that is rounding.

    Raises:
        LossError: there is not one loss for each sample.
        SampleMixingError: the loss of a sample depends on others.
    """
    together = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        together.append(losses_of(list(rows)).detach().float().cpu())
    if together[0].shape != (len(rows),):
        raise LossError(
            f"got losses of shape {list(together[0].shape)} for {len(rows)} samples: expected "
            "exactly one loss per sample, in the order of the batch. The data collator must "
            "neither drop nor add samples, and per_sample_loss= must not average over them."
        )
    if not torch.equal(*together):
        return  # what collates draws at random (words to mask), and is not compared
    alone = torch.stack([losses_of([row, row])[0].detach().float().cpu() for row in rows])
    size = tolerance * float(alone.abs().max())
    if not torch.allclose(together[0], alone, rtol=tolerance, atol=size, equal_nan=True):
        worst = int((together[0] - alone).abs().argmax())
        raise SampleMixingError(
            f"the loss of a sample is {float(alone[worst]):.4g} beside itself and "
            f"{float(together[0][worst]):.4g} beside other samples: padding counts, the data "
            "collator computes something over all its samples, or the loss is divided by what the "
            "whole batch has (its samples, its tokens, its longest text). One sample would change "
            "the gradients of others. Mask padded places in the model, divide the loss of a sample "
            "by its own number of labelled tokens, and mix nothing in the data collator."
        )


def base_model(model: nn.Module) -> Any:
    """The model itself, without adapters of PEFT around it."""
    inner: Any = getattr(model, "get_base_model", None)
    return inner() if inner is not None and type(model).__module__.startswith("peft.") else model


def _kind_of(logits: Tensor, labels: Tensor) -> str:
    if not labels.is_floating_point():
        return "single_label_classification"
    return "regression" if logits.shape[1] == 1 else "multi_label_classification"


def _cross_entropy(
    logits: Tensor, labels: Tensor, class_weights: Sequence[float] | None, smoothing: float
) -> Tensor:
    weight = None
    if class_weights is not None:
        if len(class_weights) != logits.shape[1]:
            raise LossError(
                f"class_weights has {len(class_weights)} numbers, and the model {logits.shape[1]} "
                "classes: expected one for each"
            )
        weight = logits.new_tensor(list(class_weights))
    return F.cross_entropy(
        logits,
        labels,
        weight=weight,
        reduction="none",
        ignore_index=IGNORED,
        label_smoothing=smoothing,
    )


def _check_constants(class_weights: Sequence[float] | None, label_smoothing: float) -> None:
    if not 0 <= label_smoothing <= 1:
        raise ValueError(
            f"label_smoothing={label_smoothing!r} is not valid: expected a number from 0 to 1"
        )
    numbers: tuple[Any, ...] = () if class_weights is None else tuple(class_weights)
    if any(isinstance(each, Tensor) or not (math.isfinite(each) and each >= 0) for each in numbers):
        raise ValueError(
            f"class_weights={class_weights!r} is not valid: expected one finite number >= 0 for "
            "each class, as public constants in a list"
        )
