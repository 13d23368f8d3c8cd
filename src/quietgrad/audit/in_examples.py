"""Black-box canaries: examples, and a model that is asked about them once it is trained.

What an outsider could do with the final model. It is a far weaker adversary than the guarantee
allows for, so its bounds are low; that they are says little about an implementation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, default_collate

from quietgrad._checks import require_count
from quietgrad.audit.attendance import Attendance
from quietgrad.audit.game import Observation, Train
from quietgrad.audit.training import Losses, Training
from quietgrad.sampling import population

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
    training = Training(
        build_model, dataset, losses, build_optimizer, epochs, options, collate, on_epoch
    )
    return lambda present, seed: _audited_run(training, examples, present, seed)


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


def _audited_run(
    training: Training, examples: Examples, present: NDArray[np.bool_], seed: int | None
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
        engine, _ = training.attach(model, data, _Collate(training.collate), seed)
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
def _losses_of(model: nn.Module, training: Training, examples: Examples) -> Tensor:
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
class _Collate:
    elements: Callable[[list[Any]], Any]

    def __call__(self, drawn: list[tuple[Any, float, bool]]) -> tuple[Any, ...]:
        elements, *about = zip(*drawn, strict=True)
        return self.elements(list(elements)), *(torch.tensor(column) for column in about)
