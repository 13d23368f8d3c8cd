"""What each accountant says about a run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from quietgrad import accounting
from quietgrad._checks import require_delta, require_number
from quietgrad.accounting import PrivacyProfile
from quietgrad.accounting.accountants import resolve
from quietgrad.cli.plan import Plan
from quietgrad.cli.rounding import json_number, printed


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
    plan: Plan, noise_multiplier: float, question: Question, accountants: Iterable[str]
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


def _spent_by(name: str, event: accounting.GaussianEvent, plan: Plan, question: Question) -> Spent:
    guarantee = resolve(name).is_guarantee
    try:
        profile = accounting.profile([event], accountant=name, adjacency=plan.adjacency)
    except ValueError as error:
        return Spent(name, guarantee, None, str(error))
    return Spent(name, guarantee, question.answer(profile))
