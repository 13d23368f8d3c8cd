"""What an engine is made with: checked, described for checkpoints, disclosed for reports."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.optim import LBFGS, Optimizer
from torch.utils.data import Dataset, Subset

from quietgrad._checks import require_callable, require_count, require_delta, wrong_type
from quietgrad._format import describe_options
from quietgrad._version import versions_here
from quietgrad.accounting import accountants, events
from quietgrad.accounting.events import (
    ADD_REMOVE,
    Adjacency,
    GaussianEvent,
    Participation,
    Unit,
    releases,
)
from quietgrad.accounting.ledger import Ledger, describe_unit
from quietgrad.clipping import Clipping
from quietgrad.distributed.world import World
from quietgrad.errors import DistributedTrainingError, IntegrationError
from quietgrad.grouping.base import Group
from quietgrad.methods.adaptive_radius import AdaptiveRadius
from quietgrad.methods.inner_outer import InnerOuter
from quietgrad.sampling.samplers import Draws, Sampler, bind_to_public_size, population
from quietgrad.sampling.samplers import resolve as resolve_sampler
from quietgrad.sampling.units import Ids, Units

if TYPE_CHECKING:
    from quietgrad.engine.checkpoint import TrainingState

_CALLER = 4  # stack frames from a warning to the user's call of PrivacyEngine


def check_delta(delta: float, size: int, unit: Unit | None = None) -> float:
    """A probability, with a warning if it is too large to mean anything."""
    delta = require_delta("delta", delta)
    if delta >= 1 / size:
        one = "sample" if unit is None else unit.name
        many = "" if unit is None else f", for {size:,} {unit.plural}"
        warnings.warn(
            f"delta={delta:g} is not below 1/n = {1 / size:.2g}{many}: publishing one random {one} "
            "in full would keep such a guarantee. Choose delta well below 1/n.",
            stacklevel=_CALLER - 1,
        )
    return delta


_MOST_STEPS = 10**7  # the noise of each is kept


def check_length(epochs: int | None, steps: int | None, steps_per_epoch: int) -> int | None:
    """The number of planned steps; None without a plan."""
    if epochs is not None and steps is not None:
        raise ValueError(
            f"epochs={epochs!r} and steps={steps!r}: expected one of them, each says how long"
            " training is planned to be"
        )
    if epochs is None and steps is None:
        return None
    if steps is not None:
        planned, given = require_count("steps", steps, at_least=1), f"steps={steps}"
    else:
        planned = require_count("epochs", epochs, at_least=1) * steps_per_epoch
        given = f"epochs={epochs} of {steps_per_epoch:,} steps each"
    if planned > _MOST_STEPS:
        raise ValueError(
            f"{given} is a plan of {planned:,} steps: expected at most {_MOST_STEPS:,}. Pass fewer,"
            " or a larger batch_size"
        )
    return planned


class Protected(NamedTuple):
    """What is sampled and protected, and how many of it there are.

    Attributes:
        units: of several records, if it is not single ones.
        unit: how ledger and report call them.
        population: the number that is drawn from.
        size: a public number, from which rates and steps follow.
        is_secret: whether the number itself is not to be known.
    """

    units: Units | None
    unit: Unit | None
    population: int
    size: int
    is_secret: bool

    @property
    def noun(self) -> str:
        """What several are called."""
        return "samples" if self.unit is None else self.unit.plural

    def draws(self, sampling: str | Sampler, batch_size: int) -> Draws:
        """How batches of them are drawn."""
        sampler = resolve_sampler(sampling)
        if not self.is_secret:
            return sampler.bind(self.population, batch_size)
        return bind_to_public_size(sampler, self.population, batch_size, self.size)


def check_protected(
    dataset: Dataset[Any],
    units: Ids | None,
    records_per_unit: int | None,
    unit: str | None,
    public_size: int | None,
) -> Protected:
    """Who is protected, records or units of several, and how many of them are known of."""
    count = population(dataset)
    if units is None:
        for name, value in (("records_per_unit", records_per_unit), ("unit", unit)):
            if value is not None:
                raise ValueError(
                    f"{name}={value!r} is given without units=: expected the id of the unit that "
                    "each record belongs to, such as units=table['patient']"
                )
        found, named = None, None
    else:
        if records_per_unit is None:
            raise ValueError(
                "units= needs records_per_unit=: how many records of a unit take part at most each "
                "time it is drawn, such as 10. More take more time, and no more privacy"
            )
        found = Units(units, count, records_per_unit)
        named = Unit("unit" if unit is None else unit, found.most)
        count = len(found)
    if public_size is None:
        return Protected(found, named, count, count, is_secret=False)
    size = require_count("public_size", public_size, at_least=1)
    return Protected(found, named, count, size, is_secret=True)


def require_one_more_or_less(adjacency: Adjacency) -> None:
    """Refuse neighbours that are as many where their number is to stay secret."""
    if adjacency != ADD_REMOVE:
        raise ValueError(
            f"public_size= is given with adjacency={adjacency!r}, which compares data sets of the "
            f"same size, so that the size is not protected: expected {ADD_REMOVE!r}"
        )


def check_accountant(name: str) -> str:
    """A known accountant, with a warning if its epsilon is not a bound."""
    if not accountants.resolve(name).is_guarantee:
        warnings.warn(
            f"accountant={name!r} is an approximation, not a guarantee: the true epsilon is "
            "usually larger than what it says. Use 'pld' for a bound.",
            stacklevel=_CALLER - 1,
        )
    return name


def check_seed(seed: int | None) -> int | None:
    """As it is, with a warning if there is one."""
    if seed is not None:
        warnings.warn(
            f"seed={seed}: whoever knows it can recompute the noise and the sampling, so this run "
            "protects nobody. For tests only; its steps are recorded as seeded.",
            stacklevel=_CALLER - 1,
        )
    return seed


def check_optimizer(optimizer: Any) -> Optimizer:
    """One whose steps can be guarded; of what accelerate prepared, the optimizer itself."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}: its step "
            "could not be guarded"
        )
    is_prepared = type(optimizer).__module__ == "accelerate.optimizer"
    own = _unwrap_accelerated(optimizer) if is_prepared else optimizer
    if not hasattr(own, "_optimizer_step_pre_hooks"):
        raise TypeError(
            f"{type(own).__name__} is a torch.optim.Optimizer whose class does not call "
            "Optimizer.__init__: its steps cannot be guarded. If it wraps another, pass that one"
        )
    if isinstance(own, LBFGS):
        raise TypeError(
            "LBFGS evaluates the loss several times a step and cannot be used privately"
        )
    return own


def _unwrap_accelerated(wrapper: Any) -> Optimizer:
    if wrapper.scaler is not None:
        raise IntegrationError(
            "the optimizer was prepared by an Accelerator with a GradScaler, which follows the "
            "data: use mixed_precision='bf16', or 'no' with PrivacyEngine(loss_scale=1024.0)."
        )
    if wrapper.gradient_state.num_steps > 1:
        raise IntegrationError(
            "the optimizer was prepared by an Accelerator with gradient_accumulation_steps="
            f"{wrapper.gradient_state.num_steps}: the samples of a step are drawn at once. Pass "
            "PrivacyEngine(batch_size=) the expected number of samples of a whole step, and "
            "physical_batch_size= what goes through the model at once."
        )
    inner: Optimizer = wrapper.optimizer
    return inner


def check_functions(schedule: Any, collate_fn: Any, diagnostics: Any) -> None:
    """Refuse what could not be called later, in the middle of a run."""
    if schedule is not None:
        expected = "a function of the step's number that returns a factor on the noise, or None"
        require_callable("noise_schedule", schedule, expected)
    if collate_fn is not None:
        expected = "a function that makes a micro-batch of a list of samples, or None"
        require_callable("collate_fn", collate_fn, expected)
    if diagnostics is not None and not callable(getattr(diagnostics, "watch", None)):
        expected = "a quietgrad.diagnostics.StepRecorder, or None"
        raise wrong_type("diagnostics", diagnostics, expected)


def check_pinning(pin_memory: Any) -> bool:
    """Whether batches are to be pinned; a warning, and False, where that has no effect."""
    if not isinstance(pin_memory, bool):
        raise wrong_type("pin_memory", pin_memory, "True or False")
    if not pin_memory:
        return False
    why = "no accelerator is available"
    if torch.accelerator.is_available():
        try:
            torch.empty(1, device="cpu").pin_memory()
        except RuntimeError as error:  # some accelerators have no pinned memory
            why = f"{torch.accelerator.current_accelerator()} has no pinned memory ({error})"
        else:
            return True
    warnings.warn(
        f"pin_memory=True has no effect: {why}. Batches are loaded without it.",
        stacklevel=_CALLER - 1,
    )
    return False


_MOST_LOSS_SCALE = 2.0**24


def check_backend(compile: bool | str) -> str | None:
    """The backend of torch's compiler, by name; None if nothing is to be compiled."""
    if not compile:
        return None
    name = "inductor" if compile is True else compile
    dynamo = import_module("torch._dynamo")  # by name: it takes a second
    known = dynamo.list_backends(exclude_tags=())
    if not isinstance(name, str) or name not in known:
        raise ValueError(
            f"compile={compile!r} is not valid: expected True, False or one of torch's backends, "
            f"{known}"
        )
    return name


def check_loss_scale(scale: Any) -> float:
    """A power of two: gradients that are multiplied and divided by it keep every digit."""
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not is_number or not 1 / _MOST_LOSS_SCALE <= scale <= _MOST_LOSS_SCALE:
        what = "a GradScaler's scale follows the data: " if hasattr(scale, "get_scale") else ""
        raise ValueError(
            f"loss_scale={scale!r} is not valid: {what}expected a constant from 2**-24 to 2**24, "
            "such as 1024.0"
        )
    if math.frexp(scale)[0] != 0.5:
        near = 2.0 ** round(math.log2(scale))
        raise ValueError(
            f"loss_scale={scale!r} is not valid: expected a power of two, such as {near:g}, by "
            "which gradients are multiplied and divided without rounding"
        )
    return float(scale)


def check_momentum(momentum: Any, optimizer: Optimizer) -> InnerOuter:
    """What the engine knows how to do, with a warning if the optimizer does some of it again."""
    if not isinstance(momentum, InnerOuter):
        raise TypeError(
            f"momentum must be a quietgrad.InnerOuter, got {type(momentum).__name__}: ordinary "
            "momentum is the optimizer's, as in torch.optim.SGD(..., momentum=0.9)"
        )
    own = max((group.get("momentum") or 0.0 for group in optimizer.param_groups), default=0.0)
    if momentum.carried and own:
        warnings.warn(
            f"outer momentum carries {momentum.carried:.3g} of what was released on, and the "
            f"optimizer's own momentum={own:g} carries that on again. Use one of them: "
            "InnerOuter(outer=None), or an optimizer without momentum.",
            stacklevel=_CALLER - 1,
        )
    return momentum


def open_ledger(
    ledger: Ledger | str | Path | None,
    adjacency: Adjacency | None,
    sampling: Participation,
    unit: Unit | None,
) -> Ledger:
    """The ledger to record in, once it is clear that it can promise anything for this sampling.

    A new file is made later, by `attach_ledger_file`, when the engine is known to work: one that is
    refused leaves nothing behind.
    """
    if ledger is not None and not isinstance(ledger, Ledger | str | Path):
        raise wrong_type("ledger", ledger, "a quietgrad.accounting.Ledger, a path, or None")
    if not isinstance(ledger, Ledger):
        ledger = (
            Ledger(adjacency=adjacency or ADD_REMOVE, unit=unit)
            if ledger is None or not Path(ledger).exists()
            else Ledger.open(ledger, adjacency=adjacency)
        )
    if ledger.unit != unit:
        raise ValueError(
            f"the ledger is about {describe_unit(ledger.unit)}, and this engine about "
            f"{describe_unit(unit)}: what the two spend cannot be added up. Expected the same "
            "units=, unit= and records_per_unit=, or a ledger of its own"
        )
    if adjacency not in (None, ledger.adjacency):
        raise ValueError(
            f"adjacency={adjacency!r} differs from the ledger's {ledger.adjacency!r}: expected "
            "the same, or a ledger of its own"
        )
    releases([GaussianEvent(1.0, sampling)], ledger.adjacency)  # raises if it can not
    return ledger


def open_common_ledger(
    world: World,
    ledger: Ledger | str | Path | None,
    adjacency: Adjacency | None,
    sampling: Participation,
    unit: Unit | None,
) -> Ledger:
    """Rank 0's ledger, which alone may have a file; other ranks have a copy in memory."""
    if world.size == 1:
        return open_ledger(ledger, adjacency, sampling, unit)
    own: Ledger | None = None

    def begin() -> tuple[dict[str, Any], str]:
        nonlocal own
        own = open_ledger(ledger, adjacency, sampling, unit)
        return own.to_dict(), own.session

    content, session = world.lead(begin)
    if own is None:
        own = Ledger.from_dict(content)
        own.mirror(session)
    return own


def check_world(
    world: World, diagnostics: object, momentum: object, compile: object, units: object
) -> None:
    """Refuse what works in one process only, or with whole weights on every rank."""
    if world.has_collectives and units is not None:
        raise DistributedTrainingError(
            "units= is given, and the model is sharded",
            "Train with whole copies of the model on every rank, or in one process.",
            "all ranks run as many micro-batches, and whole units fill them differently",
        )
    if world.has_collectives and compile:
        raise DistributedTrainingError(
            "compile= is given, and the model is sharded",
            "Train without it, or with whole copies of the model on every rank.",
            "weights that are gathered while a forward runs cannot be traced",
        )
    if world.has_collectives and momentum is not None:
        raise DistributedTrainingError(
            "momentum=InnerOuter is given, and the model is sharded",
            "Train without it, or with whole copies of the model on every rank.",
            "past weights would have to be gathered like the present ones",
        )
    if world.size > 1 and diagnostics is not None:
        raise DistributedTrainingError(
            f"diagnostics= is given in a process group of {world.size} ranks",
            "Measure gradients in a run of one process.",
            "each of them has a part of the samples only",
        )


def check_pipeline(
    example: object, radius: object, momentum: object, compile: object, units: object
) -> None:
    """Refuse what would have to know all stages of a pipeline, or run a stage by itself."""
    given = {
        "units=": units is not None,
        "example=": example is not None,
        "radius=AdaptiveRadius()": isinstance(radius, AdaptiveRadius),
        "momentum=InnerOuter()": momentum is not None,
        "compile=": bool(compile),
    }
    for name, is_given in given.items():
        if is_given:
            raise DistributedTrainingError(
                f"{name} is given with pipeline=",
                "Leave it out, or train without a pipeline.",
                "it needs the whole model, of which a rank has some stages, or was not tried there",
            )


def attach_ledger_file(ledger: Ledger, place: Ledger | str | Path | None) -> None:
    """Make the file of a new ledger, if it is to have one."""
    if isinstance(place, str | Path) and not ledger.has_file:
        ledger.keep_in(place)


def require_accountable(accountant: str, sampling: Participation, adjacency: Adjacency) -> None:
    """Refuse an approximation that has no formula for what is to be done."""
    chosen = accountants.resolve(accountant)
    if not chosen.is_guarantee:
        chosen.profile(releases([GaussianEvent(1.0, sampling)], adjacency), adjacency)


def describe_settings(
    *,
    optimizer: Optimizer,
    sampling: Participation,
    clipping: Clipping,
    groups: Sequence[Group],
    epochs: int | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    **others: Any,
) -> dict[str, Any]:
    """The settings of an engine, in numbers and strings that survive a file.

    Args:
        optimizer: by its class; its own state says the rest.
        sampling: as an accountant knows it.
        clipping: with its options.
        groups: with their radii.
        epochs: as given.
        epsilon: as given.
        noise_multiplier: as given.
        others: what is plain data already.
    """
    return {
        **others,
        "epochs": None if epochs is None else int(epochs),
        "epsilon": None if epsilon is None else float(epsilon),
        "noise_multiplier": None if noise_multiplier is None else float(noise_multiplier),
        "sampling": events.to_dict(sampling),
        "clipping": repr(clipping),
        "optimizer": type(optimizer).__name__,
        "groups": [[group.radius, *group.parameters] for group in groups],
    }


_FORMAT = 2  # 1 had the repr of options


def disclose_settings(
    state: TrainingState, options: Mapping[str, Any], *, noise: str, diagnostics: bool
) -> dict[str, Any]:
    """Settings that never change in a run; and, under "progress", how far it has come.

    Args:
        state: of the run.
        options: the clipping function, the momentum and the adaptive radius.
        noise: where it comes from, in words.
        diagnostics: whether raw gradients are measured.
    """
    given, budget = dict(state.settings), state.budget
    # What is as ever is left out: other versions wrote no such thing.
    is_secret = given.pop("public_size") is not None
    if given["unit"] is None:
        del given["unit"]
    size, target, batch_size = given.pop("dataset size"), given.pop("epsilon"), given["batch_size"]
    return {
        "format": _FORMAT,
        **given,
        **{name: describe_options(each) for name, each in options.items()},
        "loss_scale": given["loss_scale"] or 1.0,
        "target_epsilon": target,
        "dataset": _kind_of(state.loader.dataset),
        "dataset_size": size,
        **({"size_is_secret": True} if is_secret else {}),
        "sample_rate": batch_size / size,
        "normalizer": batch_size,
        "model": type(state.model).__name__,
        **_parameters(state),
        "sampler": state.loader.draws.description,
        "physical_batch_size": state.loader.physical_batch_size,
        "steps_per_epoch": len(state.loader),
        "planned_steps": budget.planned_steps,
        "noise_multiplier": budget.noise_multiplier,
        "noise_multipliers": budget.noise_levels,
        "noise_source": noise,
        "seeded": state.seed is not None,
        "groups": _groups(state, options["clipping"]),
        "diagnostics": diagnostics,
        "versions": versions_here(),
        "progress": _progress(state),
    }


def _kind_of(dataset: object) -> str:
    """The name of its class; of a part, also that of the whole."""
    name = type(dataset).__name__
    return f"{name} of {_kind_of(dataset.dataset)}" if isinstance(dataset, Subset) else name


def _parameters(state: TrainingState) -> dict[str, int]:
    sizes = [(p.numel(), p.requires_grad) for p in state.model.parameters()]
    return {
        "trained_parameters": sum(size for size, trained in sizes if trained),
        "frozen_parameters": sum(size for size, trained in sizes if not trained),
    }


def _groups(state: TrainingState, clipping: Clipping) -> list[dict[str, Any]]:
    """As they were to begin with: an adaptive radius moves on from there."""
    return [
        {"name": group.name, "radius": radius, "bound": clipping.bound(radius), "parameters": names}
        for group, (radius, *names) in zip(
            state.radii.everywhere, state.settings["groups"], strict=True
        )
    ]


def _progress(state: TrainingState) -> dict[str, Any]:
    recorded = state.budget.state_dict()["recorded"]
    return {
        "steps_taken": state.steps_taken,
        "epochs_completed": state.epochs_completed,
        "ledger_id": state.ledger.id,
        "ledger_steps": state.ledger.steps,
        "steps_by_others": state.ledger.steps - recorded,
        "radii": [group.radius for group in state.radii.groups],
        "sensitivity": state.radii.sensitivity,
    }
