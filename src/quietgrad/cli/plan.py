"""How samples take part and for how many steps, understood from options."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from quietgrad._checks import require_count, require_rate
from quietgrad.accounting import (
    Adjacency,
    FullBatch,
    GaussianEvent,
    Participation,
    Passes,
    Poisson,
    TruncatedPoisson,
    as_if_poisson,
)
from quietgrad.accounting.adjacency import ADD_REMOVE, REPLACE
from quietgrad.accounting.participation import to_dict

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
        """Those that were not left out."""
        typed = {name: value for name, value in asdict(self).items() if value is not None}
        return {"sampling" if name == "sampler" else name: typed[name] for name in typed}


@dataclass(frozen=True)
class Plan:
    """What the options mean.

    Attributes:
        given: the options themselves.
        sampling: how samples take part.
        steps: how many steps there are.
        adjacency: which data sets must look alike.
    """

    given: Given
    sampling: Participation
    steps: int
    adjacency: Adjacency

    def event(self, noise_multiplier: float) -> GaussianEvent:
        """The whole run, with this noise."""
        return GaussianEvent(noise_multiplier, self.sampling, self.steps)

    def if_poisson(self) -> "Plan | None":
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


def plan_from(given: Given) -> Plan:
    """What the options mean together.

    Raises:
        ValueError: an option is missing, out of range, or contradicts another.
    """
    return Plan(given, _sampling(given), _steps(given), _adjacency(given))


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
    """Of a batch and of the data set."""
    if given.batch_size is None or given.dataset_size is None:
        raise ValueError(_missing_sizes(given))
    batch = require_count("--batch-size", given.batch_size, at_least=1)
    samples = require_count("--dataset-size", given.dataset_size, at_least=1)
    if batch > samples:
        raise ValueError(f"--batch-size={batch} exceeds --dataset-size={samples}")
    return batch, samples


def _missing_sizes(given: Given) -> str:
    if given.sampler == "shuffled":
        return "--sampling shuffled needs --batch-size and --dataset-size"
    if given.batch_size is not None:
        return "--batch-size needs --dataset-size: the rate is one over the other"
    return "the sampling is not stated: give --sample-rate, or --batch-size and --dataset-size"


def _steps(given: Given) -> int:
    if (given.steps is None) == (given.epochs is None):
        found = "neither" if given.steps is None else "both"
        raise ValueError(f"expected either --steps or --epochs, got {found}")
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


def _adjacency(given: Given) -> Adjacency:
    return given.adjacency or (REPLACE if given.sampler == "shuffled" else ADD_REMOVE)


def _refuse_unused(given: Given, *names: str) -> None:
    for name in names:
        if getattr(given, name) is not None:
            option = "--" + name.replace("_", "-")
            raise ValueError(
                f"{option} has no meaning for --sampling {given.sampler}: leave it out"
            )
