"""Programs that must be refused in training, and how far one sample moves their sum.

A trap is ordinary-looking code in which a sample reaches the gradients of others, or leaves without
noise. ``python -m tests.verification.harness`` prints what each does with the guards off.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset

from quietgrad import PrivacyEngine
from quietgrad.capture import mode, session, tape, verification
from quietgrad.errors import QuietgradError

Losses = Callable[[nn.Module, Any], Tensor]
Action = Callable[[], object]
Rows = Sequence[int]


class Elements(Dataset[Any]):
    """A list as a data set."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self.elements = elements

    def __len__(self) -> int:
        return len(self.elements)

    def __getitem__(self, index: int) -> Any:
        return self.elements[index]


def nothing() -> None:
    """What most loops do between the verbs."""


def on_default_device(content: Any) -> Any:
    """A batch where new tensors are made, as a loop would move it."""
    place = torch.get_default_device()
    if place.type == "cpu":
        return content
    return tree_map(lambda leaf: leaf.to(place) if isinstance(leaf, Tensor) else leaf, content)


def squares(model: nn.Module, batch: Any) -> Tensor:
    """One loss per sample, of what the model makes of all that the batch holds."""
    return model(*batch).square().flatten(1).sum(1)


@dataclass
class Program:
    """A model, data, and a loop that trains on it.

    ``after_backward`` runs behind each ``engine.backward``, and ``before_step`` before each
    ``engine.step``; ``own`` are the optimizers that the loop steps by itself.
    """

    model: nn.Module
    dataset: Dataset[Any]
    losses: Losses = squares
    options: dict[str, Any] = field(default_factory=dict)
    before_batch: Action = nothing
    before_forward: Callable[[Any], object] = lambda batch: None
    after_backward: Callable[[Any], object] = lambda batch: None
    before_step: Action = nothing

    def train(self, engine: PrivacyEngine, steps: int) -> None:
        """So many steps, by the three verbs."""
        while engine.steps_taken < steps:
            for batch in engine.batches():
                self.before_batch()
                for given in batch:
                    content = on_default_device(given)
                    self.before_forward(content)
                    engine.backward(self.losses(self.model, content))
                    self.after_backward(content)
                self.before_step()
                engine.step()
                if engine.steps_taken == steps:
                    return


Build = Callable[[Rows], Program]
Leak = Callable[[Program, PrivacyEngine], bool]


@dataclass(frozen=True)
class Trap:
    """A program to be refused.

    Attributes:
        name: what it does, in a few words.
        letter: the class that it belongs to.
        build: the program, with these rows of its data.
        steps: how many it must be refused within.
        every: whether every micro-batch is to be verified, since only some of them mix.
        count: how many samples there are.
        leak: for programs out of which data leaves: whether it did.
    """

    name: str
    letter: str
    build: Build
    steps: int = 1
    every: bool = False
    count: int = 6
    leak: Leak | None = None

    def __str__(self) -> str:
        return f"{self.letter}: {self.name}"


class Collection(list[Trap]):
    """The traps of one class, each added by decorating what builds it."""

    def __init__(self, letter: str) -> None:
        super().__init__()
        self.letter = letter

    def add(self, **fields: Any) -> Callable[[Build], Build]:
        """The function's name is the trap's."""

        def add(build: Build) -> Build:
            name = build.__name__.replace("_", " ").strip()
            self.append(Trap(name, self.letter, build, **fields))
            return build

        return add


class Recorder(torch.optim.SGD):
    """Keeps what it is given, and leaves the weights as they are."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1.0)
        self.released: list[Tensor] = []

    def step(self, closure: Any = None) -> None:
        """Record the gradients of all parameters."""
        grads = [p.grad.double().flatten() for g in self.param_groups for p in g["params"]]
        self.released.append(torch.cat(grads))


def seed() -> None:
    """All generators, so that two runs draw alike."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  models draw from it


def attach(program: Program, optimizer: torch.optim.Optimizer, **options: Any) -> PrivacyEngine:
    """An engine whose batches are the whole data."""
    given = {"batch_size": len(program.dataset), "delta": 1e-9, "seed": 0}  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PrivacyEngine(
            program.model, optimizer, program.dataset, **given | options | program.options
        )


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def run(trap: Trap, steps: int | None = None) -> None:
    """Train as a user would; errors go through."""
    program = trap.build(range(trap.count))
    options: dict[str, Any] = {"noise_multiplier": 1.0}
    if trap.every:
        options["verification"] = "every"
    optimizer = torch.optim.SGD(trainable(program.model), lr=1e-3)
    engine = attach(program, optimizer, **options)
    seed()
    try:
        program.train(engine, steps or trap.steps)
    finally:
        engine.detach()


def is_silent(trap: Trap) -> bool:
    """Whether it trains without a word."""
    try:
        run(trap)
    except QuietgradError:
        return False
    return True


def _settle(verifier: Any, tape: Any, losses: Tensor, *rest: Any) -> None:
    if tape.batch > 1:
        verification._settle_layouts(tape, losses)


@contextmanager
def unguarded() -> Iterator[None]:
    """In here samples are clipped and added up as ever, and nothing is verified about them."""
    with ExitStack() as stack:
        nothing = (lambda *args, **kwargs: None,)
        for holder, name, instead in (
            (verification.Verifier, "summarize", *nothing),  # which refuses, too
            (verification.Verifier, "wants_passes", *nothing),
            (verification.Verifier, "verify", _settle),
            (session.Capture, "_refuse_kept_data", *nothing),
            (session.Capture, "require_unwritten", *nothing),
            (session.Capture, "_refuse_written_weights", *nothing),
            (session.Capture, "_refuse_written_buffers", *nothing),
            (tape.Tape, "_ends", *nothing),  # gradients go wherever they would
            (mode, "check_write", *nothing),
            (mode, "check_operation", *nothing),
        ):
            stack.enter_context(patch.object(holder, name, instead))
        yield


def released(trap: Trap, rows: Rows) -> tuple[Tensor, float]:
    """The clipped sum of each step, and the sensitivity.

    What a model adds at random, by its attribute ``noise``, is taken away: otherwise two runs
    differ for that reason alone.
    """
    program = trap.build(rows)
    for module in program.model.modules():
        if isinstance(getattr(module, "noise", None), float):
            module.noise = 0.0
    optimizer = Recorder(trainable(program.model))
    engine = attach(program, optimizer, noise_multiplier=1e-9)
    seed()
    with unguarded():
        program.train(engine, trap.steps)
    engine.detach()
    return torch.stack(optimizer.released) * engine.batch_size, engine.sensitivity


def factor(trap: Trap) -> float:
    """The largest change of a step's sum by leaving one sample out, over the sensitivity."""
    everyone = range(trap.count)
    whole, sensitivity = released(trap, everyone)
    rests = ([i for i in everyone if i != left] for left in everyone)
    changes = [(whole - released(trap, rest)[0]).norm(dim=1).max() for rest in rests]
    return float(max(changes)) / sensitivity


def leak(trap: Trap) -> bool:
    """Whether something of the data left without noise; the weights stay as they are."""
    assert trap.leak is not None
    program = trap.build(range(trap.count))
    engine = attach(program, Recorder(trainable(program.model)), noise_multiplier=1e-9)
    seed()
    with unguarded():
        program.train(engine, trap.steps)
    found = trap.leak(program, engine)
    engine.detach()
    return found


def main() -> None:
    """Print a table of what every trap does."""
    from tests.verification.programs import TRAPS

    print("name | letter | factor | today\n--- | --- | --- | ---")
    for trap in TRAPS:
        effect = f"{factor(trap):.2f}" if trap.leak is None else f"leaks: {leak(trap)}"
        print(f"{trap.name} | {trap.letter} | {effect} | {_outcome(trap)}")


def _outcome(trap: Trap) -> str:
    try:
        run(trap)
    except Exception as error:  # any other is a mistake in the program, and to be seen
        return f"{type(error).__name__}: {str(error)[:60]}"
    return "silent"


if __name__ == "__main__":
    main()
