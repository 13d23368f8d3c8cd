"""What is learnt: a loss for each sample, and scores on held-out data."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

_TEST_BATCH = 256


class Task(ABC):
    """A kind of learning. Scores are of held-out data, so they may be shown."""

    metric: ClassVar[str]
    """The score that runs are compared by."""
    is_share: ClassVar[bool] = True
    """Whether it is a share of one, and printed in per cent."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """One loss for each sample of a batch."""

    @abstractmethod
    def scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """Figures after an epoch, among them "loss"."""

    def final_scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """Figures that take too long for every epoch."""
        return {}


class Classification(Task):
    """Labels in the last column; the model makes logits of the others."""

    metric = "accuracy"

    def losses(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """Cross-entropy."""
        *inputs, labels = batch
        return F.cross_entropy(model(*inputs), labels, reduction="none")

    @torch.no_grad()
    def scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """Cross-entropy and accuracy."""
        loss = right = total = 0.0
        for *inputs, labels in DataLoader(test, batch_size=_TEST_BATCH):
            logits = model(*inputs)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            right += (logits.argmax(1) == labels).sum().item()
            total += len(labels)
        return {"loss": loss / total, "accuracy": right / total}


class ManyLabels(Task):
    """Several yes-or-no labels for each sample."""

    metric = "accuracy"

    def losses(self, model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
        """Mean binary cross-entropy over the labels."""
        *inputs, labels = batch
        each = F.binary_cross_entropy_with_logits(model(*inputs), labels, reduction="none")
        return each.mean(1)

    @torch.no_grad()
    def scores(self, model: nn.Module, test: Dataset[Any]) -> dict[str, float]:
        """Binary cross-entropy, and the share of labels that are right."""
        loss = right = total = 0.0
        for *inputs, labels in DataLoader(test, batch_size=_TEST_BATCH):
            logits = model(*inputs)
            loss += F.binary_cross_entropy_with_logits(logits, labels, reduction="sum").item()
            right += ((logits > 0) == (labels > 0.5)).sum().item()
            total += labels.numel()
        return {"loss": loss / total, "accuracy": right / total}
