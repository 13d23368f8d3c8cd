"""What `quietgrad epsilon` says, as a table and as a JSON object."""

import math
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from quietgrad.cli import wording
from quietgrad.cli.plan import Plan
from quietgrad.cli.spent import Question, Spent

_DOES_NOT_HOLD = "if sampling had been Poisson: does not hold for shuffled batches"


@dataclass(frozen=True)
class Report:
    """Every accountant's answer.

    Attributes:
        plan: the run.
        noise_multiplier: of its every step.
        question: what was asked.
        results: the answers.
        pretended: for shuffled batches, the Poisson-sampled run they are often taken for.
        untrue: the answers for that one, which do not hold for what is done.
    """

    plan: Plan
    noise_multiplier: float
    question: Question
    results: list[Spent]
    pretended: Plan | None = None
    untrue: list[Spent] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        known = {self.question.known: self.question.at}
        inputs = {"noise_multiplier": self.noise_multiplier} | self.plan.given.typed() | known
        report = {"inputs": inputs} | self.plan.as_dict() | {"results": self._dict(self.results)}
        if self.pretended is not None:
            report["if_poisson"] = (
                {"holds": False} | self.pretended.as_dict() | {"results": self._dict(self.untrue)}
            )
        return report

    def show(self, console: Console) -> None:
        """The same for people."""
        asked = self.question
        console.print(f"{wording.steps(self.plan)} with noise multiplier {self.noise_multiplier:g}")
        for line in wording.setting(self.plan, f"{asked.known} {asked.at:g}"):
            console.print(line)
        console.print(self._table())
        if math.inf in [each.value for each in self.results]:
            console.print("infinity: that accountant can show no finite epsilon at this delta.")

    def _table(self) -> Table:
        shuffled = self.pretended is not None
        table = Table()
        table.add_column("accountant")
        performed = " as performed: shuffled, not amplified" if shuffled else ""
        table.add_column(self.question.asked + performed, justify="right", max_width=21)
        if shuffled:
            table.add_column(_DOES_NOT_HOLD, justify="right", max_width=21)
        table.add_column("what it is")
        for number, each in enumerate(self.results):
            beside = [str(self.untrue[number])] if shuffled else []
            words = wording.what_it_is(each, self.results)
            table.add_row(each.accountant, str(each), *beside, words)
        return table

    def _dict(self, answers: list[Spent]) -> dict[str, Any]:
        return {each.accountant: each.as_dict(self.question) for each in answers}
