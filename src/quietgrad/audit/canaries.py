"""An element that stands in for what a canary lacks."""

from collections.abc import Callable, Mapping, Sequence
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
from quietgrad._checks import require_count
from quietgrad.accounting.events import TruncatedPoisson
from quietgrad.audit.game import Observation, Train
from quietgrad.audit.training import Attendance, AuditTraining, Losses
from quietgrad.engine.engine import PrivacyEngine
from quietgrad.sampling.samplers import population

_LOOKED_AT = 100


def stand_in(model: nn.Module, training: AuditTraining) -> Any:
    """The first element with a finite loss and gradient: multiplied by zero, both are zero.

    Otherwise they would be no number, and the engine would drop the canary from every sum.

    Raises:
        ValueError: there is none among the first hundred.
    """
    was_training = model.training
    model.eval()  # dropout must not move the global generator
    try:
        for position in range(min(_LOOKED_AT, population(training.dataset))):
            element = training.dataset[position]
            if _is_finite(model, training, element):
                return element
    finally:
        model.train(was_training)
    raise ValueError(
        f"the loss of each of the first {_LOOKED_AT} elements, or its gradient, is not finite, so "
        "none can stand in for canaries: expected data that the model can be trained on"
    )


def _is_finite(model: nn.Module, training: AuditTraining, element: Any) -> bool:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        losses = training.losses(model, training.collate([element]))
        gradients = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
    found = [losses, *(each for each in gradients if each is not None)]
    return all(bool(torch.isfinite(each).all()) for each in found)


_AT_ONCE = 256

Examples = Sequence[Any]
"""Elements like those of the data set; a data set with a length will do."""


def example_canaries(
    build_model: Callable[[], nn.Module],
    dataset: Dataset[Any],
    examples: Examples,
    losses: Losses,
    build_optimizer: Callable[[nn.Module], Optimizer],
    *,
    epochs: int,
    collate: Callable[[list[Any]], Any] = default_collate,
    on_epoch: Callable[[int], None] = lambda epoch: None,
    **options: Any,
) -> Train:
    """Training for `one_run` with an example for each coin, scored by how much its loss fell.

    Args:
        build_model: gives a model in training mode with fresh weights.
        dataset: map-style; what is trained on besides.
        examples: the canaries, like elements of `dataset`; see `mislabeled`.
        losses: one loss per sample, of the model on a micro-batch.
        build_optimizer: gives an optimizer over the model's parameters.
        epochs: passes over the data.
        collate: makes a micro-batch of elements.
        on_epoch: called with the number of epochs behind.
        **options: of the `PrivacyEngine`, such as `batch_size`, `epsilon`, `delta`, `clipping`.
    """
    training = AuditTraining(
        build_model, dataset, losses, build_optimizer, epochs, options, collate, on_epoch
    )
    return lambda present, seed: _audited_run_in_examples(training, examples, present, seed)


def mislabeled(
    dataset: Dataset[Any], count: int, *, classes: int, seed: int | None = None
) -> list[tuple[Any, Any]]:
    """So many (input, label) pairs of a held-out data set, each with a wrong label.

    A model has no other reason to know such a label than to have been trained on it.

    Args:
        dataset: with at least `count` pairs, none of which is trained on.
        count: how many.
        classes: labels are 0, 1, ..., classes - 1.
        seed: fixes which, for tests.
    """
    require_count("classes", classes, at_least=2)
    size = population(dataset)
    if require_count("canaries", count, at_least=1) > size:
        raise ValueError(
            f"canaries={count} is more than the {size} held-out examples there are to make them of"
        )
    rng = np.random.default_rng(seed)
    chosen = rng.choice(size, count, replace=False)
    shifts = rng.integers(1, classes, size=count)
    pairs = (dataset[int(position)] for position in chosen)
    return [(x, _shifted(y, int(by), classes)) for (x, y), by in zip(pairs, shifts, strict=True)]


def _shifted(label: Any, by: int, classes: int) -> Any:
    """Another label, of the same type."""
    other = (int(label) + by) % classes
    return torch.full_like(label, other) if isinstance(label, Tensor) else other


def _audited_run_in_examples(
    training: AuditTraining, examples: Examples, present: NDArray[np.bool_], seed: int | None
) -> Observation:
    if len(examples) != len(present):
        raise ValueError(
            f"there are {len(examples)} examples for {len(present)} canaries: expected "
            "one_run(..., canaries=len(examples))"
        )
    with training.seeded(seed):
        model = training.build_model()
        before = _losses_of(model, training, examples)
        data = _DataWithExamples(training.dataset, examples, present)
        engine, _ = training.attach(model, data, _InExamplesCollate(training.collate), seed)
        attendance = Attendance()

        def losses(part: Any) -> Tensor:
            elements, weights, is_canary = part
            found = weights * training.losses(model, elements)
            return attendance.note(is_canary & (weights > 0), found)

        training.run(engine, losses)
        attendance.require_some(engine, int(present.sum()))
        after = _losses_of(model, training, examples)
    return Observation((before - after).numpy(), training.claim(engine))


@torch.no_grad()
def _losses_of(model: nn.Module, training: AuditTraining, examples: Examples) -> Tensor:
    was_training = model.training
    model.eval()
    found = []
    for start in range(0, len(examples), _AT_ONCE):
        several = range(start, min(start + _AT_ONCE, len(examples)))
        batch = training.collate([examples[position] for position in several])
        found.append(training.losses(model, batch).double().cpu())
    model.train(was_training)
    return torch.cat(found)


class _DataWithExamples(Dataset[Any]):
    """A data set, and behind it the examples: an absent one has a loss of zero."""

    def __init__(
        self, dataset: Dataset[Any], examples: Examples, present: NDArray[np.bool_]
    ) -> None:
        self._dataset, self._examples, self._present = dataset, examples, present
        self._ordinary = population(dataset)

    def __len__(self) -> int:
        return self._ordinary + len(self._present)

    def __getitem__(self, position: int) -> tuple[Any, float, bool]:
        canary = position - self._ordinary
        if canary < 0:
            return self._dataset[position], 1.0, False
        return self._examples[canary], float(self._present[canary]), True


@dataclass(frozen=True)
class _InExamplesCollate:
    elements: Callable[[list[Any]], Any]

    def __call__(self, drawn: list[tuple[Any, float, bool]]) -> tuple[Any, ...]:
        elements, *about = zip(*drawn, strict=True)
        return self.elements(list(elements)), *(torch.tensor(column) for column in about)


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
    training = AuditTraining(
        build_model, dataset, losses, build_optimizer, epochs, options, collate, on_epoch
    )
    return lambda present, seed: _audited_run_in_gradients(training, present, seed)


def _audited_run_in_gradients(
    training: AuditTraining, present: NDArray[np.bool_], seed: int | None
) -> Observation:
    with training.seeded(seed):
        audited = training.build_model()
        data = _DataWithCanaries(training.dataset, present, stand_in(audited, training))
        model = _WithCanaries(audited, training.losses, len(present))
        engine, optimizer = training.attach(
            model, data, _InGradientsCollate(training.collate), seed
        )
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
class _InGradientsCollate:
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
