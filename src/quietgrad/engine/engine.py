"""The engine: three verbs around a user's own model, optimizer and training loop."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad import sampling as samplers
from quietgrad._checks import require_count
from quietgrad._files import replace_file
from quietgrad.accounting import Adjacency, Ledger, participation
from quietgrad.capture import Capture
from quietgrad.clipping import Clipping
from quietgrad.engine.arguments import (
    checked_accountant,
    checked_batch_size,
    checked_delta,
    checked_optimizer,
    opened_ledger,
)
from quietgrad.engine.budget import Budget
from quietgrad.engine.guards import require_same_parameters
from quietgrad.engine.schedules import NoiseSchedule
from quietgrad.engine.state import (
    global_rng,
    read_state,
    require_fitting,
    restore_global_rng,
    stamped,
)
from quietgrad.errors import (
    BudgetExhaustedError,
    EngineStateError,
    QuietgradError,
    StrayGradientError,
)
from quietgrad.grouping import Group, Grouping
from quietgrad.noise import GaussianNoise
from quietgrad.progress import Progress
from quietgrad.reduction import ClippedReducer
from quietgrad.sampling import BatchLoader, LogicalBatch, Sampler, population
from quietgrad.strategies import DEFAULT_MEMORY_BUDGET, Evaluator, Strategy


class PrivacyEngine:
    """Trains a model with differential privacy: ``batches``, ``backward``, ``step``.

    Each logical batch is a Poisson sample of the data set. ``backward`` clips every sample's
    gradient and adds it up; ``step`` records the release in the ledger, adds Gaussian noise of
    standard deviation ``noise_multiplier * sensitivity``, divides by the expected batch size and
    runs the optimizer. Model, optimizer and schedulers stay plain objects.

    The guarantee is (epsilon, delta)-differential privacy of everything ``step`` releases, for
    adding or removing one element of ``dataset`` (or as ``adjacency`` says). What else leaves the
    process (logged training losses, choices made by looking at the data) is not covered.

    Args:
        model: Any module. Parameters with ``requires_grad`` are trained.
        optimizer: Any torch optimizer over exactly those parameters.
        dataset: A map-style data set; one element is the unit of privacy.
        batch_size: Expected number of samples per step; also the constant the sum is divided by.
        epochs: Number of passes planned; with ``epsilon`` it fixes how many steps there can be.
        epsilon: Target for all planned steps and for what is in ``ledger`` already; the noise is
            calibrated to stay within it.
        noise_multiplier: The noise itself, instead of a target.
        noise_schedule: Factor on the noise of each step, a function of the step's number (from 0)
            and of nothing else; the target is kept whatever it is.
        delta: Probability with which the guarantee may fail; should be below 1 / len(dataset).
        ledger: Where releases are recorded: a new one in memory if None; a path, for a file in
            which every step is on disk before it is released; or a ``Ledger``, to go on with what
            other engines recorded about the same data.
        sampling: How batches are drawn: ``"poisson"``, ``"poisson:320"`` (cut to 320 samples),
            ``"shuffled"``, ``"full-batch"``, or an object of ``quietgrad.sampling``.
        adjacency: Which data sets must look alike: ``"add-remove-one"`` unless the ledger says
            otherwise, ``"replace-one"`` or ``"zero-out-one"``.
        accountant: What the target and :meth:`epsilon` are computed with.
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
        noise_schedule: NoiseSchedule | None = None,
        ledger: Ledger | str | Path | None = None,
        sampling: str | Sampler = "poisson",
        adjacency: Adjacency | None = None,
        accountant: str = "pld",
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
        checked_optimizer(optimizer)
        self._population = population(dataset)
        self._batch_size = checked_batch_size(batch_size, self._population)
        self._delta = checked_delta(delta, self._population)
        self._accountant = checked_accountant(accountant)
        self._clipping = clippings.resolve(clipping)
        self._groups: tuple[Group, ...] = groupings.resolve(grouping, model, radius)
        self._evaluator_options = (strategy, memory_budget)
        Evaluator(*self._evaluator_options)
        draws = samplers.resolve(sampling).bind(self._population, self._batch_size)
        self._loader = BatchLoader(
            dataset,
            draws,
            physical_batch_size=physical_batch_size,
            collate_fn=collate_fn,
            num_workers=num_workers,
            seed=seed,
        )
        self._seed = seed
        self._noise = GaussianNoise(seed)
        self._progress = Progress()
        self._batch: LogicalBatch | None = None
        self._last_batch: LogicalBatch | None = None
        self._sums: dict[str, Tensor] = {}
        self._micro_batches = 0
        self._steps_taken = 0
        self._nonfinite = 0
        self._stepping = False
        self._generation = 0

        self._ledger = opened_ledger(ledger, adjacency, draws.accounting)
        planned = None if epochs is None else require_count("epochs", epochs, at_least=1)
        self._budget = Budget(
            self._ledger,
            draws.accounting,
            delta=self._delta,
            accountant=accountant,
            planned_steps=None if planned is None else planned * draws.length,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            schedule=noise_schedule,
        )
        self._model = model
        self._optimizer = optimizer
        self._settings = self._describe(epochs, epsilon, noise_multiplier)
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
        self._budget.require_room(self._steps_taken)
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
        assert self._batch is not None
        self._budget.require_room(self._steps_taken, pass_number=self._batch.pass_number)
        self._capture.check_trainable_set()
        self._require_same_parameters()
        # First the ledger, then the update: a crash in between overstates what was spent.
        sigma = self._budget.record(self._steps_taken, pass_number=self._batch.pass_number)
        # Also if the optimizer fails: part of the update may be in the weights by then.
        step, self._steps_taken = self._steps_taken, self._steps_taken + 1
        self._last_batch = self._batch
        self._stepping = True
        try:
            self._write_private_gradients(step, sigma * self.sensitivity)
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
        """Expected share of the data set in a step."""
        return self._batch_size / self._population

    @property
    def steps_per_epoch(self) -> int:
        """Number of logical batches that :meth:`batches` yields, unless it finishes an epoch."""
        return len(self._loader)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise over the sensitivity (times the schedule, if any)."""
        return self._budget.noise_multiplier

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
        """Number of updates in the weights. The ledger may hold more: lost ones count as spent."""
        return self._steps_taken

    @property
    def epochs_completed(self) -> int:
        """Number of whole passes behind the weights; a resumed loop starts here."""
        return int(self._loader.bookmark(self._last_batch)["pass"])

    @property
    def has_budget(self) -> bool:
        """Whether the target, if there is one, leaves room for another step."""
        try:
            self._budget.require_room(self._steps_taken, pass_number=self.epochs_completed)
        except BudgetExhaustedError:
            return False
        return True

    @property
    def ledger(self) -> Ledger:
        """What was released, by this engine and by others that share it."""
        return self._ledger

    @property
    def planned_steps(self) -> int | None:
        """Number of steps the noise was planned for; None if ``epochs`` was not given."""
        return self._budget.planned_steps

    @property
    def nonfinite_samples(self) -> int:
        """Samples dropped so far for a non-finite gradient. Read from raw data: NOT private."""
        return self._nonfinite

    def epsilon(self, delta: float | None = None) -> float:
        """What all steps so far have spent: an upper bound, 0 before the first step."""
        at = self.delta if delta is None else delta
        return self._ledger.epsilon(at, accountant=self._accountant)

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

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write :meth:`state_dict` to a file, which a crash leaves whole: the old or the new."""
        state = self.state_dict()
        replace_file(Path(path), lambda stream: torch.save(state, stream))

    def load(self, path: str | Path) -> None:
        """Go on where :meth:`save` was called, in an engine made with the same arguments."""
        self.load_state_dict(read_state(path))

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on later: weights, optimizer, place in the data, ledger.

        Neither the noise's keys nor Poisson sampling's are in it. Schedulers are yours to save.
        Unlike a module's ``state_dict`` it is a copy, which training does not change.
        ``torch.save`` it, and load it with ``torch.load(..., weights_only=True)``.
        """
        if self._progress.begun:
            raise EngineStateError(
                "a batch is under way: save between engine.step() and the next batch."
            )
        return stamped(
            {
                "settings": self._settings,
                # Copies: weights that go on changing would run ahead of the ledger beside them.
                "model": copy.deepcopy(self._model.state_dict()),
                "optimizer": copy.deepcopy(self._optimizer.state_dict()),
                "position": self._loader.bookmark(self._last_batch),
                "budget": self._budget.state_dict(),
                "ledger": self._ledger.to_dict(),
                "steps_taken": self._steps_taken,
                "rng": global_rng(self._seed),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken, in an engine made with the same arguments.

        What this engine's ledger holds beyond the saved one stays counted: steps whose updates were
        lost in a crash, or undone by loading an earlier state, are spent all the same.
        """
        self._require_attached()
        if self._progress.begun:
            raise EngineStateError("a batch is under way: step or discard_batch() before loading.")
        require_fitting(state, self._settings)
        self._generation += 1
        # First the ledger, then the weights: whatever fails below, nothing is left uncounted.
        saved = Ledger.from_dict(state["ledger"])
        same_history = not self._ledger.events or saved.id == self._ledger.id
        lost = self._ledger.cover(saved)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        same_pass = self._loader.go_to(state["position"])
        self._budget.load_state_dict(
            state["budget"], lost=lost, same_history=same_history, same_pass=same_pass
        )
        self._steps_taken = state["steps_taken"]
        self._last_batch = None
        restore_global_rng(state["rng"], self._seed)

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
        require_same_parameters(self._capture.parameters.trainable(), self._optimizer)

    # -- internals -----------------------------------------------------------------------------

    def _describe(
        self, epochs: int | None, epsilon: float | None, noise_multiplier: float | None
    ) -> dict[str, Any]:
        """What must be the same when a run is resumed, as plain data."""
        return {
            "noise_multiplier": None if noise_multiplier is None else float(noise_multiplier),
            "noise_schedule": self._budget.schedule,
            "batch_size": self._batch_size,
            "dataset size": self._population,
            "delta": self._delta,
            "epsilon": None if epsilon is None else float(epsilon),
            "epochs": None if epochs is None else int(epochs),
            "accountant": self._accountant,
            "adjacency": self._ledger.adjacency,
            "sampling": participation.to_dict(self._loader.draws.accounting),
            "clipping": repr(self._clipping),
            "optimizer": type(self._optimizer).__name__,
            "groups": [[group.radius, *group.parameters] for group in self._groups],
        }

    def _epoch(self) -> Iterator[Iterator[Any]]:
        begun_at, generation = self._steps_taken, self._generation
        for batch in self._loader:
            if generation != self._generation:
                raise EngineStateError(
                    "a state was loaded since these batches were begun: take new ones from "
                    "engine.batches()."
                )
            if not self._has_room(batch, is_first=self._steps_taken == begun_at):
                return
            self._progress.begin(batch.micro_sizes)
            self._batch = batch
            yield self._micro_batches_of(batch)

    def _has_room(self, batch: LogicalBatch, *, is_first: bool) -> bool:
        """Whether there may be another step.

        Where an interruption lost some, an epoch may end early, so that what was trained can be
        saved. To begin an epoch without a budget is an error.
        """
        try:
            self._budget.require_room(self._steps_taken, pass_number=batch.pass_number)
        except BudgetExhaustedError as error:
            if is_first or not self._budget.lost_steps:
                raise
            batch.discard()
            warnings.warn(str(error), stacklevel=3)
            return False
        return True

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

    def _write_private_gradients(self, step: int, std: float) -> None:
        self._noise.begin_step(step)
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
