"""What is said about a run, in the same words by all commands."""

import math
from collections.abc import Sequence

from quietgrad.accounting import FullBatch, Participation, Passes, Poisson, TruncatedPoisson
from quietgrad.cli.plan import Given, Plan
from quietgrad.cli.spent import Spent

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


def steps(plan: Plan) -> str:
    """How long the run is."""
    length = _count(plan.steps, "step", "steps")
    if not isinstance(plan.sampling, Passes):
        return length
    return f"{length} in {_count(plan.sampling.count(plan.steps), 'pass', 'passes')}"


def setting(plan: Plan, known: str) -> list[str]:
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
