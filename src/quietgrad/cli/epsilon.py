"""`quietgrad epsilon`: what each accountant says that a run spends."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console
from rich.table import Table

from quietgrad._checks import require_delta, require_number
from quietgrad._format import json_number, printed
from quietgrad.accounting.accountants import names as accountant_names
from quietgrad.accounting.accountants import profile, resolve
from quietgrad.accounting.accountants.base import PrivacyProfile
from quietgrad.accounting.events import Passes, Poisson, TruncatedPoisson
from quietgrad.cli.common import (
    computing,
    plot_option,
    print_result,
    require_drawable,
    require_one,
    write_figure,
)
from quietgrad.cli.options import (
    TrainingPlan,
    adjacency_option,
    json_option,
    noise_option,
    plan_options,
)
from quietgrad.plots.runs import epsilon_figure, epsilon_over_steps

_APPROXIMATION = "approximation, NOT a guarantee"
_BOUNDS = {"pld": "upper bound, tight", "rdp": "upper bound (Renyi)"}
_DOES_NOT_HOLD = "if sampling had been Poisson: does not hold for shuffled batches"


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

    @classmethod
    def of(cls, *, delta: float | None = None, epsilon: float | None = None) -> "Question":
        """What is asked by giving one of the two; ValueError unless it is one, and in range."""
        require_one(delta=delta, epsilon=epsilon)
        if epsilon is not None:
            return cls("delta", "epsilon", require_number("--epsilon", epsilon, at_least=0.0))
        return cls("epsilon", "delta", require_delta("--delta", delta))

    def answer(self, profile: PrivacyProfile) -> float:
        """What is asked for."""
        return profile.epsilon(self.at) if self.asked == "epsilon" else profile.delta(self.at)


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

    def meaning(self, answers: Sequence["Spent"]) -> str:
        """What the figure is, beside those of other accountants."""
        if self.value is None:
            return "no formula for such a run"
        if self.is_guarantee:
            return _BOUNDS.get(self.accountant, "upper bound")
        # With little noise or large batches the central-limit formula is far above the truth.
        bounds = (each.value for each in answers if each.is_guarantee and each.value is not None)
        above = self.value > min(bounds, default=math.inf)
        return f"{_APPROXIMATION}: {'here above' if above else 'usually below'} the true value"


def spent(
    plan: TrainingPlan, noise_multiplier: float, question: Question, accountants: Iterable[str]
) -> list[Spent]:
    """The answers of all of these accountants; ValueError if none has one for such a run."""
    answers = []
    for name in accountants:
        guarantee, event = resolve(name).is_guarantee, plan.event(noise_multiplier)
        try:
            found = profile([event], accountant=name, adjacency=plan.adjacency)
        except ValueError as error:
            answers.append(Spent(name, guarantee, None, str(error)))
        else:
            answers.append(Spent(name, guarantee, question.answer(found)))
    if all(each.value is None for each in answers):
        raise ValueError(answers[0].refusal)
    return answers


def answers_as_dict(answers: Iterable[Spent], question: Question) -> dict[str, Any]:
    """Answers by accountant, for `--json`."""
    return {
        each.accountant: {
            question.asked: json_number(each.value),
            question.known: question.at,
            "is_guarantee": each.is_guarantee,
            **({} if each.refusal is None else {"not_defined": each.refusal}),
        }
        for each in answers
    }


@click.command(
    epilog="""
    Examples:

    \b
      quietgrad epsilon --noise-multiplier 1.1 --delta 1e-5 \\
          --sample-rate 0.01 --steps 5000
      quietgrad epsilon --noise-multiplier 1.1 --delta 1e-5 \\
          --batch-size 256 --dataset-size 60000 --epochs 15 --sampling shuffled
    """
)
@noise_option(required=True)
@plan_options
@click.option("--delta", type=float, metavar="DELTA", help="Print epsilon at this delta.")
@click.option("--epsilon", type=float, metavar="EPSILON", help="Print delta at this epsilon.")
@adjacency_option
@click.option(
    "--accountant",
    "accountants",
    type=click.Choice(accountant_names()),
    multiple=True,
    help="Accountant to use; may be repeated. Default: all.",
)
@json_option
@plot_option("epsilon over steps")
def epsilon(
    plan: TrainingPlan,
    noise_multiplier: float,
    delta: float | None,
    epsilon: float | None,
    accountants: tuple[str, ...],
    as_json: bool,
    plot: Path | None,
) -> None:
    """Compute the epsilon, or the delta, that a run spends.

    Prints epsilon at --delta, or delta at --epsilon, by every accountant. Printed bounds are
    rounded up; --json has all digits.
    """
    with computing("Composing the steps"):
        question = Question.of(delta=delta, epsilon=epsilon)
        if plot is not None:
            if question.asked != "epsilon":
                raise ValueError("--plot draws epsilon over steps: it needs --delta, not --epsilon")
            require_drawable(plot)
        names = tuple(dict.fromkeys(accountants or accountant_names()))
        results = spent(plan, noise_multiplier, question, names)
        pretended, untrue = plan.if_poisson(), list[Spent]()
        if pretended is not None:
            # Whatever an accountant is, it bounds nothing for another run than the one performed.
            answers = spent(pretended, noise_multiplier, question, names)
            untrue = [replace(each, is_guarantee=False) for each in answers]
    if plot is not None:
        _write_plot(plot, plan, noise_multiplier, question, results)
    found = {
        "inputs": {
            "noise_multiplier": noise_multiplier,
            **plan.given.typed(),
            question.known: question.at,
        },
        **plan.as_dict(),
        "results": answers_as_dict(results, question),
    }
    if pretended is not None:
        found["if_poisson"] = {
            "holds": False,
            **pretended.as_dict(),
            "results": answers_as_dict(untrue, question),
        }

    def show(console: Console) -> None:
        console.print(f"{plan.length()} with noise multiplier {noise_multiplier:g}")
        for line in plan.conditions(f"{question.known} {question.at:g}"):
            console.print(line)
        console.print(_table(question, results, untrue))
        if math.inf in [each.value for each in results]:
            console.print("infinity: that accountant can show no finite epsilon at this delta.")

    print_result(found, show, as_json=as_json)


def _table(question: Question, results: list[Spent], untrue: list[Spent]) -> Table:
    performed = " as performed: shuffled, not amplified" if untrue else ""
    table = Table("accountant")
    table.add_column(question.asked + performed, justify="right", max_width=21)
    if untrue:
        table.add_column(_DOES_NOT_HOLD, justify="right", max_width=21)
    table.add_column("meaning")
    for number, each in enumerate(results):
        beside = [str(untrue[number])] if untrue else []
        table.add_row(each.accountant, str(each), *beside, each.meaning(results))
    return table


def _write_plot(
    file: Path, plan: TrainingPlan, sigma: float, question: Question, results: list[Spent]
) -> None:
    """Compute the curves, draw them, write the file."""
    match plan.sampling:
        case Poisson(rate) | TruncatedPoisson(rate):
            sampling = f"q = {rate:.6g}"
        case Passes(length):
            sampling = f"shuffled in passes of {length:,} steps"
        case _:
            sampling = "full batches"
    noise = f"\N{GREEK SMALL LETTER SIGMA} = {sigma:g}"
    delta = f"\N{GREEK SMALL LETTER DELTA} = {question.at:g}"
    with computing("Computing epsilon over steps"):
        curves = {}
        for each in results:
            if each.value is not None:
                meaning = each.meaning(results) if each.is_guarantee else _APPROXIMATION
                curves[f"{each.accountant}: {each}, {meaning}"] = epsilon_over_steps(
                    noise_multiplier=sigma,
                    sampling=plan.sampling,
                    steps=plan.steps,
                    delta=question.at,
                    accountant=each.accountant,
                    adjacency=plan.adjacency,
                )
        figure = epsilon_figure(curves, title=f"{noise}, {sampling}, {delta}, {plan.adjacency}")
    write_figure(figure, file)
