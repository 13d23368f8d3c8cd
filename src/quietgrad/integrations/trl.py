"""Private fine-tuning with TRL: ``SFTTrainer``, and ``DPOTrainer`` with one pair as the unit.

::

    from quietgrad.integrations.trl import PrivateSFTTrainer

    trainer = PrivateSFTTrainer(
        model=model, args=args, train_dataset=train, processing_class=tokenizer,
        peft_config=lora, epsilon=8.0, delta=1e-5, batch_size=256,
    )
    trainer.train()

The arguments are those of TRL, and those of
:class:`quietgrad.integrations.transformers.PrivateTrainerMixin`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad.errors import IntegrationError, MissingExtraError
from quietgrad.integrations.transformers import PrivateTrainerMixin

try:
    from trl import DPOTrainer, SFTTrainer
except ImportError as error:
    raise MissingExtraError("trl", "trl") from error


class _WithoutTrainingMetrics(PrivateTrainerMixin):
    """TRL computes metrics of training samples beside its loss, which is not computed here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if getattr(self, "aux_loss_enabled", False):
            raise IntegrationError(
                "the model adds a loss over the whole batch, for the balance of its experts: pass "
                "router_aux_loss_coef=0.0."
            )

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Without what would be read from training samples, and counts that are not kept."""
        metrics: dict[str, dict[str, Any]] = self._metrics
        metrics["train"].clear()
        metrics["eval"].pop("num_tokens", None)
        super().log(logs, *args, **kwargs)


class PrivateSFTTrainer(_WithoutTrainingMetrics, SFTTrainer):
    """``trl.SFTTrainer`` with differential privacy.

    The unit of privacy is one row of ``train_dataset``. The loss of a sample is the mean over its
    own labelled tokens.
    """


class PrivateDPOTrainer(_WithoutTrainingMetrics, DPOTrainer):
    """``trl.DPOTrainer`` with differential privacy.

    The unit of privacy is one preference pair: a prompt, a chosen and a rejected answer. The
    reference is the model without its adapters, or ``ref_model``, which must be public.
    """

    def per_sample_losses(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """The loss of each pair."""
        reference = self._reference_margins(model, inputs)
        logps = []
        for side in _SIDES:
            words, mask = inputs[f"{side}_input_ids"], inputs[f"{side}_completion_mask"]
            logits = model(
                input_ids=words, attention_mask=inputs[f"{side}_attention_mask"], use_cache=False
            ).logits
            losses = F.cross_entropy(logits[:, :-1].float().mT, words[:, 1:], reduction="none")
            logps.append(-(losses * mask[:, 1:]).sum(1))
        margins = logps[0] - logps[1] - reference
        (kind,) = self.loss_types
        if kind == "hinge":
            return torch.relu(1 - self.beta * margins)
        return -F.logsigmoid(self.beta * margins)

    def _reference_margins(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        if self.precompute_ref_logps:
            return inputs["ref_chosen_logps"] - inputs["ref_rejected_logps"]
        was_training = model.training
        model.eval()  # the engine is not to repeat calls whose adapters were switched off
        try:
            own = model if self.ref_model is None else self.ref_model
            chosen, rejected = self.compute_ref_log_probs(own, _join_sides(inputs))
        finally:
            model.train(was_training)
        return chosen - rejected

    def _dataset_and_collator(self) -> tuple[Any, Any]:
        dataset, collate = super()._dataset_and_collator()
        return dataset, partial(_collate_sides, collate)


_SIDES = ("chosen", "rejected")
_JOINED = ("input_ids", "attention_mask", "completion_mask")


def _collate_sides(collate: Callable[[list[Any]], dict[str, Tensor]], rows: list[Any]) -> Any:
    """A batch of TRL, whose rows are all chosen and then all rejected answers, in two halves."""
    batch = dict(collate(rows))
    for name in _JOINED:
        for side, half in zip(_SIDES, batch.pop(name).chunk(2), strict=True):
            batch[f"{side}_{name}"] = half
    return batch


def _join_sides(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.cat([batch[f"{side}_{name}"] for side in _SIDES]) for name in _JOINED}
