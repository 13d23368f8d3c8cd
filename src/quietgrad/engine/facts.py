"""What a user may ask of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietgrad.accounting import Ledger
from quietgrad.clipping import Clipping
from quietgrad.diagnostics import StepRecorder
from quietgrad.engine.budget import Budget
from quietgrad.engine.course import Course
from quietgrad.engine.disclosure import disclosed
from quietgrad.engine.radii import Radii
from quietgrad.engine.under_way import BatchUnderWay
from quietgrad.errors import BudgetExhaustedError
from quietgrad.grouping import Group
from quietgrad.noise import Noise
from quietgrad.sampling import BatchLoader

if TYPE_CHECKING:
    from quietgrad.report import AuditFindings, Statement


class EngineFacts:
    """Figures and settings of an engine. Asking changes nothing."""

    _accountant: str
    _batch_size: int
    _budget: Budget
    _clipping: Clipping
    _course: Course
    _delta: float
    _diagnostics: StepRecorder | None
    _ledger: Ledger
    _loader: BatchLoader
    _noise: Noise
    _population: int
    _radii: Radii
    _seed: int | None
    _under_way: BatchUnderWay

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
    def noise(self) -> str:
        """Where the noise comes from, in words."""
        seeded = "" if self._seed is None else ", seeded: protects nobody"
        return f"{self._noise.description}{seeded}"

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of parameters that are clipped together, with their radii."""
        return self._radii.groups

    @property
    def sensitivity(self) -> float:
        """How far one sample can move the sum of clipped gradients (Euclidean)."""
        return self._radii.sensitivity

    @property
    def steps_taken(self) -> int:
        """Number of updates in the weights. The ledger may hold more: lost ones count as spent."""
        return self._course.steps_taken

    @property
    def epochs_completed(self) -> int:
        """Number of whole passes behind the weights; a resumed loop starts here."""
        return self._course.epochs_completed

    @property
    def has_budget(self) -> bool:
        """Whether the target, if there is one, leaves room for another step."""
        try:
            self._budget.require_room(self.steps_taken, pass_number=self.epochs_completed)
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
        return self._under_way.nonfinite_samples

    def epsilon(self, delta: float | None = None) -> float:
        """What all steps so far have spent: an upper bound, 0 before the first step."""
        at = self.delta if delta is None else delta
        return self._ledger.epsilon(at, accountant=self._accountant)

    def settings(self) -> dict[str, Any]:
        """What only the engine knows of a run, as plain data that JSON holds.

        All but "progress" stays the same during a run. A run folder keeps it as ``settings.json``.
        """
        return disclosed(
            self._course,
            self._clipping,
            noise=self.noise,
            diagnostics=self._diagnostics is not None,
        )

    def report(
        self,
        path: str | Path | None = None,
        *,
        audit: AuditFindings | None = None,
        metrics: Iterable[Mapping[str, Any]] = (),
    ) -> Statement:
        """The privacy report so far: what is promised, to whom, and what is not covered.

        Args:
            path: writes it there, as one HTML file that needs nothing else.
            audit: what an audit of such training found: its result, or its JSON object.
            metrics: one mapping per epoch, with "epoch" and for example "test_accuracy" and
                "epsilon". They are shown as they are: pass none that was read from training data.
        """
        from quietgrad import report  # its templates are needed by nobody else

        statement = report.statement_of_engine(
            self._ledger, self.settings(), audit=audit, metrics=metrics
        )
        if path is not None:
            report.write(statement, path)
        return statement
