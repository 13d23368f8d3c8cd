"""Options of the accounting commands, what they mean together, and options of all commands."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial, wraps
from typing import Any

import click

from quietgrad._checks import require_count, require_rate
from quietgrad.accounting.calibration import as_if_poisson
from quietgrad.accounting.events import (
    ADD_REMOVE,
    ADJACENCIES,
    REPLACE,
    Adjacency,
    FullBatch,
    GaussianEvent,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
    to_dict,
)
from quietgrad.cli.common import counted, only_json, refusals, require_one

SAMPLERS = ("poisson", "shuffled", "full-batch")


@dataclass(frozen=True)
class Given:
    """The options as typed; None where one was left out."""

    sampler: str = "poisson"
    sample_rate: float | None = None
    batch_size: int | None = None
    dataset_size: int | None = None
    largest_batch: int | None = None
    steps: int | None = None
    epochs: int | None = None
    adjacency: Adjacency | None = None

    def typed(self) -> dict[str, Any]:
        """Those that were not left out, for `--json`."""
        typed = {name: value for name, value in asdict(self).items() if value is not None}
        return {"sampling" if name == "sampler" else name: typed[name] for name in typed}


@dataclass(frozen=True)
class TrainingPlan:
    """What the options mean.

    Attributes:
        given: the options themselves.
        sampling: how samples take part.
        steps: how many steps there are.
        adjacency: which data sets are neighbours.
    """

    given: Given
    sampling: Participation
    steps: int
    adjacency: Adjacency

    def event(self, noise_multiplier: float) -> GaussianEvent:
        """The whole run, with this noise."""
        return GaussianEvent(noise_multiplier, self.sampling, self.steps)

    def if_poisson(self) -> "TrainingPlan | None":
        """For shuffled batches, the run that they are often taken for; None for others."""
        if not isinstance(self.sampling, Passes):
            return None
        (pretended,) = as_if_poisson([self.event(1.0)])
        return replace(self, sampling=pretended.sampling)

    def as_dict(self) -> dict[str, Any]:
        """As understood, for `--json`."""
        return {
            "steps": self.steps,
            "sampling": to_dict(self.sampling),
            "adjacency": self.adjacency,
        }

    def length(self) -> str:
        """How long the run is, in words."""
        length = counted(self.steps, "step")
        if not isinstance(self.sampling, Passes):
            return length
        return f"{length} in {counted(self.sampling.count(self.steps), 'pass', 'passes')}"

    def conditions(self, known: str) -> list[str]:
        """What a figure depends on besides noise and steps: a line, and its reason if needed.

        Args:
            known: what else is given, such as "delta 1e-05".
        """
        size, of_all = self.given.batch_size, self.given.dataset_size
        sizes = f" ({'' if size is None else f'{size:,} '}of {of_all:,})" if of_all else ""
        match self.sampling:
            case Poisson(rate):
                sampling = f"Poisson sampling at rate {rate:.6g}{sizes}"
            case TruncatedPoisson(rate, largest):
                cut = f"truncated to {largest:,} samples"
                sampling = f"Poisson sampling at rate {rate:.6g}{sizes}, {cut}"
            case Passes():
                sampling = f"shuffled batches{sizes}"
            case FullBatch():
                sampling = "full batches"
        line = f"{sampling}, adjacency {self.adjacency}, {known}"
        if not isinstance(self.sampling, Passes) or self.given.adjacency is not None:
            return [line]
        return [
            line,
            f"({self.adjacency} is the default for shuffled batches: their fixed size shows how"
            " many samples there are)",
        ]


def plan_from(given: Given) -> TrainingPlan:
    """What the options mean together.

    Raises:
        ValueError: an option is missing, out of range, or contradicts another.
    """
    adjacency = given.adjacency or (REPLACE if given.sampler == "shuffled" else ADD_REMOVE)
    return TrainingPlan(given, _sampling(given), _steps(given), adjacency)


def _sampling(given: Given) -> Participation:
    match given.sampler:
        case "shuffled":
            _refuse_unused(given, "sample_rate", "largest_batch")
            return Passes(length=_steps_per_epoch(given))
        case "full-batch":
            _refuse_unused(given, "sample_rate", "batch_size", "dataset_size", "largest_batch")
            return FullBatch()
        case _:
            return _poisson(given)


def _poisson(given: Given) -> Poisson | TruncatedPoisson:
    if given.largest_batch is None:
        return Poisson(_rate(given))
    if given.dataset_size is None:
        raise ValueError("--largest-batch needs --dataset-size")
    largest = require_count("--largest-batch", given.largest_batch, at_least=1)
    samples = require_count("--dataset-size", given.dataset_size, at_least=1)
    # The larger of two neighbouring data sets has one sample more, as the sampler itself has it.
    return TruncatedPoisson(_rate(given), largest, samples + 1)


def _rate(given: Given) -> float:
    if given.sample_rate is None:
        batch, samples = _sizes(given)
        return batch / samples
    if given.batch_size is not None:
        raise ValueError("--sample-rate and --batch-size both state the rate: give only one")
    if given.dataset_size is not None and given.largest_batch is None:
        raise ValueError(
            "--sample-rate already states the rate: leave out --dataset-size, or give"
            " --batch-size instead of --sample-rate"
        )
    return require_rate("--sample-rate", given.sample_rate)


def _sizes(given: Given) -> tuple[int, int]:
    """Sizes of a batch and of the data set."""
    if given.batch_size is None or given.dataset_size is None:
        if given.sampler == "shuffled":
            raise ValueError("--sampling shuffled needs --batch-size and --dataset-size")
        if given.batch_size is not None:
            raise ValueError("--batch-size needs --dataset-size: the rate is one over the other")
        raise ValueError(
            "the sampling is not stated: give --sample-rate, or --batch-size and --dataset-size"
        )
    batch = require_count("--batch-size", given.batch_size, at_least=1)
    samples = require_count("--dataset-size", given.dataset_size, at_least=1)
    if batch > samples:
        raise ValueError(f"--batch-size={batch} exceeds --dataset-size={samples}")
    return batch, samples


def _steps(given: Given) -> int:
    require_one(steps=given.steps, epochs=given.epochs)
    if given.epochs is None:
        return require_count("--steps", given.steps, at_least=1)
    epochs = require_count("--epochs", given.epochs, at_least=1)
    if given.sample_rate is not None:
        raise ValueError("--epochs needs --batch-size and --dataset-size, not --sample-rate")
    return epochs * _steps_per_epoch(given)


def _steps_per_epoch(given: Given) -> int:
    if given.sampler == "full-batch":
        return 1
    batch, samples = _sizes(given)
    # The last of the shuffled batches may be smaller; Poisson batches have no last one.
    return math.ceil(samples / batch) if given.sampler == "shuffled" else round(samples / batch)


def _refuse_unused(given: Given, *names: str) -> None:
    for name in names:
        if getattr(given, name) is not None:
            option = "--" + name.replace("_", "-")
            raise ValueError(
                f"{option} has no meaning for --sampling {given.sampler}: leave it out"
            )


Command = Callable[..., None]
Decorator = Callable[[Command], Command]

noise_option = partial(
    click.option,
    "--noise-multiplier",
    type=float,
    metavar="SIGMA",
    help="Standard deviation of the noise divided by the sensitivity of the clipped sum.",
)
epsilon_option = partial(
    click.option, "--epsilon", type=float, metavar="EPSILON", help="Target epsilon."
)
delta_option = click.option(
    "--delta",
    type=float,
    required=True,
    metavar="DELTA",
    help="Probability with which the bound may fail; below 1 / number of samples.",
)
adjacency_option = click.option(
    "--adjacency",
    type=click.Choice(ADJACENCIES),
    help="Neighbouring data sets. Default: add-remove-one; replace-one if shuffled.",
)
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    is_eager=True,
    callback=only_json,
    help='Print one JSON object and nothing else. An infinite number is the string "infinity".',
)
_SAMPLING_OPTIONS = (
    click.option(
        "--sample-rate",
        type=float,
        metavar="Q",
        help="Probability with which each sample joins a batch.",
    ),
    click.option(
        "--batch-size",
        type=int,
        metavar="B",
        help="Expected batch size. With --dataset-size, instead of --sample-rate: the rate is B/N.",
    ),
    click.option("--dataset-size", type=int, metavar="N", help="Number of samples."),
    click.option("--steps", type=int, metavar="T", help="Number of optimizer steps."),
    click.option(
        "--epochs", type=int, metavar="E", help="Number of epochs of N/B steps, instead of --steps."
    ),
    click.option(
        "--sampling",
        "sampler",
        type=click.Choice(SAMPLERS),
        default="poisson",
        show_default=True,
        help="How batches are drawn.",
    ),
    click.option(
        "--largest-batch",
        type=int,
        metavar="L",
        help="Truncate Poisson batches to L samples; needs --dataset-size.",
    ),
)


def plan_options(command: Command) -> Command:
    """Options for sampling and steps; the command gets them as one argument, a `TrainingPlan`."""

    @wraps(command)
    def with_plan(**options: Any) -> None:
        names = {field.name for field in fields(Given)} & set(options)
        given = Given(**{name: options.pop(name) for name in names})
        with refusals():
            plan = plan_from(given)
        command(plan=plan, **options)

    return add_options(with_plan, _SAMPLING_OPTIONS)


def add_options(command: Command, options: Sequence[Decorator]) -> Command:
    """The command with these options, listed in their order."""
    for option in reversed(options):
        command = option(command)
    return command


def one_of(what: str, names: tuple[str, ...]) -> str:
    """Help for an option that takes one of these names."""
    return f"{what}: {', '.join(names)}."
