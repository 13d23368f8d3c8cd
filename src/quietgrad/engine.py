"""The engine: three verbs around a user's own model, optimizer and training loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.utils.data import Dataset

from quietgrad import accounting
from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad._checks import require_count, require_delta, require_positive
from quietgrad.capture import Capture
from quietgrad.clipping import Clipping
from quietgrad.errors import (
    BudgetExhaustedError,
    EngineStateError,
    QuietgradError,
    StrayGradientError,
    TrainableSetError,
)
from quietgrad.grouping import Group, Grouping
from quietgrad.noise import GaussianNoise
from quietgrad.progress import Progress
from quietgrad.reduction import ClippedReducer
from quietgrad.sampling import LogicalBatch, PoissonLoader, population
from quietgrad.strategies import DEFAULT_MEMORY_BUDGET, Evaluator, Strategy


class PrivacyEngine:
    """Trains a model with differential privacy: ``batches``, ``backward``, ``step``.

    Each logical batch is a Poisson sample of the data set. ``backward`` clips every sample's
    gradient and adds it up; ``step`` adds Gaussian noise of standard deviation
    ``noise_multiplier * sensitivity``, divides by the expected batch size, records the release in
    the ledger and runs the optimizer. Model, optimizer and schedulers stay plain objects.

    The guarantee is (epsilon, delta)-differential privacy of everything ``step`` releases, for
    adding or removing one element of ``dataset``. What else leaves the process (logged training
    losses, choices made by looking at the data) is not covered.

    Args:
        model: Any module. Parameters with ``requires_grad`` are trained.
        optimizer: Any torch optimizer over exactly those parameters.
        dataset: A map-style data set; one element is the unit of privacy.
        batch_size: Expected number of samples per step; also the constant the sum is divided by.
        epochs: Number of passes planned; with ``epsilon`` it fixes how many steps there can be.
        epsilon: Target for all planned steps; the noise is calibrated to stay within it.
        noise_multiplier: The noise itself, instead of a target.
        delta: Probability with which the guarantee may fail; should be below 1 / len(dataset).
        clipping: Clipping function, by name or as an object with options.
        grouping: Grouping of parameters, by name or as an object with radii.
        radius: Total clipping radius R where ``grouping`` is a name (default 1; automatic clipping
            needs no tuning of it).
        physical_batch_size: Largest number of samples to run through the model at once.
        strategy: How norms are evaluated; changes speed and memory only.
        memory_budget: Bytes of materialized per-sample gradients that may be held.
        collate_fn: Makes a micro-batch from a list of elements.
        num_workers: Worker processes that load data.
        seed: Fixes sampling and noise, for tests only: whoever knows it can subtract the noise.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        delta: float,
        epochs: int | None = None,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        clipping: str | Clipping = "auto-s",
        grouping: str | Grouping = "all-layer",
        radius: float | None = None,
        physical_batch_size: int | None = None,
        strategy: Strategy = "auto",
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        seed: int | None = None,
    ) -> None:
        size = population(dataset)
        self._batch_size = _checked_batch_size(batch_size, size)
        self._delta = _checked_delta(delta, size)
        self._sample_rate = self._batch_size / size
        self._steps_per_epoch = max(1, round(size / self._batch_size))
        self._planned_steps = _planned_steps(epochs, self._steps_per_epoch)
        self._has_target = epsilon is not None
        _check_optimizer(optimizer)

        self._clipping = clippings.resolve(clipping)
        self._groups: tuple[Group, ...] = groupings.resolve(grouping, model, radius)
        self._evaluator_options = (strategy, memory_budget)
        Evaluator(*self._evaluator_options)
        self._loader = PoissonLoader(
            dataset,
            sample_rate=self._sample_rate,
            steps=self._steps_per_epoch,
            physical_batch_size=physical_batch_size,
            collate_fn=collate_fn,
            num_workers=num_workers,
            seed=seed,
        )
        self._noise_multiplier = self._noise_for(epsilon, noise_multiplier)
        self._noise = GaussianNoise(None if seed is None else seed + 1)
        self._ledger = accounting.Ledger()
        self._progress = Progress()
        self._batch: LogicalBatch | None = None
        self._sums: dict[str, Tensor] = {}
        self._micro_batches = 0
        self._nonfinite = 0
        self._stepping = False

        self._optimizer = optimizer
        self._capture = Capture(model, when=lambda: model.training)
        self._capture.on_detach = self.detach
        self._attached = True
        try:
            self._require_same_parameters()
        except QuietgradError:
            self._capture.detach()
            raise
        self._step_guard = optimizer.register_step_pre_hook(self._refuse_stray_step)

    # -- the three verbs -----------------------------------------------------------------------

    def batches(self) -> Iterator[Iterator[Any]]:
        """One epoch of logical batches; iterate each for its physical micro-batches.

        A batch may be empty: it has no micro-batches, and its step still adds noise.
        """
        self._require_attached()
        if self._progress.begun:
            self._progress.begin(())  # raises, and says what to do
        self._require_budget()
        return self._epoch()

    def backward(self, losses: Tensor | Callable[[], Tensor]) -> None:
        """Clip every sample's gradient of the current micro-batch and add it to the sum.

        Args:
            losses: One loss per sample, a 1-D tensor; or a function that computes it.
        """
        self._require_attached()
        size = self._progress.require_micro_batch()
        if callable(losses):
            losses = losses()
        reducer = ClippedReducer(
            self.groups, self._clipping, Evaluator(*self._evaluator_options), size
        )
        self._capture.backward(losses, reducer)
        reducer.finish()
        self._accumulate(reducer)
        self._progress.propagated()

    def step(self) -> None:
        """Release: record the step in the ledger, add the noise, run the optimizer.

        Noise is added to every trainable parameter, whether or not a sample used it.
        """
        self._require_attached()
        self._progress.require_complete()
        self._require_budget()
        self._capture.check_trainable_set()
        self._require_same_parameters()
        # First the ledger, then the update: a crash in between overstates what was spent.
        self._ledger.record(noise_multiplier=self.noise_multiplier, sample_rate=self.sample_rate)
        self._stepping = True
        try:
            self._write_private_gradients()
            self._optimizer.step()
        finally:
            self._stepping = False
            self._end_batch()

    # -- what a user may ask -------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Expected number of samples per step, and the constant sums are divided by."""
        return self._batch_size

    @property
    def delta(self) -> float:
        """Probability with which the guarantee may fail."""
        return self._delta

    @property
    def sample_rate(self) -> float:
        """Probability with which each sample joins a step."""
        return self._sample_rate

    @property
    def steps_per_epoch(self) -> int:
        """Number of logical batches that :meth:`batches` yields."""
        return self._steps_per_epoch

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity."""
        return self._noise_multiplier

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of parameters that are clipped together, with their radii."""
        return self._groups

    @property
    def sensitivity(self) -> float:
        """How far one sample can move the sum of clipped gradients (Euclidean)."""
        return groupings.sensitivity(self.groups, self._clipping)

    @property
    def steps_taken(self) -> int:
        """Number of steps released so far."""
        return self._ledger.steps

    @property
    def nonfinite_samples(self) -> int:
        """Samples dropped so far for a non-finite gradient. Read from raw data: NOT private."""
        return self._nonfinite

    def epsilon(self, delta: float | None = None) -> float:
        """What all steps so far have spent: an upper bound, 0 before the first step."""
        return self._ledger.epsilon(self.delta if delta is None else delta)

    def discard_batch(self) -> None:
        """Drop the logical batch under way; nothing of it is released."""
        self._require_attached()
        self._capture.begin()
        if self._batch is not None:
            self._batch.discard()
        self._end_batch()

    def detach(self) -> None:
        """Leave the model and the optimizer exactly as they were before attaching."""
        if self._attached:
            self._capture.detach()
            self._step_guard.remove()
            self._end_batch()
            self._attached = False

    # -- guards --------------------------------------------------------------------------------

    def _refuse_stray_step(self, *_: Any) -> None:
        if not self._stepping:
            raise StrayGradientError(
                "optimizer.step() was called directly: it would apply a gradient without noise and "
                "without a ledger entry. Call engine.step() instead."
            )

    def _require_attached(self) -> None:
        if not self._attached:
            raise EngineStateError("the engine was detached: make a new one to go on training.")

    def _require_same_parameters(self) -> None:
        trained = self._capture.parameters.trainable()
        by_id = {id(parameter): name for name, parameter in trained.items()}
        held = {id(p): p for group in self._optimizer.param_groups for p in group["params"]}
        foreign = [p for key, p in held.items() if p.requires_grad and key not in by_id]
        if foreign:
            raise TrainableSetError(
                f"the optimizer holds a trainable parameter of shape {tuple(foreign[0].shape)} "
                "that is not in the model: its gradient would be applied without noise. Register "
                "it in the model, or take it out of the optimizer."
            )
        stray = [p for key, p in held.items() if key not in by_id and p.grad is not None]
        if stray:
            raise StrayGradientError(
                f"the optimizer holds a frozen parameter of shape {tuple(stray[0].shape)} with a "
                ".grad that did not come from the engine: its step would apply it without noise. "
                "Call optimizer.zero_grad() first."
            )
        idle = [name for key, name in by_id.items() if key not in held]
        if idle:
            raise TrainableSetError(
                f"parameter '{idle[0]}' is trainable but not in the optimizer ({len(idle)} such): "
                "its gradient would take part in clipping for nothing. Freeze it with "
                "requires_grad_(False), or give it to the optimizer."
            )

    # -- internals -----------------------------------------------------------------------------

    def _noise_for(self, epsilon: float | None, noise_multiplier: float | None) -> float:
        if (epsilon is None) == (noise_multiplier is None):
            raise ValueError("pass either epsilon= (a target) or noise_multiplier=, and not both")
        if noise_multiplier is not None:
            return require_positive("noise_multiplier", noise_multiplier)
        if self._planned_steps is None:
            raise ValueError("epsilon= needs epochs=: the noise depends on the number of steps")
        return accounting.calibrate(
            epsilon=require_positive("epsilon", epsilon),
            delta=self.delta,
            sample_rate=self.sample_rate,
            steps=self._planned_steps,
        )

    def _require_budget(self) -> None:
        planned = self._planned_steps
        if self._has_target and planned is not None and self._ledger.steps >= planned:
            raise BudgetExhaustedError(
                f"all {planned} planned steps were taken: another would spend more than the target "
                "epsilon. Plan for more with a larger epochs=, or pass noise_multiplier= to train "
                "without a target."
            )

    def _epoch(self) -> Iterator[Iterator[Any]]:
        for batch in self._loader:
            self._require_budget()
            self._progress.begin(batch.micro_sizes)
            self._batch = batch
            yield self._micro_batches_of(batch)

    def _micro_batches_of(self, batch: LogicalBatch) -> Iterator[Any]:
        for micro_batch in batch:
            size = self._progress.fetch()
            self._capture.begin(size, verify=self._is_verification_due())
            yield micro_batch

    def _is_verification_due(self) -> bool:
        """Probe at micro-batches 1, 2, 4, 8, ...: early, and then ever more rarely."""
        self._micro_batches += 1
        return self._micro_batches & (self._micro_batches - 1) == 0

    def _accumulate(self, reducer: ClippedReducer) -> None:
        self._nonfinite += int((~reducer.norms.isfinite()).any(1).sum())
        for name, total in reducer.grads.items():
            known = self._sums.get(name)
            self._sums[name] = total if known is None else known.add_(total)

    def _write_private_gradients(self) -> None:
        std = self.noise_multiplier * self.sensitivity
        for name, parameter in self._capture.parameters.trainable().items():
            gradient = self._noise.sample(parameter, std)
            if name in self._sums:
                gradient += self._sums[name]
            parameter.grad = (gradient / self.batch_size).to(parameter.dtype)

    def _end_batch(self) -> None:
        self._sums.clear()
        self._batch = None
        self._progress.end()
        for parameter in self._capture.parameters.trainable().values():
            parameter.grad = None


def _checked_batch_size(batch_size: int, size: int) -> int:
    require_count("batch_size", batch_size, at_least=1)
    if batch_size > size:
        raise ValueError(
            f"batch_size={batch_size} is larger than the data set of {size} samples: expected at "
            "most its length"
        )
    return batch_size


def _checked_delta(delta: float, size: int) -> float:
    require_delta("delta", delta)
    if delta >= 1 / size:
        warnings.warn(
            f"delta={delta:g} is not below 1/n = {1 / size:.2g}: publishing one random sample in "
            "full would keep such a guarantee. Choose delta well below 1/n.",
            stacklevel=3,
        )
    return delta


def _planned_steps(epochs: int | None, steps_per_epoch: int) -> int | None:
    if epochs is None:
        return None
    return require_count("epochs", epochs, at_least=1) * steps_per_epoch


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}: its step "
            "could not be guarded"
        )
    if isinstance(optimizer, LBFGS):
        raise TypeError(
            "LBFGS evaluates the loss several times a step and cannot be used privately"
        )
