"""What only the engine knows of a run, as plain data: the settings a privacy report rests on."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

from quietgrad.clipping import Clipping
from quietgrad.engine.course import Course
from quietgrad.report.versions import versions_here

FORMAT = 1


def disclosed(
    course: Course, clipping: Clipping, *, noise: str, diagnostics: bool
) -> dict[str, Any]:
    """Settings that never change in a run; and, under "progress", how far it has come.

    Args:
        course: of the run.
        clipping: what bounds a sample's gradient.
        noise: where it comes from, in words.
        diagnostics: whether raw gradients are measured.
    """
    given, budget = dict(course.settings), course.budget
    size, target, batch_size = given.pop("dataset size"), given.pop("epsilon"), given["batch_size"]
    return {
        "format": FORMAT,
        **given,
        "target_epsilon": target,
        "dataset": _kind_of(course.loader.dataset),
        "dataset_size": size,
        "sample_rate": batch_size / size,
        "normalizer": batch_size,
        "model": type(course.model).__name__,
        **_parameters(course),
        "sampler": course.loader.draws.description,
        "physical_batch_size": course.loader.physical_batch_size,
        "steps_per_epoch": len(course.loader),
        "planned_steps": budget.planned_steps,
        "noise_multiplier": budget.noise_multiplier,
        "noise_multipliers": budget.noise_levels,
        "noise_source": noise,
        "seeded": course.seed is not None,
        "groups": _groups(course, clipping),
        "diagnostics": diagnostics,
        "versions": versions_here(),
        "progress": _progress(course),
    }


def _kind_of(dataset: object) -> str:
    """The name of its class; of a part, also that of the whole."""
    name = type(dataset).__name__
    return f"{name} of {_kind_of(dataset.dataset)}" if isinstance(dataset, Subset) else name


def _parameters(course: Course) -> dict[str, int]:
    sizes = [(p.numel(), p.requires_grad) for p in course.model.parameters()]
    return {
        "trained_parameters": sum(size for size, trained in sizes if trained),
        "frozen_parameters": sum(size for size, trained in sizes if not trained),
    }


def _groups(course: Course, clipping: Clipping) -> list[dict[str, Any]]:
    """As they were to begin with: an adaptive radius moves on from there."""
    return [
        {"name": group.name, "radius": radius, "bound": clipping.bound(radius), "parameters": names}
        for group, (radius, *names) in zip(
            course.radii.groups, course.settings["groups"], strict=True
        )
    ]


def _progress(course: Course) -> dict[str, Any]:
    recorded = course.budget.state_dict()["recorded"]
    return {
        "steps_taken": course.steps_taken,
        "epochs_completed": course.epochs_completed,
        "ledger_id": course.ledger.id,
        "ledger_steps": course.ledger.steps,
        "steps_by_others": course.ledger.steps - recorded,
        "radii": [group.radius for group in course.radii.groups],
        "sensitivity": course.radii.sensitivity,
    }
