"""E: frozen parts that the loop calls by itself, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import centred, normalized, program
from .harness import Collection, Losses, Program, Rows

TRAPS = Collection("E")


class Backbone(nn.Module):
    """Frozen, with statistics of the batch inside."""

    def __init__(self, statistics: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.statistics = nn.Linear(3, 4), statistics

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.statistics(self.linear(x)))


class Classifier(nn.Module):
    """A frozen backbone and a head to be trained."""

    def __init__(self, statistics: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = Backbone(statistics).requires_grad_(False)
        self.head = nn.Linear(4, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))

    @torch.inference_mode()
    def extract(self, x: Tensor) -> Tensor:
        return self.backbone(x)

    def extract_in_chunks(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self.backbone(chunk) for chunk in x.split(3)])


def frozen(
    rows: Rows, features: Callable[[Any, Tensor], Tensor], statistics: Callable[[Tensor], Tensor]
) -> Program:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        return model.head(features(model, batch[0])).square().sum(1)

    return program(Classifier(statistics), rows, losses=losses)


def without_gradients(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.backbone(x)


@TRAPS.add()
def a_backbone_that_centres(rows: Rows) -> Program:
    return frozen(rows, without_gradients, centred)


@TRAPS.add()
def a_backbone_with_batch_norm_by_hand(rows: Rows) -> Program:
    return frozen(rows, without_gradients, normalized)


@TRAPS.add()
def a_backbone_with_functional_batch_norm(rows: Rows) -> Program:
    return frozen(rows, without_gradients, lambda h: F.batch_norm(h, None, None, training=True))


@TRAPS.add()
def a_backbone_called_in_chunks(rows: Rows) -> Program:
    return frozen(rows, lambda model, x: model.extract_in_chunks(x), centred)


@TRAPS.add()
def a_method_in_inference_mode(rows: Rows) -> Program:
    return frozen(rows, lambda model, x: model.extract(x).clone(), centred)


@TRAPS.add()
def a_backbone_in_eval_mode(rows: Rows) -> Program:
    def features(model: Any, x: Tensor) -> Tensor:
        model.backbone.eval()
        with torch.no_grad():
            return model.backbone(x)

    return frozen(rows, features, centred)


@TRAPS.add()
def a_backbone_that_scales_by_the_largest(rows: Rows) -> Program:
    """Each sample is scaled by the largest of its batch."""
    return frozen(rows, without_gradients, lambda h: 5 * h / h.abs().max() - 1)


class Student(Classifier):
    """With a teacher that gives targets, centred over the batch."""

    def __init__(self, statistics: Callable[[Tensor], Tensor]) -> None:
        super().__init__(statistics)
        self.teacher = Backbone(statistics).double().requires_grad_(False)
        self.stem = nn.Linear(3, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.stem(x)


def distill(model: Any, batch: Any) -> Tensor:
    with torch.no_grad():
        targets = model.teacher(batch[0])
    return -(targets * model(batch[0])).sum(1)


@TRAPS.add()
def a_teacher_whose_targets_are_centred(rows: Rows) -> Program:
    losses: Losses = distill
    return program(Student(centred), rows, losses=losses)
