"""What each accountant says about a run."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quietgrad import accounting
from quietgrad._checks import require_delta, require_number
from quietgrad._format import json_number, printed
from quietgrad.accounting.accountants import resolve
from quietgrad.accounting.accountants.base import PrivacyProfile
from quietgrad.accounting.events import FullBatch, Participation, Passes, Poisson, TruncatedPoisson
from quietgrad.cli.options import Given, TrainingPlan


@dataclass(frozen=True)
class Question:
    """Epsilon at a delta, or delta at an epsilon.

    Attributes:
        asked: the name of what is asked for.
        known: the name of the other.
        at: the value of the other.
    """

    asked: Literal["epsilon", "delta"]
    known: Literal["epsilon", "delta"]
    at: float

    def answer(self, profile: PrivacyProfile) -> float:
        """What is asked for."""
        return profile.epsilon(self.at) if self.asked == "epsilon" else profile.delta(self.at)


def question(*, delta: float | None = None, epsilon: float | None = None) -> Question:
    """What is asked by giving one of the two; ValueError unless it is one, and in range."""
    if (delta is None) == (epsilon is None):
        found = "neither" if delta is None else "both"
        raise ValueError(f"expected either --delta or --epsilon, got {found}")
    if epsilon is not None:
        return Question("delta", "epsilon", require_number("--epsilon", epsilon, at_least=0.0))
    return Question("epsilon", "delta", require_delta("--delta", delta))


@dataclass(frozen=True)
class Spent:
    """One accountant's answer.

    Attributes:
        accountant: its name.
        is_guarantee: whether the value is an upper bound for the run.
        value: the answer; None if the accountant has none for such a run.
        refusal: why it has none.
    """

    accountant: str
    is_guarantee: bool
    value: float | None
    refusal: str | None = None

    def __str__(self) -> str:
        return "not defined" if self.value is None else printed(self.value, up=self.is_guarantee)

    def as_dict(self, question: Question) -> dict[str, Any]:
        """For `--json`."""
        pair = {question.asked: json_number(self.value), question.known: question.at}
        why = {} if self.refusal is None else {"not_defined": self.refusal}
        return pair | {"is_guarantee": self.is_guarantee} | why


def spent(
    plan: TrainingPlan, noise_multiplier: float, question: Question, accountants: Iterable[str]
) -> list[Spent]:
    """The answers of all of these accountants.

    Raises:
        ValueError: not one of them has an answer for such a run.
    """
    event = plan.event(noise_multiplier)
    answers = [_spent_by(name, event, plan, question) for name in accountants]
    if all(each.value is None for each in answers):
        raise ValueError(answers[0].refusal)
    return answers


def _spent_by(
    name: str, event: accounting.GaussianEvent, plan: TrainingPlan, question: Question
) -> Spent:
    guarantee = resolve(name).is_guarantee
    try:
        profile = accounting.profile([event], accountant=name, adjacency=plan.adjacency)
    except ValueError as error:
        return Spent(name, guarantee, None, str(error))
    return Spent(name, guarantee, question.answer(profile))


APPROXIMATION = "approximation, NOT a guarantee"
_BOUNDS = {"pld": "upper bound, tight", "rdp": "upper bound (Renyi)"}


def what_it_is(answer: Spent, answers: Sequence[Spent]) -> str:
    """What an accountant's figure is worth, seen beside those of others."""
    if answer.value is None:
        return "no formula for such a run"
    if answer.is_guarantee:
        return _BOUNDS.get(answer.accountant, "upper bound")
    # With little noise or large batches the central-limit formula gives far more than the truth.
    bounds = (each.value for each in answers if each.is_guarantee and each.value is not None)
    above = answer.value > min(bounds, default=math.inf)
    return f"{APPROXIMATION}: {'here above' if above else 'usually below'} the true value"


def steps(plan: TrainingPlan) -> str:
    """How long the run is."""
    length = _count(plan.steps, "step", "steps")
    if not isinstance(plan.sampling, Passes):
        return length
    return f"{length} in {_count(plan.sampling.count(plan.steps), 'pass', 'passes')}"


def setting(plan: TrainingPlan, known: str) -> list[str]:
    """Everything a figure depends on besides noise and steps: a line, and one if it needs a reason.

    Args:
        plan: the run.
        known: what else is given, such as "delta 1e-05".
    """
    line = f"{_sampling(plan.sampling, plan.given)}, adjacency {plan.adjacency}, {known}"
    if not isinstance(plan.sampling, Passes) or plan.given.adjacency is not None:
        return [line]
    return [
        line,
        f"({plan.adjacency} is the default for shuffled batches: their fixed size shows how many"
        " samples there are)",
    ]


def _sampling(sampling: Participation, given: Given) -> str:
    match sampling:
        case Poisson(rate):
            return f"Poisson sampling at rate {rate:.6g}{_sizes(given)}"
        case TruncatedPoisson(rate, largest):
            return f"Poisson sampling at rate {rate:.6g}{_sizes(given)}, cut at {largest:,} samples"
        case Passes():
            return f"shuffled batches{_sizes(given)}"
        case FullBatch():
            return "full batches"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _sizes(given: Given) -> str:
    if given.dataset_size is None:
        return ""
    if given.batch_size is None:
        return f" (of {given.dataset_size:,})"
    return f" ({given.batch_size:,} of {given.dataset_size:,})"
