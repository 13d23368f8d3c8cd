"""F: raw data leaves in tensors: leaves with a gradient of their own, buffers, parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad import PrivacyEngine

from .data import Net, program, samples
from .harness import Collection, Program, Rows

TRAPS = Collection("F")


# -- tensors that get the raw sum of gradients -----------------------------------------------------


def with_own_optimizer(made: Program, leaf: Tensor) -> Program:
    """The loop trains ``leaf`` beside the engine."""
    own = torch.optim.SGD([leaf], lr=1.0)

    def step() -> None:
        own.step()
        own.zero_grad()

    made.leaf, made.start = leaf, leaf.detach().clone()  # type: ignore[attr-defined]
    made.before_step = step
    return made


def leaf_moved(made: Any, engine: PrivacyEngine) -> bool:
    """Whether it was trained, and so without noise."""
    return not torch.equal(made.leaf, made.start)


@TRAPS.add(leak=leaf_moved)
def a_temperature_in_the_loss(rows: Rows) -> Program:
    temperature = torch.ones((), dtype=torch.float64, requires_grad=True)

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return (model(*batch) * temperature).square().sum(1)

    return with_own_optimizer(program(Net(), rows, losses=losses), temperature)


@TRAPS.add(leak=leaf_moved)
def weights_of_two_losses(rows: Rows) -> Program:
    """Uncertainty weighting: logarithms of variances, learned."""
    logs = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return (model(*batch).square() * (-logs).exp() + logs).sum(1)

    return with_own_optimizer(program(Net(), rows, losses=losses), logs)


@TRAPS.add(leak=leaf_moved)
def a_prompt_in_an_attribute(rows: Rows) -> Program:
    model = Net(lambda net, h: torch.tanh(h + net.prompt))
    model.prompt = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    return with_own_optimizer(program(model, rows), model.prompt)


class Centres:
    """A loss with a centre for each class, which is no module."""

    def __init__(self) -> None:
        self.values = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        (x,) = batch
        return (model(x) - self.values[(x[:, 0] > 0).long()]).square().sum(1)


@TRAPS.add(leak=leaf_moved)
def the_centres_of_a_loss(rows: Rows) -> Program:
    centres = Centres()
    return with_own_optimizer(program(Net(), rows, losses=centres), centres.values)


@TRAPS.add(leak=leaf_moved)
def a_perturbation_of_the_input(rows: Rows) -> Program:
    """Universal adversarial training: one perturbation for all samples."""
    delta = torch.zeros(3, dtype=torch.float64, requires_grad=True)

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0] + delta).square().sum(1)

    return with_own_optimizer(program(Net(), rows, losses=losses), delta)


# -- buffers and parameters written between the verbs ----------------------------------------------


def tensors_of(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for child in tree.values():
            yield from tensors_of(child)
    elif isinstance(tree, (list, tuple)):
        for child in tree:
            yield from tensors_of(child)


def saves(value: Callable[[], Tensor]) -> Callable[[Program, PrivacyEngine], bool]:
    """Whether a checkpoint of the engine has these numbers in it."""

    def leaks(made: Program, engine: PrivacyEngine) -> bool:
        found = tensors_of(engine.state_dict())
        wanted = value()
        return any(t.shape == wanted.shape and torch.allclose(t, wanted) for t in found)

    return leaks


class Queue(Net):
    """Contrastive learning: a queue of what was seen, in a buffer."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(size, 3, dtype=torch.float64))
        self.place = 0

    @torch.no_grad()
    def enqueue(self, x: Tensor) -> None:
        for sample in x:
            self.queue[self.place % len(self.queue)] = sample
            self.place += 1


@TRAPS.add(leak=saves(samples))
def a_queue_filled_before_the_step(rows: Rows) -> Program:
    model, seen = Queue(), []

    def fill() -> None:
        model.enqueue(torch.cat(seen))
        seen.clear()

    def remember(batch: Any) -> None:
        seen.append(batch[0])

    return program(model, rows, after_backward=remember, before_step=fill)


@TRAPS.add(leak=saves(samples))
def a_queue_filled_between_micro_batches(rows: Rows) -> Program:
    model = Queue()
    return program(
        model,
        rows,
        options={"physical_batch_size": 3},
        after_backward=lambda batch: model.enqueue(batch[0]),
    )


@TRAPS.add(leak=saves(lambda: samples().mean(0)))
def a_running_mean_updated_by_the_loop(rows: Rows) -> Program:
    model = Net(lambda net, h: h)
    model.register_buffer("mean", torch.zeros(3, dtype=torch.float64))

    def update(batch: Any) -> None:
        model.mean = batch[0].mean(0)

    return program(model, rows, after_backward=update)


class ActNorm(nn.Module):
    """Its parameters begin with the statistics of the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.is_initialized = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_initialized:
            with torch.no_grad():
                self.loc.data.copy_(x.mean(0))
                self.scale.data.copy_(x.std(0))
            self.is_initialized = True
        return (x - self.loc) / self.scale


@TRAPS.add(leak=saves(lambda: samples().mean(0)))
def parameters_initialized_by_a_forward_without_gradients(rows: Rows) -> Program:
    model = nn.Sequential(ActNorm(), Net())

    def initialize(batch: Any) -> None:
        with torch.no_grad():
            model(*batch)

    return program(model, rows, before_forward=initialize)


@TRAPS.add(leak=saves(lambda: samples().mean(0)))
def parameters_initialized_by_a_part_that_the_loop_calls(rows: Rows) -> Program:
    model = nn.Sequential(ActNorm(), Net())

    def initialize(batch: Any) -> None:
        if not model[0].is_initialized:
            with torch.inference_mode():
                model[0](batch[0])

    return program(model, rows, before_forward=initialize)


class Prototypes(nn.Module):
    """Distances to prototypes, which are parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.prototypes = nn.Parameter(torch.randn(2, 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.prototypes.T


def prototypes(x: Tensor) -> Tensor:
    return torch.stack([x[:3].mean(0), x[3:].mean(0)])


@TRAPS.add(leak=saves(lambda: prototypes(samples())))
def a_parameter_written_through_data(rows: Rows) -> Program:
    model = Prototypes()

    def write(batch: Any) -> None:
        model.prototypes.data = prototypes(batch[0])

    return program(model, rows, after_backward=write)


@TRAPS.add(leak=saves(lambda: prototypes(samples())))
def a_parameter_written_through_numpy(rows: Rows) -> Program:
    model = Prototypes()

    def write(batch: Any) -> None:
        model.prototypes.detach().numpy()[:] = prototypes(batch[0]).numpy()

    return program(model, rows, after_backward=write)


@TRAPS.add(leak=saves(lambda: prototypes(samples())))
def a_parameter_written_without_gradients(rows: Rows) -> Program:
    model = Prototypes()

    @torch.no_grad()
    def write(batch: Any) -> None:
        model.prototypes.copy_(prototypes(batch[0]))

    return program(model, rows, before_forward=write)


@TRAPS.add(leak=saves(lambda: samples().mean(0)))
def a_frozen_parameter_written_before_the_step(rows: Rows) -> Program:
    """Statistics for the input, updated behind each batch."""
    model = Net()
    model.mean = nn.Parameter(torch.zeros(3, dtype=torch.float64), requires_grad=False)
    return program(model, rows, after_backward=lambda batch: model.mean.copy_(batch[0].mean(0)))


@TRAPS.add(leak=saves(lambda: samples().mean(0)))
def a_buffer_written_by_a_hook_of_the_backward_pass(rows: Rows) -> Program:
    """Something for the log; refused already by the watch on buffers."""
    model = Net()
    model.register_buffer("log", torch.zeros(3, dtype=torch.float64))

    def note(module: nn.Module, inputs: Any, output: Tensor) -> None:
        def write(grad: Tensor) -> None:
            model.log.copy_(inputs[0].detach().mean(0))

        if output.requires_grad:
            output.register_hook(write)

    model.first.register_forward_hook(note)
    return program(model, rows)
