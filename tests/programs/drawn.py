"""Random programs by number, each with a way to mix its samples."""

from __future__ import annotations

import random
from dataclasses import replace

from .mixing import IDS, KINDS, Case, Mix, When
from .program import COMBINATORS, POINTWISE, POINTWISE_ONLY, SEQUENCES, Program, Step

_ANY = [*POINTWISE, *SEQUENCES]
_NESTABLE = ["residual", "product", "twice", "both ways"]


def draw_case(number: int, *, always: bool) -> Case:
    """The case of this number, the same every time; ``always`` mixes in every forward."""
    rng = random.Random(number)
    steps = _steps(rng, most=4, depth=2)
    words = rng.random() < 0.5
    ids = rng.choice([*IDS]) if words and rng.random() < 0.3 else ""
    if not ids:
        kind, hidden = rng.choice([*KINDS]), rng.random() < 0.5
        steps = _insert(rng, steps, Mix(kind, rng.choice("ab"), hidden=hidden))
    program = Program(
        steps,
        batch=rng.choice([2, 3, 4, 5, 9, 11]),
        length=rng.randint(1, 5),
        words=words,
        seed=rng.randint(0, 999),
    )
    source = rng.choice(["always", "torch", "random", "counter"])
    probability, first = rng.uniform(0.05, 0.5), rng.choice([0, rng.randint(1, 50)])
    when = When(source) if always else When(source, probability, first)
    return Case(number, program, when, ids, single=rng.random() < 0.5)


def without_mixing(program: Program) -> Program:
    """The same but for what mixes; one that did nothing else is empty."""
    return replace(program, steps=_without(program.steps))


def _without(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    kept = [step for step in steps if not isinstance(step, Mix)]
    return tuple(replace(step, body=_without(step.body)) if step.body else step for step in kept)


def _steps(rng: random.Random, most: int, depth: int) -> tuple[Step, ...]:
    return tuple(_step(rng, depth) for _ in range(rng.randint(1, most)))


def _step(rng: random.Random, depth: int) -> Step:
    if depth == 0 or rng.random() < 0.7:
        return Step(rng.choice(_ANY), rng.choice("ab"))
    name = rng.choice([*COMBINATORS] if depth == 2 else _NESTABLE)
    if name in POINTWISE_ONLY:
        count = rng.randint(1, 3)
        body = tuple(Step(rng.choice([*POINTWISE]), rng.choice("ab")) for _ in range(count))
        return Step(name, body=body)
    return Step(name, body=_steps(rng, most=3 if depth == 2 else 2, depth=depth - 1))


def _insert(rng: random.Random, steps: tuple[Step, ...], mix: Mix) -> tuple[Step, ...]:
    """Between any two steps, or within one."""
    place = rng.randint(0, len(steps))
    around = steps[place : place + 1]
    if around and around[0].body and rng.random() < 0.7:
        inner = replace(around[0], body=_insert(rng, around[0].body, mix))
        return (*steps[:place], inner, *steps[place + 1 :])
    return (*steps[:place], mix, *steps[place:])
