"""Canaries for training with a `PrivacyEngine`: in the gradients, or as examples.

Both put all canaries behind the user's data, so that its size tells nothing. An absent canary has a
loss of zero, so its gradient is zero: it adds to a sum what a sample adds that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
from quietgrad.accounting.events import Poisson, TruncatedPoisson
from quietgrad.audit.game import Observation, Train
from quietgrad.audit.result import Recorded
from quietgrad.engine.engine import PrivacyEngine
from quietgrad.sampling.samplers import population

_PARAMETER = "canaries"
_OWN = ("seed", "ledger", "collate_fn")
_LOOKED_AT = 100
_AT_ONCE = 256
# An audit of correct code is refused with a lower probability than this: few canaries at a low rate
# may well be drawn never.
_BY_CHANCE = 1e-9

Losses = Callable[[nn.Module, Any], Tensor]
"""One loss per sample, of a model on a micro-batch as the data set's elements collate."""

Examples = Sequence[Any]
"""Elements like those of the data set; a data set with a length will do."""


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
    return lambda present, seed: _run_with_gradients(training, present, seed)


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
    return lambda present, seed: _run_with_examples(training, examples, present, seed)


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
    found = []
    for position, shift in zip(chosen, shifts, strict=True):
        x, y = dataset[int(position)]
        label = (int(y) + int(shift)) % classes
        found.append((x, torch.full_like(y, label) if isinstance(y, Tensor) else label))
    return found


@dataclass(frozen=True)
class AuditTraining:
    """Private training as a user would do it, by the arguments of `gradient_canaries`."""

    build_model: Callable[[], nn.Module]
    dataset: Dataset[Any]
    losses: Losses
    build_optimizer: Callable[[nn.Module], Optimizer]
    epochs: int
    options: Mapping[str, Any]
    collate: Callable[[list[Any]], Any]
    on_epoch: Callable[[int], None]

    def __post_init__(self) -> None:
        require_count("epochs", self.epochs, at_least=1)
        if taken := [name for name in _OWN if name in self.options]:
            raise ValueError(
                f"{taken[0]}= is not an option of an audit, which makes an engine for each run: "
                "pass seed= to one_run and collate= here, and leave the ledger to the engine"
            )

    @contextmanager
    def seeded(self, seed: int | None) -> Iterator[None]:
        """Fixes initial weights and dropout, and leaves the global generator as it was."""
        if seed is None:
            yield
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield

    def attach(
        self, model: nn.Module, data: _DataWithCanaries, seed: int | None
    ) -> tuple[PrivacyEngine, Optimizer]:
        """An engine on the data set with its canaries, as it would be without them."""
        optimizer = self.build_optimizer(model)
        collate = partial(_collate, self.collate)  # can be sent to workers, if the user's can
        settings: dict[str, Any] = {"epochs": self.epochs, "collate_fn": collate, "seed": seed}
        return PrivacyEngine(model, optimizer, data, **settings, **self.options), optimizer

    def run(
        self,
        engine: PrivacyEngine,
        losses: Callable[..., Tensor],
        present: int,
        device: torch.device,
    ) -> None:
        """All epochs; then the engine is detached, and the present canaries must have taken part.

        ``losses`` gets a micro-batch: its elements, and what is said about canaries beside them,
        on the model's device.
        """
        attendance = Attendance()
        for epoch in range(self.epochs):
            for batch in engine.batches():
                for elements, *about in batch:
                    part = elements, *(column.to(device) for column in about)
                    engine.backward(attendance.note(about[-1] > 0, losses(*part)))
                engine.step()
            self.on_epoch(epoch + 1)
        engine.detach()
        attendance.require_some(engine, present)

    def claim(self, engine: PrivacyEngine) -> Recorded:
        """What the engine's ledger says was spent."""
        return Recorded(
            events=engine.ledger.events,
            delta=engine.delta,
            adjacency=engine.ledger.adjacency,
            accountant=self.options.get("accountant", "pld"),
        )


class Attendance:
    """Counts how often present canaries took part in a step, and were not dropped from it."""

    def __init__(self) -> None:
        self._taken = 0
        self._dropped = 0

    def note(self, is_canary: Tensor, losses: Tensor) -> Tensor:
        """Count the present canaries of a micro-batch, and return its losses."""
        finite = torch.isfinite(losses.detach()).to(is_canary.device)
        self._taken += int((is_canary & finite).sum())
        self._dropped += int((is_canary & ~finite).sum())
        return losses

    def require_some(self, engine: PrivacyEngine, present: int) -> None:
        """Refuse to judge by canaries that nothing could be seen of."""
        if self._dropped:
            raise ValueError(
                f"present canaries were dropped {self._dropped} times, since their loss was not "
                "finite: what is not added cannot be seen, so the audit would find nothing. Lower "
                "the learning rate if training diverged, or audit with other data"
            )
        expected = engine.sample_rate * engine.steps_taken * present
        # Never none, unless chance alone decides which samples take part.
        kinds = [event.sampling for event in engine.ledger.events]
        drawn = all(isinstance(kind, Poisson | TruncatedPoisson) for kind in kinds)
        by_chance = math.exp(-expected) if drawn else 0.0
        if self._taken == 0 and present and by_chance < _BY_CHANCE:
            raise ValueError(
                f"present canaries took part in no step, and {expected:.3g} times were expected: "
                "the audit would find nothing. They are the last elements of the audited data set, "
                "behind your own: a sampler of your own must draw from all of them"
            )


class _DataWithCanaries(Dataset[Any]):
    """A data set, and behind it canaries: (element, index, ordinary: 0 or 1, present: 0 or 1)."""

    def __init__(
        self, dataset: Dataset[Any], canaries: Examples, present: NDArray[np.bool_]
    ) -> None:
        self._dataset, self._canaries, self._present = dataset, canaries, present
        self._ordinary = population(dataset)

    def __len__(self) -> int:
        return self._ordinary + len(self._present)

    def __getitem__(self, position: int) -> tuple[Any, int, float, float]:
        canary = position - self._ordinary
        if canary < 0:
            return self._dataset[position], 0, 1.0, 0.0
        return self._canaries[canary], canary, 0.0, float(self._present[canary])


def _collate(
    collate: Callable[[list[Any]], Any], drawn: list[tuple[Any, int, float, float]]
) -> tuple[Any, ...]:
    """Elements as the data set's own, and what is said about canaries beside them."""
    elements, *about = zip(*drawn, strict=True)
    return collate(list(elements)), *(torch.tensor(column, device="cpu") for column in about)


def _run_with_gradients(
    training: AuditTraining, present: NDArray[np.bool_], seed: int | None
) -> Observation:
    with training.seeded(seed):
        audited = training.build_model()
        # An element stands in for what a canary lacks; its loss is multiplied by zero.
        elements = (_finite_element(audited, training),) * len(present)
        data = _DataWithCanaries(training.dataset, elements, present)
        model = _WithCanaries(audited, training.losses, len(present))
        engine, optimizer = training.attach(model, data, seed)
        model.norm, contribution = _strongest(engine, training.options)
        total = torch.zeros(len(present), dtype=torch.float64, device="cpu")

        def watch(*_: Any) -> None:
            released = model.canaries.grad
            assert released is not None
            total.add_(engine.batch_size * released.detach().flatten().double().cpu())

        optimizer.register_step_pre_hook(watch)
        training.run(engine, model, int(present.sum()), model.canaries.device)
    expected = engine.sample_rate * engine.steps_taken * contribution
    # A draw that is cut to a largest size lets canaries push one another out.
    independent = not any(isinstance(e.sampling, TruncatedPoisson) for e in engine.ledger.events)
    return Observation(total.numpy(), training.claim(engine), expected / 2 if independent else None)


class _WithCanaries(nn.Module):
    """A model whose per-sample loss is its own, or a canary's."""

    def __init__(self, model: nn.Module, losses: Losses, canaries: int) -> None:
        super().__init__()
        self.model = model
        place = next((parameter.device for parameter in model.parameters()), None)
        self.canaries = nn.Parameter(torch.zeros(canaries, 1, device=place))
        self.norm = 1.0
        self._losses = losses

    def forward(self, batch: Any, index: Tensor, ordinary: Tensor, present: Tensor) -> Tensor:
        """Losses of ordinary samples, and `norm` times its own entry for a canary that is there."""
        entries = F.embedding(index, self.canaries).squeeze(1)
        return ordinary * self._losses(self.model, batch) + self.norm * present * entries


def _strongest(engine: PrivacyEngine, options: Mapping[str, Any]) -> tuple[float, float]:
    """The norm whose clipped gradient is longest, and that length.

    Of norms that do equally well it is the largest, so that clipping has something to do.
    """
    (group,) = (group for group in engine.groups if _PARAMETER in group.parameters)
    grid = torch.logspace(-3, 3, 61, device="cpu")
    norms = group.radius * torch.cat([torch.tensor([0.999], device="cpu"), grid]).double()
    clipping = clippings.resolve(options.get("clipping", "auto-s"))
    lengths = clipping.weights(norms, group.radius) * norms
    norm = norms[lengths >= 0.999 * lengths.max()].max()
    return float(norm), float(lengths[norms == norm].max())


def _finite_element(model: nn.Module, training: AuditTraining) -> Any:
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


def _run_with_examples(
    training: AuditTraining, examples: Examples, present: NDArray[np.bool_], seed: int | None
) -> Observation:
    if len(examples) != len(present):
        raise ValueError(
            f"there are {len(examples)} examples for {len(present)} canaries: expected "
            "one_run(..., canaries=len(examples))"
        )

    def losses(elements: Any, _: Tensor, ordinary: Tensor, present: Tensor) -> Tensor:
        return (ordinary + present) * training.losses(model, elements)

    with training.seeded(seed):
        model = training.build_model()
        before = _losses_of(model, training, examples)
        data = _DataWithCanaries(training.dataset, examples, present)
        engine, _ = training.attach(model, data, seed)
        training.run(engine, losses, int(present.sum()), next(model.parameters()).device)
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
