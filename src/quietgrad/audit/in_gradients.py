"""White-box canaries: samples whose gradients no other sample shares.

The model gets one parameter more, with an entry for each canary. A canary that is present has a
gradient along its own entry, as long as clipping allows; ordinary samples do not touch it. The
auditor sees every released gradient, which is what the guarantee is about, and adds up each entry.
Nothing about the engine is replaced: sampling, capture, clipping, noise and ledger are those of any
other training.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, default_collate

from quietgrad import clipping as clippings
from quietgrad.accounting import TruncatedPoisson
from quietgrad.audit.attendance import Attendance
from quietgrad.audit.game import Observation, Train
from quietgrad.audit.stand_in import stand_in
from quietgrad.audit.training import Losses, Training
from quietgrad.engine import PrivacyEngine
from quietgrad.sampling import population

_PARAMETER = "canaries"


def gradient_canaries(
    build_model: Callable[[], nn.Module],
    dataset: Dataset[Any],
    losses: Losses,
    build_optimizer: Callable[[nn.Module], Optimizer],
    *,
    epochs: int,
    collate: Callable[[list[Any]], Any] = default_collate,
    on_epoch: Callable[[int], None] = lambda epoch: None,
    **options: Any,
) -> Train:
    """Training for `one_run` with a canary in the gradient for each coin.

    The strongest adversary that the guarantee covers, so the sharpest audit of an implementation.

    Args:
        build_model: gives a model in training mode with fresh weights.
        dataset: map-style; at least one element.
        losses: one loss per sample, of the model on a micro-batch.
        build_optimizer: gives an optimizer over all parameters of the model it gets.
        epochs: passes over the data.
        collate: makes a micro-batch of elements of the data set.
        on_epoch: called with the number of epochs behind.
        **options: of the `PrivacyEngine`, such as `batch_size`, `epsilon`, `delta`, `clipping`.
            Parameters are named `model.<name>` there.
    """
    training = Training(
        build_model, dataset, losses, build_optimizer, epochs, options, collate, on_epoch
    )
    return lambda present, seed: _audited_run(training, present, seed)


def _audited_run(training: Training, present: NDArray[np.bool_], seed: int | None) -> Observation:
    with training.seeded(seed):
        audited = training.build_model()
        data = _DataWithCanaries(training.dataset, present, stand_in(audited, training))
        model = _WithCanaries(audited, training.losses, len(present))
        engine, optimizer = training.attach(model, data, _Collate(training.collate), seed)
        model.norm, contribution = _strongest(engine, training.options)
        watch = _Watch(model.canaries, engine.batch_size)
        optimizer.register_step_pre_hook(watch)
        attendance = Attendance()
        training.run(engine, lambda part: attendance.note(part[-1] > 0, model(*part)))
    attendance.require_some(engine, int(present.sum()))
    expected = engine.sample_rate * engine.steps_taken * contribution
    # A draw that is cut to a largest size lets canaries push one another out.
    independent = not any(isinstance(e.sampling, TruncatedPoisson) for e in engine.ledger.events)
    return Observation(
        watch.total.numpy(), training.claim(engine), expected / 2 if independent else None
    )


class _WithCanaries(nn.Module):
    """A model whose per-sample loss is its own, or a canary's."""

    def __init__(self, model: nn.Module, losses: Losses, canaries: int) -> None:
        super().__init__()
        self.model = model
        self.canaries = nn.Parameter(torch.zeros(canaries, 1))
        self.norm = 1.0
        self._losses = losses

    def forward(self, batch: Any, index: Tensor, ordinary: Tensor, present: Tensor) -> Tensor:
        """Losses of ordinary samples, and `norm` times its own entry for a canary that is there."""
        entries = F.embedding(index, self.canaries).squeeze(1)
        return ordinary * self._losses(self.model, batch) + self.norm * present * entries


class _DataWithCanaries(Dataset[Any]):
    """A data set, and behind it the canaries: all of them, so that its size tells nothing.

    An absent canary has a loss of zero, so its gradient is zero, which adds to a sum what a sample
    adds that is not there.
    """

    def __init__(self, dataset: Dataset[Any], present: NDArray[np.bool_], stand_in: Any) -> None:
        self._dataset, self._present, self._stand_in = dataset, present, stand_in
        self._ordinary = population(dataset)

    def __len__(self) -> int:
        return self._ordinary + len(self._present)

    def __getitem__(self, position: int) -> tuple[Any, int, float, float]:
        canary = position - self._ordinary
        if canary < 0:
            return self._dataset[position], 0, 1.0, 0.0
        # Another element stands in for what a canary lacks; its loss is multiplied by zero.
        return self._stand_in, canary, 0.0, float(self._present[canary])


@dataclass(frozen=True)
class _Collate:
    """Elements as the data set's own, and what is said about canaries beside them."""

    elements: Callable[[list[Any]], Any]

    def __call__(self, drawn: list[tuple[Any, int, float, float]]) -> tuple[Any, ...]:
        elements, *about = zip(*drawn, strict=True)
        return self.elements(list(elements)), *(torch.tensor(column) for column in about)


class _Watch:
    """Adds up what every step releases about the canaries: an optimizer's pre-hook."""

    def __init__(self, parameter: nn.Parameter, batch_size: int) -> None:
        self._parameter, self._batch_size = parameter, batch_size
        self.total = torch.zeros(len(parameter), dtype=torch.float64)

    def __call__(self, *_: Any) -> None:
        released = self._parameter.grad
        assert released is not None
        self.total += self._batch_size * released.detach().flatten().double().cpu()


def _strongest(engine: PrivacyEngine, options: Mapping[str, Any]) -> tuple[float, float]:
    """The norm whose clipped gradient is longest, and that length.

    Of norms that do equally well it is the largest, so that clipping has something to do.
    """
    (group,) = (group for group in engine.groups if _PARAMETER in group.parameters)
    norms = group.radius * torch.cat([torch.tensor([0.999]), torch.logspace(-3, 3, 61)]).double()
    clipping = clippings.resolve(options.get("clipping", "auto-s"))
    lengths = clipping.weights(norms, group.radius) * norms
    norm = norms[lengths >= 0.999 * lengths.max()].max()
    return float(norm), float(lengths[norms == norm].max())
