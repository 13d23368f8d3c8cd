"""The noise of each step, and whether there may be another."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from quietgrad import accounting
from quietgrad._checks import require_count, require_positive
from quietgrad.accounting.events import GaussianEvent, Participation, Passes
from quietgrad.accounting.ledger import Ledger
from quietgrad.errors import BudgetExhaustedError, EngineStateError


def planned(
    factors: Sequence[float],
    sampling: Participation,
    noise_multiplier: float,
    *,
    first: int = 0,
    counted: Collection[float] = (),
) -> list[GaussianEvent]:
    """What is to come, equal steps together.

    Args:
        factors: the schedule's, for all steps.
        sampling: how samples take part.
        noise_multiplier: of a step whose factor is 1.
        first: the first step that was not recorded yet.
        counted: noise for which the pass that this step is in was counted already.
    """
    steps, passes = Counter(factors[first:]), Counter[float]()
    if isinstance(sampling, Passes):
        for start in range(first - first % sampling.length, len(factors), sampling.length):
            levels = set(factors[max(start, first) : start + sampling.length])
            if start < first:
                levels = {each for each in levels if noise_multiplier * each not in counted}
            passes.update(levels)
    return [
        GaussianEvent(noise_multiplier * factor, sampling, steps[factor], passes[factor])
        for factor in steps
    ]


NoiseSchedule = Callable[[int], float]
"""The factor by which the noise of a step, counted from 0, is multiplied."""

_MOST_LEVELS = 24


def in_steps(factors: Sequence[float]) -> tuple[float, ...]:
    """The schedule as it is followed: with at most 24 different factors.

    Every different noise is a mechanism of its own, and each takes time to account for. A smooth
    schedule is therefore followed in equal ratios; what is recorded is the noise that is added.
    """
    if len(set(factors)) <= _MOST_LEVELS:
        return tuple(factors)
    least = min(factors)
    ratio = (max(factors) / least) ** (1 / (_MOST_LEVELS - 1))
    return tuple(least * ratio ** round(math.log(each / least, ratio)) for each in factors)


# By which another machine's figures may differ: such a run is checked step by step instead.
_ROUNDING = 1e-3


class Budget:
    """Plans the noise so that a target is kept, and records every step before it is released.

    Args:
        ledger: what was done to the data so far, and where steps are recorded.
        sampling: how samples take part in these steps.
        delta: of the target.
        accountant: of the target.
        planned_steps: how many steps there are to be; None without a plan.
        ends_anywhere: whether the plan is a number of steps, and may end within a pass.
        dataset: the name of the data set, by which its steps are recorded; or None.
        epsilon: the target for everything in the ledger and all planned steps; or None.
        noise_multiplier: the noise itself; or None.
        schedule: a public function of the step number; None keeps the noise the same.
        source: where the noise comes from, to be recorded with every step.
    """

    def __init__(
        self,
        ledger: Ledger,
        sampling: Participation,
        *,
        delta: float,
        accountant: str,
        planned_steps: int | None,
        epsilon: float | None,
        noise_multiplier: float | None,
        schedule: NoiseSchedule | None,
        source: str,
        ends_anywhere: bool = False,
        dataset: str | None = None,
    ) -> None:
        if (epsilon is None) == (noise_multiplier is None):
            raise ValueError("pass either epsilon= (a target) or noise_multiplier=, and not both")
        if epsilon is not None and planned_steps is None:
            raise ValueError(
                "epsilon= needs epochs= or steps=: the noise depends on the number of steps"
            )
        self._ledger = ledger
        self._sampling = sampling
        self._delta, self._accountant = delta, accountant
        self._planned_steps, self._ends_anywhere = planned_steps, ends_anywhere
        self._dataset = dataset
        self._target = None if epsilon is None else require_positive("epsilon", epsilon)
        self._schedule, self._source = schedule, source
        # Asked once for every planned step: a function that answers differently the next time must
        # not make the noise another than the one that was planned.
        self._factors = in_steps([self._asked(step) for step in range(planned_steps or 0)])
        self._noise_multiplier = (
            None
            if noise_multiplier is None
            else require_positive("noise_multiplier", noise_multiplier)
        )
        self._events: dict[tuple[float, int], GaussianEvent] = {}  # most steps are alike
        self._recorded = 0
        self._ledger_steps = ledger.steps
        self._is_off_plan = False
        self._lost = 0
        self._pass_number: int | None = None
        self._noise_in_pass: set[float] = set()
        self._continues_pass = False
        self._times_covered = ledger.times_covered
        if not self._spent_before:
            # Otherwise only when it is needed: a run that is resumed brings its noise along.
            _ = self.noise_multiplier

    @property
    def noise_multiplier(self) -> float:
        """Of a step whose schedule says 1."""
        if self._noise_multiplier is None:
            self._noise_multiplier = self._calibrated()
        return self._noise_multiplier

    def describe(self) -> str:
        """Target and noise, as arguments; it never calibrates, which may be slow or refused."""
        target = "" if self._target is None else f"epsilon={self._target:g}, "
        sigma = self._noise_multiplier
        return f"{target}noise_multiplier={'not yet known' if sigma is None else f'{sigma:.4g}'}"

    @property
    def planned_steps(self) -> int | None:
        """How many steps there are to be; None without a plan."""
        return self._planned_steps

    @property
    def ends_anywhere(self) -> bool:
        """Whether the plan is a number of steps, and may end within a pass."""
        return self._ends_anywhere

    @property
    def steps_left(self) -> int | None:
        """How many of the planned steps are left; None where nothing ends with them."""
        if self._planned_steps is None or (self._target is None and not self._ends_anywhere):
            return None
        return max(0, self._planned_steps - self._recorded)

    @property
    def noise_levels(self) -> list[float] | None:
        """Every noise multiplier that is planned; None if a schedule has no planned end."""
        if self._schedule is not None and self._planned_steps is None:
            return None
        return sorted({self.noise_multiplier * factor for factor in self._factors or (1.0,)})

    @property
    def lost_steps(self) -> int:
        """Steps that were recorded and whose updates were lost or taken back."""
        return self._lost

    @property
    def schedule(self) -> str | None:
        """Names the schedule, so that a run is resumed with the same."""
        if self._schedule is None:
            return None
        digest = hashlib.sha256(repr(self._factors).encode()).hexdigest()
        return f"over {len(self._factors)} planned steps, {digest[:16]}"

    def require_room(self, step: int, *, pass_number: int | None = None) -> None:
        """Refuse a step that would spend more than the target.

        Args:
            step: its number, from 0.
            pass_number: the pass it belongs to, once that is known.
        """
        _ = self.noise_multiplier  # a target that is out of reach is refused before any batch
        if self.steps_left == 0:
            raise BudgetExhaustedError(self._spent())
        if self._target is None:
            return
        # Counting one's own steps is enough, unless others record in the same ledger, a pass that
        # was broken off is begun again, or steps of a schedule are repeated.
        self._is_off_plan |= self._ledger.steps != self._ledger_steps
        self._forget_pass_of_others()
        begins_pass = isinstance(self._sampling, Passes) and pass_number != self._pass_number
        if self._is_off_plan or (begins_pass and pass_number is not None):
            self._require_room_for(self._event(step, pass_number))

    def record(self, step: int, *, pass_number: int) -> float:
        """Write the step down; after this it counts as released.

        Returns:
            The noise multiplier that was recorded, and must be used.
        """
        self._forget_pass_of_others()
        event = self._event(step, pass_number)
        self._ledger.record(event)
        self._count(event, pass_number)
        return event.noise_multiplier

    @contextmanager
    def recording(self, step: int, *, pass_number: int) -> Iterator[float]:
        """The same, beside what is done in here. If that raises, nothing is recorded."""
        self._forget_pass_of_others()
        event = self._event(step, pass_number)
        with self._ledger.recording(event):
            yield event.noise_multiplier
        self._count(event, pass_number)

    def _count(self, event: GaussianEvent, pass_number: int) -> None:
        """What was recorded."""
        if self._pass_number != pass_number:
            self._pass_number, self._noise_in_pass = pass_number, set()
        self._noise_in_pass.add(event.noise_multiplier)
        self._recorded += 1
        self._ledger_steps = self._ledger.steps

    def state_dict(self) -> dict[str, Any]:
        """Plain data; the ledger is saved apart."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "recorded": self._recorded,
            "lost": self._lost,
            "is_off_plan": self._is_off_plan,
            "pass_number": self._pass_number,
            "noise_in_pass": sorted(self._noise_in_pass),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], *, lost: int, same_history: bool, same_pass: bool
    ) -> None:
        """Go on where `state_dict` was taken.

        Args:
            state: what `state_dict` gave.
            lost: steps in the ledger that are not in the saved one; they count as taken.
            same_history: whether they were taken by this run, after the state was saved.
            same_pass: whether the pass that was under way goes on with the same batches.
        """
        noise_multiplier = require_positive("noise_multiplier", state["noise_multiplier"])
        if self._target is None and noise_multiplier != self._noise_multiplier:
            raise EngineStateError(
                f"the state's budget has noise_multiplier={noise_multiplier:g}, and the run was "
                f"begun with {self._noise_multiplier:g}: it was edited; restore a copy of it."
            )
        self._noise_multiplier = noise_multiplier
        require_count("recorded", state["recorded"], at_least=0)
        self._lost = state["lost"] + lost
        self._recorded = state["recorded"] + (lost if same_history else 0)
        self._ledger_steps = self._ledger.steps
        # Steps that were repeated are as many as planned, but they may have had less noise.
        mechanisms = {(event.noise_multiplier, event.sampling) for event in self._ledger.events}
        self._is_off_plan |= state["is_off_plan"] or not same_history
        self._is_off_plan |= lost > 0 and (self._schedule is not None or len(mechanisms) > 1)
        self._forget_pass()
        self._times_covered = self._ledger.times_covered
        if same_pass and not lost:
            self._pass_number = state["pass_number"]
            self._noise_in_pass = set(state["noise_in_pass"])
            self._continues_pass = True
        if self._target is not None:
            is_as_planned = same_history and same_pass and not lost and not self._is_off_plan
            self._look_ahead(is_as_planned=is_as_planned)

    def _forget_pass_of_others(self) -> None:
        """Count a pass again that another engine may be going through too.

        That is so if a state was loaded into any engine with this ledger; and if this one goes on
        with a pass from a state, while others record.
        """
        is_shared = self._continues_pass and self._ledger.steps != self._ledger_steps
        if is_shared or self._ledger.times_covered != self._times_covered:
            self._times_covered = self._ledger.times_covered
            self._forget_pass()

    def _forget_pass(self) -> None:
        """What follows counts as a pass of its own."""
        self._pass_number, self._noise_in_pass, self._continues_pass = None, set(), False

    def _event(self, step: int, pass_number: int | None) -> GaussianEvent:
        sigma = self.noise_multiplier * self._factor(step)
        # A sample takes part in one step of a pass, and it may be any: a pass counts once for each
        # noise that occurs in it.
        known = pass_number == self._pass_number and sigma in self._noise_in_pass
        begins = isinstance(self._sampling, Passes) and not known
        key = sigma, int(begins)
        if key not in self._events:
            self._events[key] = GaussianEvent(
                sigma,
                self._sampling,
                1,
                passes=int(begins),
                noise=self._source,
                dataset=self._dataset,
            )
        return self._events[key]

    def _factor(self, step: int) -> float:
        return self._factors[step] if step < len(self._factors) else self._asked(step)

    def _asked(self, step: int) -> float:
        if self._schedule is None:
            return 1.0
        return require_positive(f"noise_schedule({step})", self._schedule(step))

    def _calibrated(self) -> float:
        assert self._planned_steps is not None
        assert self._target is not None
        if self._spent_before:
            self._warn_of_what_was_spent()
        return accounting.calibrate_plan(
            lambda sigma: planned(self._factors, self._sampling, sigma),
            epsilon=self._target,
            delta=self._delta,
            accountant=self._accountant,
            adjacency=self._ledger.adjacency,
            spent=self._spent_before,
        )

    @property
    def _spent_before(self) -> tuple[GaussianEvent, ...]:
        """Everything in the ledger that concerns the data set."""
        return self._ledger.concerning(self._dataset)

    def _warn_of_what_was_spent(self) -> None:
        before = self._spent_before
        spent = accounting.profile(
            before, accountant=self._accountant, adjacency=self._ledger.adjacency
        ).epsilon(self._delta)
        steps = sum(event.steps for event in before)
        warnings.warn(
            f"the ledger holds {steps} steps already, which count (earlier training, "
            f"statistics of the same data): they spend epsilon={spent:.4g} of the target "
            f"{self._target:g}, and the noise is calibrated for what is left. If they are steps of "
            "this very run, load its saved state first.",
            stacklevel=2,
        )

    def _spent(self) -> str:
        if self._lost:
            target = self._target
            within = "" if target is None else f", so that epsilon stays within {target:g}"
            return (
                f"the budget is spent: of {self._planned_steps} planned steps, {self._lost} "
                f"{'was' if self._lost == 1 else 'were'} recorded and then lost to an "
                "interruption, or taken back by loading an earlier state. What was recorded "
                f"counts{within}."
            )
        if self._target is None:
            return (
                f"all {self._planned_steps} planned steps were taken. Plan for more with a larger "
                "steps=, and train while engine.has_budget."
            )
        return (
            f"all {self._planned_steps} planned steps were taken: another would spend more than "
            f"the target epsilon={self._target:g}. Plan for more with a larger "
            f"{'steps' if self._ends_anywhere else 'epochs'}=, or pass noise_multiplier= to train "
            "without a target."
        )

    def _look_ahead(self, *, is_as_planned: bool) -> None:
        """See whether the noise of a state is enough for all that is planned.

        If it is not, every step is checked from here on. A state that never left its plan has no
        reason for that, unless it was edited.
        """
        assert self._target is not None
        rest = planned(
            self._factors,
            self._sampling,
            self.noise_multiplier,
            first=self._recorded,
            counted=self._noise_in_pass,
        )
        spent = self._spent_with(*rest)
        self._is_off_plan |= spent > self._target
        if is_as_planned and spent > self._target * (1 + _ROUNDING):
            raise EngineStateError(
                f"the state's noise_multiplier={self.noise_multiplier:g} would spend "
                f"epsilon={spent:.4g} by the end of its plan, more than the target "
                f"{self._target:g} it was made for: it was edited; restore a copy of it."
            )

    def _spent_with(self, *events: GaussianEvent) -> float:
        """What everything in the ledger and this would spend."""
        whole = accounting.profile(
            (*self._spent_before, *events),
            accountant=self._accountant,
            adjacency=self._ledger.adjacency,
        )
        return whole.epsilon(self._delta)

    def _require_room_for(self, event: GaussianEvent) -> None:
        assert self._target is not None
        if (spent := self._spent_with(event)) > self._target:
            raise BudgetExhaustedError(
                f"another step would spend epsilon={spent:.4g}, more than the target "
                f"{self._target:g}: other engines record in the same ledger, or a pass over the "
                "data was begun again. Make engines one after the other, so that the noise of each "
                "is calibrated for what the last one left."
            )
